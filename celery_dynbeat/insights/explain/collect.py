"""Read the facts about one schedule. Each query is bounded and follows an index."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import Dynbeat, HoldInfo, OwnerSchedules, RunInfo, ScheduleInfo
from celery_dynbeat.api.edit.options import refused_content_type
from celery_dynbeat.api.usage import slot_usage
from celery_dynbeat.broker.outages import parse_report
from celery_dynbeat.broker.task_message import MessageSender, queue_of
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.owner_limits import Limit
from celery_dynbeat.common.states import Action, Status
from celery_dynbeat.db.models import Node, NodeKind, Schedule
from celery_dynbeat.health.evaluation import Limits, NodeState, state_of
from celery_dynbeat.health.queues import reported_names
from celery_dynbeat.insights.explain.causes import find_cause
from celery_dynbeat.insights.explain.explanation import (
    ExplainedRun,
    Explanation,
    NextFireTime,
    NodeInfo,
)
from celery_dynbeat.insights.explain.facts import Facts, NodeFact
from celery_dynbeat.insights.explain.findings import story
from celery_dynbeat.insights.statistics.upcoming import NextFire, next_fire_times
from celery_dynbeat.planning.admission import full_limit
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import runs, schedules, slots
from celery_dynbeat.store.health import nodes_statement

if TYPE_CHECKING:
    from celery_dynbeat.planning.quiet_hours import Quiet

#: For how long a node that ended is a fact.
_NODES_SINCE = timedelta(days=1)
#: Unfinished runs that can explain why a newer one waits or was skipped.
_MAX_UNFINISHED = 10
#: Newest edits among which the pause is searched. Each filter on the action would read on.
_MAX_CHANGES = 100
_PAUSING = (Action.PAUSE, Action.RESUME)


def explain(
    dynbeat: Dynbeat,
    *,
    owner: str,
    name: str,
    run_count: int = 10,
    count: int = 5,
    session: Session | None = None,
) -> Explanation:
    """Return why the schedule ran, or did not run, with its last runs and next fire times.

    ``run_count`` and ``count`` are their numbers. Raises ScheduleNotFoundError.
    """
    mine = dynbeat.schedules.for_owner(owner)

    def work(session: Session) -> Explanation:
        facts = _facts(dynbeat, mine, session, name=name, run_count=run_count)
        return _explanation(facts, dynbeat.context, session, count=count)

    return dynbeat.context.read_many(session, work)


def _facts(
    dynbeat: Dynbeat, mine: OwnerSchedules, session: Session, *, name: str, run_count: int
) -> Facts:
    context = dynbeat.context
    schedule, now = mine.get(name, session=session), context.clock.now()
    limits = Limits.of(context.settings)
    nodes = _nodes(session, now=now, limits=limits)
    newest = mine.runs(name, limit=run_count, session=session)
    return Facts(
        slot_limit=_slot_limit(context, session, newest, now=now),
        now=now,
        schedule=schedule,
        is_overdue=_is_overdue(schedule, now=now, limits=limits),
        limits=limits,
        holds=mine.holds(session=session),
        runs=newest,
        unfinished=_unfinished(session, schedule),
        queue=_queue(dynbeat, schedule, now=now),
        refused_content=_refused_content(dynbeat, schedule),
        beats=nodes[NodeKind.BEAT],
        workers=nodes[NodeKind.WORKER],
        default_overlap=context.settings.overlap,
        default_jitter=context.settings.jitter,
        **_quiet_hours(session, schedule),
        **_last_pause(mine, session, schedule),
    )


def _quiet_hours(session: Session, schedule: ScheduleInfo) -> Mapping[str, Any]:
    """Return the quiet hours of the schedule, and its next fire time, which may wait in them."""
    row = schedules.get(session, owner=schedule.owner, name=schedule.name)
    return {"quiet": _quiet(row), "next_fire_at": None if row is None else row.next_fire_at}


def quiet_of_run(context: Context, run: RunInfo) -> "Quiet | None":
    """Return the present quiet hours of the schedule of a run, or None without any."""
    schedule_id = run.schedule_id
    if schedule_id is None:
        return None
    return context.read(
        None,
        lambda session: _quiet(schedules.get_id(session, owner=run.owner, schedule_id=schedule_id)),
    )


def _quiet(row: Schedule | None) -> "Quiet | None":
    if row is None or row.quiet_hours is None:
        return None
    # A late import: few owners have quiet hours.
    from celery_dynbeat.planning.quiet_hours import quiet_of  # noqa: PLC0415

    try:
        return quiet_of(row.quiet_hours)
    except InvalidTriggerError:
        # Manual SQL changed the row. Beat quarantines the schedule when it is due.
        return None


def _slot_limit(
    context: Context, session: Session, newest: Sequence[RunInfo], *, now: datetime
) -> Limit | None:
    """Return the limit for which the newest run waits, or None."""
    settings = context.settings.for_pass()
    run = next((each for each in newest if each.status == Status.PENDING), None)
    if run is None or not settings.may_cap_runs or not slots.is_waiting(session, run_id=run.id):
        return None
    usage = slot_usage(session, run.owner, settings=settings, now=now)
    # There is a free slot that beat has not given yet.
    every = (*usage.caps.running, *usage.caps.starts)
    return full_limit(usage.caps, usage.used) or next(iter(every), None)


def _queue(dynbeat: Dynbeat, schedule: ScheduleInfo, *, now: datetime) -> str | None:
    """Return the queue of the messages, or None if it is not known. Imports the tasks."""
    app = dynbeat.app
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


def _refused_content(dynbeat: Dynbeat, schedule: ScheduleInfo) -> str | None:
    # Manual SQL can write any JSON. The serializer of a task may be in its definition.
    given: object = schedule.options
    app, named = dynbeat.app, given.get("serializer") if isinstance(given, Mapping) else None
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


def _last_pause(
    mine: OwnerSchedules, session: Session, schedule: ScheduleInfo
) -> Mapping[str, Any]:
    """Return who paused the schedule, and when, if the audit has it."""
    if schedule.enabled:
        return {}
    # An earlier schedule may have had the name, and manual SQL can pause without an audit.
    changes = mine.changes(
        schedule.name, since=schedule.created_at, limit=_MAX_CHANGES, session=session
    )
    last = next((each for each in changes if each.action in _PAUSING), None)
    if last is None or last.action != Action.PAUSE:
        return {}
    return {"paused_by": last.actor, "paused_at": last.changed_at}


def _next(
    context: Context,
    schedule: ScheduleInfo,
    session: Session,
    *,
    holds: Sequence[HoldInfo],
    count: int,
) -> Sequence[NextFireTime]:
    found = next_fire_times(
        context, owner=schedule.owner, name=schedule.name, count=count, session=session
    )
    return [_next_fire_time(each, holds) for each in found]


def _next_fire_time(fire: NextFire, holds: Sequence[HoldInfo]) -> NextFireTime:
    notes = [note for note in (fire.skip_reason, fire.clock_note, fire.quiet_note) if note]
    notes += ["held"] if any(hold.covers(fire.at) for hold in holds) else []
    return NextFireTime(at=fire.at, local=fire.local.isoformat(), note="; ".join(notes) or None)


def _explanation(facts: Facts, context: Context, session: Session, *, count: int) -> Explanation:
    found = find_cause(facts)
    return Explanation(
        sentence=found.sentence,
        cause=found.cause.value,
        fix=found.fix,
        now=facts.now,
        schedule=facts.schedule,
        runs=[ExplainedRun(run=run, text=story(facts, run)) for run in facts.runs],
        next=_next(context, facts.schedule, session, holds=facts.holds, count=count),
        holds=facts.holds,
        queue=facts.queue,
        beats=[_node_info(beat) for beat in facts.beats],
        workers=[_node_info(worker) for worker in facts.consumers],
    )


def _node_info(node: NodeFact) -> NodeInfo:
    return NodeInfo(name=node.name, state=node.state.value, seen_at=node.seen_at, error=node.error)
