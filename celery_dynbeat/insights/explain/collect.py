"""Read the facts about one schedule. Each query is bounded and follows an index."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import ChangeInfo, OwnerSchedules, RunInfo, ScheduleInfo
from celery_dynbeat.api.edit import used_calendars
from celery_dynbeat.api.options import refused_content_type
from celery_dynbeat.api.results.explanation import (
    ExplainedRun,
    Explanation,
    NextFireTime,
    NodeInfo,
)
from celery_dynbeat.broker.outages import parse_report
from celery_dynbeat.broker.task_message import MessageSender, queue_of
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.states import Action, Status
from celery_dynbeat.db.models import Node, NodeKind, Schedule
from celery_dynbeat.health.evaluation import Limits, NodeState, state_of
from celery_dynbeat.health.queues import reported_names
from celery_dynbeat.insights.explain.causes import find_cause
from celery_dynbeat.insights.explain.facts import Facts, NodeFact
from celery_dynbeat.insights.explain.findings import story
from celery_dynbeat.insights.explain.past import (
    WITHIN,
    Past,
    find_past_cause,
    is_of_stop,
    stopped_by,
)
from celery_dynbeat.insights.statistics.upcoming import NextFire, next_fire_times
from celery_dynbeat.planning import ScheduleSpec, spec_from_row, with_search_budget
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import places, runs, schedules
from celery_dynbeat.store.health import nodes_statement
from celery_dynbeat.store.schedules import change_pages
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.wrappers import SkippingTrigger

#: For how long a node that ended is a fact.
_NODES_SINCE = timedelta(days=1)
#: Unfinished runs that can explain why a newer one waits or was skipped.
_MAX_UNFINISHED = 10
#: Newest edits among which the pause is searched. Each filter on the action would read on.
_MAX_CHANGES = 100
_PAUSING = (Action.PAUSE, Action.RESUME)


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
    are the numbers of runs and fire times. Raises ScheduleNotFoundError.
    """

    def work(session: Session) -> Explanation:
        mine = OwnerSchedules(context, owner).bound(session=session)
        facts = _facts(context, mine, session, name=name, run_count=run_count)
        found = find_cause(facts)
        if at is not None:
            found = find_past_cause(facts, _past(context, mine, session, facts, at=at), found)
        changes: Sequence[ChangeInfo] = ()
        if any(map(is_of_stop, facts.runs)):
            changes = _changes(session, mine, facts.schedule)
        explained = [
            ExplainedRun(run=run, text=story(facts, run) + stopped_by(facts, changes, run))
            for run in facts.runs
        ]
        return Explanation(
            at=at,
            sentence=found.sentence,
            cause=found.cause.value,
            fix=found.fix,
            now=facts.now,
            schedule=facts.schedule,
            runs=explained,
            next=_next(context, facts.schedule, session, count=count),
            holds=facts.holds,
            queue=facts.queue,
            beats=[_node_info(beat) for beat in facts.beats],
            workers=[_node_info(worker) for worker in facts.consumers],
        )

    return context.read_many(session, work)


def _facts(
    context: Context, mine: OwnerSchedules, session: Session, *, name: str, run_count: int
) -> Facts:
    schedule, now = mine.get(name), context.clock.now()
    limits = Limits.of(context.settings)
    nodes = _nodes(session, now=now, limits=limits)
    newest = mine.runs(name, limit=run_count)
    facts = Facts(
        now=now,
        schedule=schedule,
        is_overdue=_is_overdue(schedule, now=now, limits=limits),
        holds=mine.holds(),
        runs=newest,
        unfinished=_unfinished(session, schedule),
        queue=_queue(context, schedule, now=now),
        refused_content=_refused_content(context, schedule),
        beats=nodes[NodeKind.BEAT],
        workers=nodes[NodeKind.WORKER],
        default_overlap=context.settings.overlap,
        **_plan(context, session, schedule),
        **_last_pause(mine, schedule),
    )
    return replace(facts, **_place(context, session, facts.newest))


def _plan(context: Context, session: Session, schedule: ScheduleInfo) -> Mapping[str, Any]:
    """Return the specification of the schedule, and its next fire time, which may wait."""
    row = schedules.get(session, owner=schedule.owner, name=schedule.name)
    if row is None:
        return {}
    spec = _spec(context, session, row)
    trigger = None if spec is None else spec.trigger
    return {
        "spec": spec,
        "next_fire_at": row.next_fire_at,
        "skips": trigger.skipped if isinstance(trigger, SkippingTrigger) else {},
    }


def spec_of_run(context: Context, run: RunInfo) -> ScheduleSpec | None:
    """Return the present specification of the schedule of a run, or None without one."""
    schedule_id = run.schedule_id
    if schedule_id is None:
        return None

    def work(session: Session) -> ScheduleSpec | None:
        row = schedules.get_id(session, owner=run.owner, schedule_id=schedule_id)
        return None if row is None else _spec(context, session, row)

    return context.read(None, work)


def _spec(context: Context, session: Session, row: Schedule) -> ScheduleSpec | None:
    try:
        calendars = schedules.calendars_of(session, [row])
        return with_search_budget(spec_from_row(row, context.settings, calendars))
    except InvalidTriggerError:
        # Manual SQL changed the row. Beat quarantines the schedule when it is due.
        return None


def _place(context: Context, session: Session, newest: RunInfo | None) -> Mapping[str, Any]:
    """Return the limit for which the run waits, and whether it ignores quiet hours."""
    if newest is None or newest.status != Status.PENDING:
        return {}
    row = places.waiting(session, run_id=newest.id)
    if row is None:
        return {}
    # The caller asked for the first attempt only.
    ignores_quiet = row.ignores_quiet_hours and row.attempt == 0
    settings = context.settings.for_pass()
    cap = settings.cap_of(row.owner) if settings.may_cap_runs else None
    return {"cap": cap, "ignores_quiet": ignores_quiet}


def _queue(context: Context, schedule: ScheduleInfo, *, now: datetime) -> str | None:
    """Return the queue of the messages, or None if it is not known. Imports the tasks."""
    app = context.app
    # Manual SQL can write any JSON.
    options: Any = schedule.options
    if not isinstance(options, Mapping):
        return None
    # The queue of a task may be in its definition.
    app.loader.import_default_modules()
    sender = MessageSender(app, now=lambda: now, driver_type="")
    return queue_of(
        sender,
        task=schedule.task,
        args=schedule.args,
        kwargs=schedule.kwargs,
        options=options,
        now=now,
    )


def _refused_content(context: Context, schedule: ScheduleInfo) -> str | None:
    # Manual SQL can write any JSON. The serializer of a task may be in its definition.
    given: object = schedule.options
    app, named = context.app, given.get("serializer") if isinstance(given, Mapping) else None
    task = app.tasks.get(schedule.task)
    serializer = named or getattr(task, "serializer", None) or app.conf.task_serializer
    return refused_content_type(app, serializer) if isinstance(serializer, str) else None


def _nodes(
    session: Session, *, now: datetime, limits: Limits
) -> Mapping[NodeKind, Sequence[NodeFact]]:
    since = now - _NODES_SINCE
    return {
        kind: [
            _node_fact(node, state_of(node, now=now, timeout=limits.node_timeout))
            for node in session.scalars(nodes_statement(kind, since=since))
        ]
        for kind in NodeKind
    }


def _node_fact(node: Node, state: NodeState) -> NodeFact:
    return NodeFact(
        name=node.name,
        state=state,
        seen_at=node.stopped_at or node.seen_at,
        started_at=node.started_at,
        error=node.error,
        queues=reported_names(node.queues),
        tasks=reported_names(node.tasks),
        outages=parse_report(node.outages),
    )


def _is_overdue(schedule: ScheduleInfo, *, now: datetime, limits: Limits) -> bool:
    return schedule.next_run_at is not None and now - schedule.next_run_at > limits.lag


def _unfinished(session: Session, schedule: ScheduleInfo) -> Sequence[RunInfo]:
    rows = runs.oldest_unfinished(session, schedule_id=schedule.id, limit=_MAX_UNFINISHED)
    return [RunInfo.of(row) for row in rows]


def _last_pause(mine: OwnerSchedules, schedule: ScheduleInfo) -> Mapping[str, Any]:
    """Return who paused the schedule, and when, if the audit has it."""
    if schedule.enabled:
        return {}
    # An earlier schedule may have had the name, and manual SQL can pause without an audit.
    changes = mine.changes(schedule.name, since=schedule.created_at, limit=_MAX_CHANGES)
    last = next((each for each in changes if each.action in _PAUSING), None)
    if last is None or last.action != Action.PAUSE:
        return {}
    return {"paused_by": last.actor, "paused_at": last.changed_at}


def _past(
    context: Context, mine: OwnerSchedules, session: Session, facts: Facts, *, at: datetime
) -> Past:
    """Read the facts about ``at``: its run, the audit, and the trigger in force."""
    schedule, changes = facts.schedule, _changes(session, mine, facts.schedule)
    edit = next(
        (
            each
            for each in reversed(changes)
            if each.name and each.changed_at > at and "trigger" in (each.before or {})
        ),
        None,
    )
    row = runs.first_since(session, schedule_id=schedule.id, since=at)
    run = None if row is None else RunInfo.of(row)
    is_covered = run is not None and (run.scheduled_for < at + WITHIN or run.fire_count > 1)
    return Past(
        at=at,
        run=run if is_covered else None,
        changes=changes,
        trigger=_trigger_then(session, schedule, edit),
        edit=edit,
        retention=context.settings.history_retention,
    )


def _changes(
    session: Session, mine: OwnerSchedules, schedule: ScheduleInfo
) -> Sequence[ChangeInfo]:
    """Return the edits of the schedule, of its owner and of everything, newest first."""
    found = [
        *mine.changes(schedule.name, limit=_MAX_CHANGES),
        *mine.changes("", limit=_MAX_CHANGES),
        *map(ChangeInfo.of, change_pages.of_everything(session, limit=_MAX_CHANGES)),
    ]
    return sorted(found, key=lambda each: (each.changed_at, each.id), reverse=True)


def _trigger_then(
    session: Session, schedule: ScheduleInfo, edit: ChangeInfo | None
) -> Trigger | None:
    """Return the trigger before ``edit`` with its calendars, or None if it cannot be read."""
    try:
        before = None if edit is None else (edit.before or {}).get("trigger")
        trigger = schedule.trigger if before is None else Trigger.from_json(before)
        return None if trigger is None else trigger.resolved(used_calendars.read(session, trigger))
    except InvalidTriggerError:
        return None


def _next(
    context: Context,
    schedule: ScheduleInfo,
    session: Session,
    *,
    count: int,
) -> Sequence[NextFireTime]:
    found = next_fire_times(
        context, owner=schedule.owner, name=schedule.name, count=count, session=session
    )
    return [_next_fire_time(each) for each in found]


def _next_fire_time(fire: NextFire) -> NextFireTime:
    notes = [note for note in (fire.skip_reason, fire.clock_note, fire.wait_note) if note]
    return NextFireTime(at=fire.at, local=fire.local.isoformat(), note="; ".join(notes) or None)


def _node_info(node: NodeFact) -> NodeInfo:
    return NodeInfo(name=node.name, state=node.state.value, seen_at=node.seen_at, error=node.error)
