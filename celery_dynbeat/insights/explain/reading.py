"""Read the facts about one schedule. Each query is bounded and follows an index."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import owner_clock
from celery_dynbeat.api.fields import refused_content_type
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.api.previews import fire_times_of
from celery_dynbeat.api.results import (
    ChangeInfo,
    ExplainedRun,
    Explanation,
    HoldInfo,
    NodeInfo,
    RunInfo,
    ScheduleInfo,
)
from celery_dynbeat.broker.task_message import TaskQueues
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Node, NodeKind, Schedule
from celery_dynbeat.health.nodes import Limits, SeenNode, of_kind, seen
from celery_dynbeat.insights.explain.causes import find_cause, story
from celery_dynbeat.insights.explain.facts import Facts
from celery_dynbeat.insights.explain.past import (
    WITHIN,
    Past,
    find_past_causes,
    is_of_stop,
    pause_in_force,
    stopped_by,
)
from celery_dynbeat.insights.subject import spec_of
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import changes, holds, places, runs, schedules
from celery_dynbeat.store.health import read_nodes
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.wrappers import SkippingTrigger

#: For how long a node that ended is a fact.
_NODES_SINCE = timedelta(days=1)
#: Unfinished runs that can explain why a newer one waits or was skipped.
_MAX_UNFINISHED = 10
#: The newest edits that are read. Each filter on the action would read on.
_MAX_CHANGES = 100


def explain(
    context: Context,
    *,
    owner: str,
    name: str,
    at: datetime | None = None,
    run_count: int = 10,
    count: int = 5,
    session: Session | None = None,
) -> Explanation:
    """Return why the schedule ran, or did not run, with its last runs and next fire times.

    ``at`` asks about the fire time in the minute that begins with it. ``run_count`` and ``count``
    are the numbers of runs and fire times. Raises NotFoundError.
    """

    def work(session: Session) -> Explanation:
        mine = OwnerSchedules(context, owner).bound(session=session)
        row = schedules.get(session, owner=owner, name=name)
        facts = _facts(context, session, row, runs_of=mine.runs(name, limit=run_count))
        changes: Sequence[ChangeInfo] = ()
        if at is not None or not row.enabled or any(map(is_of_stop, facts.runs)):
            changes = _changes(session, mine, name)
        if not row.enabled:
            # An earlier schedule may have had the name.
            own = [each for each in changes if each.changed_at >= facts.schedule.created_at]
            facts = replace(facts, pause=pause_in_force(own, until=facts.now))
        found = find_cause(facts)
        if at is not None:
            past = _past(context, session, facts.schedule, changes, at=at)
            found = next(find_past_causes(facts, past, found))
        is_readable = facts.schedule.error is None and facts.schedule.trigger is not None
        return Explanation(
            at=at,
            sentence=found.sentence,
            cause=found.cause.value,
            fix=found.fix,
            now=facts.now,
            schedule=facts.schedule,
            runs=[
                ExplainedRun(run=run, text=story(facts, run) + stopped_by(facts, changes, run))
                for run in facts.runs
            ],
            next=fire_times_of(context, session, row, count=count) if is_readable else [],
            holds=facts.holds,
            queue=facts.queue,
            beats=[_node_info(beat) for beat in facts.beats],
            workers=[_node_info(worker) for worker in facts.consumers],
        )

    return context.read_many(session, work)


def _facts(
    context: Context, session: Session, row: Schedule, *, runs_of: Sequence[RunInfo]
) -> Facts:
    schedule, now, settings = ScheduleInfo.of(row), context.clock.now(), context.settings
    limits = Limits.of(settings)
    found = read_nodes(session, since=now - _NODES_SINCE, names=[Node.queues, Node.tasks])
    nodes = seen(found, now=now, timeout=limits.node_timeout)
    spec = spec_of(context, session, row)
    trigger = None if spec is None else spec.trigger
    next_run_at, oldest = schedule.next_run_at, _MAX_UNFINISHED
    facts = Facts(
        now=now,
        schedule=schedule,
        is_overdue=next_run_at is not None and now - next_run_at > limits.lag,
        holds=[*map(HoldInfo.of, holds.in_force(session, owner=row.owner, now=now))],
        runs=runs_of,
        skips=trigger.skipped if isinstance(trigger, SkippingTrigger) else {},
        unfinished=[
            RunInfo.of(each)
            for each in runs.oldest_unfinished(session, schedule_id=row.id, limit=oldest)
        ],
        queue=TaskQueues(context.app, now=now).of(
            row.task, row.options, args=row.args, kwargs=row.kwargs
        ),
        refused_content=_refused_content(context, schedule),
        beats=of_kind(nodes, NodeKind.BEAT),
        workers=of_kind(nodes, NodeKind.WORKER),
        default_overlap=settings.overlap,
        spec=spec,
        next_fire_at=row.next_fire_at,
    )
    return replace(facts, **_place(context, session, facts.newest))


def spec_of_run(context: Context, run: RunInfo) -> ScheduleSpec | None:
    """Return the present specification of the schedule of a run, or None without one."""
    schedule_id = run.schedule_id
    if schedule_id is None:
        return None

    def work(session: Session) -> ScheduleSpec | None:
        row = schedules.get_id(session, owner=run.owner, schedule_id=schedule_id)
        return None if row is None else spec_of(context, session, row)

    return context.read(None, work)


def _place(context: Context, session: Session, newest: RunInfo | None) -> Mapping[str, Any]:
    """Return the limit for which the run waits, and whether it ignores quiet hours."""
    if newest is None or newest.status != Status.PENDING:
        return {}
    row = places.waiting(session, run_id=newest.id)
    if row is None:
        return {}
    # The caller asked for the first attempt only.
    ignores_quiet = row.ignores_quiet_hours and row.attempt == 0
    cap = context.settings.owner_limits.for_pass().cap_of(row.owner)
    return {"cap": cap, "ignores_quiet": ignores_quiet}


def _refused_content(context: Context, schedule: ScheduleInfo) -> str | None:
    # Manual SQL can write any JSON. The serializer of a task may be in its definition.
    given: object = schedule.options
    app, named = context.app, given.get("serializer") if isinstance(given, Mapping) else None
    task = app.tasks.get(schedule.task)
    serializer = named or getattr(task, "serializer", None) or app.conf.task_serializer
    return refused_content_type(app, serializer) if isinstance(serializer, str) else None


def _past(
    context: Context,
    session: Session,
    schedule: ScheduleInfo,
    changes: Sequence[ChangeInfo],
    *,
    at: datetime,
) -> Past:
    """Read the facts about ``at``: its run, and the trigger in force."""
    edits = (each for each in reversed(changes) if each.name and each.changed_at > at)
    edit = next((each for each in edits if "trigger" in (each.before or {})), None)
    row = runs.first_since(session, schedule_id=schedule.id, since=at)
    run = None if row is None else RunInfo.of(row)
    is_covered = run is not None and (run.fire_at < at + WITHIN or run.fire_count > 1)
    return Past(
        at=at,
        run=run if is_covered else None,
        changes=changes,
        trigger=_trigger_then(session, schedule, edit),
        edit=edit,
        retention=context.settings.history_retention,
    )


def _changes(session: Session, mine: OwnerSchedules, name: str) -> Sequence[ChangeInfo]:
    """Return the edits of the schedule, of its owner and of everything, newest first."""
    found = [
        *mine.changes(name, limit=_MAX_CHANGES),
        *mine.changes("", limit=_MAX_CHANGES),
        *map(ChangeInfo.of, changes.of_everything(session, limit=_MAX_CHANGES)),
    ]
    return sorted(found, key=lambda each: (each.changed_at, each.id), reverse=True)


def _trigger_then(
    session: Session, schedule: ScheduleInfo, edit: ChangeInfo | None
) -> Trigger | None:
    """Return the trigger before ``edit`` with its calendars, or None if it cannot be read."""
    try:
        before = None if edit is None else (edit.before or {}).get("trigger")
        trigger = schedule.trigger if before is None else Trigger.from_json(before)
        return (
            None
            if trigger is None
            else trigger.resolved(owner_clock.read_calendars(session, trigger))
        )
    except InvalidTriggerError:
        return None


def _node_info(node: SeenNode) -> NodeInfo:
    row = node.row
    return NodeInfo(
        kind=row.kind,
        name=row.name,
        state=node.state.value,
        seen_at=node.last_seen_at,
        error=row.error,
    )
