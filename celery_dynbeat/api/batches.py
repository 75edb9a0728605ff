"""Run past fire times of a schedule, or ended runs again: one, or many as a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api import audit, checks
from celery_dynbeat.api.results import BatchInfo
from celery_dynbeat.api.timing import RowPlan
from celery_dynbeat.common.errors import (
    InvalidArgumentError,
    NotFoundError,
)
from celery_dynbeat.common.filters import StatusFilter
from celery_dynbeat.common.infos import as_json
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import (
    RERUNNABLE,
    Action,
    Origin,
    Status,
    can_rerun,
    was_started,
)
from celery_dynbeat.common.text import MAX_BATCH
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.planning import with_search_budget, with_skipped
from celery_dynbeat.planning.backfill_planning import fire_times
from celery_dynbeat.planning.plan import MICROSECOND
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import batches, runs, schedules
from celery_dynbeat.store.batches import (
    Batch,
    Record,
    RerunFilter,
    RerunPosition,
    add_backfill,
    add_reruns,
    is_fire_time,
    rerun_record,
)
from celery_dynbeat.triggers.base import PLAN_STEPS

#: Runs of a batch that beat sends in a minute.
MAX_PER_MINUTE = MAX_BATCH


@dataclass(frozen=True, slots=True)
class Pace:
    """How many runs of a batch beat sends in a minute, and whether it sends them ``now``.

    The others wait for the end of the quiet hours of their owner.
    """

    per_minute: int
    now: bool

    def __post_init__(self) -> None:
        checks.check_integer("per_minute", self.per_minute, minimum=1, maximum=MAX_PER_MINUTE)
        checks.check_flag("now", self.now)

    def batch(self, origin: Origin, *, size: int, now: datetime) -> Batch:
        """Return the maker of the rows of a batch."""
        return Batch(
            origin, now=now, ignores_quiet_hours=self.now, per_minute=self.per_minute, size=size
        )


def _record(
    context: Context,
    session: Session,
    batch: BatchInfo,
    action: Action,
    *,
    owner: str | None,
    name: str | None,
    given: Mapping[str, Any],
) -> BatchInfo:
    """Write the batch to the audit, notify beat of it and return it."""
    made = {
        "batch_id": batch.batch_id,
        "created": batch.total,
        "excluded": batch.excluded,
        "left_since": batch.left_since,
    }
    edit = audit.Edit(owner=owner, name=name or "", action=action, new=as_json({**given, **made}))
    audit.record(context, session, [edit], now=batch.created_at)
    if batch.batch_id is not None:
        context.notifier.notify(session)
    return batch


#: An ``until`` in the future by at most this means now: the caller's clock may be ahead.
MAX_CLOCK_SKEW = timedelta(minutes=1)


def backfill(plan: RowPlan, *, since: datetime, until: datetime, pace: Pace) -> BatchInfo:
    """Record the runs of the past fire times of a locked row, as a batch."""
    context, session, row, now = plan.context, plan.session, plan.row, plan.now
    if since > until:
        raise checks.invalid("since", since, f"must not be after until = {until}", "order")
    if until > now + MAX_CLOCK_SKEW:
        rule = f"must not lie in the future (it is {now} now): beat runs future fire times itself"
        raise checks.invalid("until", until, rule, "future")
    context.settings.owner_limits.check_task(owner=row.owner, task=row.task)
    schedules.touch(session, [row.id])
    # A fire time at this instant has passed.
    end = max(since, min(until, now + MICROSECOND))
    with naming_schedule(row):
        spec = with_skipped(plan.spec())
        # A quarter of a budget is spare. The row is locked, so the search must end soon.
        limited = with_search_budget(spec, steps=4 * PLAN_STEPS)
        instants = fire_times(limited, after=since - MICROSECOND, until=end, limit=MAX_BATCH + 1)
    if not instants:
        raise _no_fire_time(row, since, end)
    left_since = None
    if len(instants) > MAX_BATCH:
        left_since = instants.pop()
    elif not limited.trigger.has_spare_budget:
        left_since = instants[-1] + MICROSECOND
        left_since = left_since if left_since < end else None
    if row.next_fire_at is not None and row.finished_at is None:
        # The claim decides about the others, also if they have passed.
        left_since = None if left_since is None or left_since >= row.next_fire_at else left_since
        instants = [at for at in instants if at < row.next_fire_at]
    present = batches.fire_times_with_run(session, schedule_id=row.id, instants=instants)
    missing = [at for at in instants if at not in present]
    batch = pace.batch(Origin.BACKFILL, size=len(missing), now=now)
    created = add_backfill(
        session,
        row,
        missing,
        batch=batch,
        trigger=with_search_budget(spec, steps=4 * PLAN_STEPS).trigger,
        now=now,
        settings=context.settings,
    )
    made = BatchInfo.recorded(
        batch.id, number=created, considered=len(instants), left_since=left_since, now=now
    )
    given = {"since": since, "until": until, "per_minute": pace.per_minute, "now": pace.now}
    return _record(
        context, session, made, Action.BACKFILL, owner=row.owner, name=row.name, given=given
    )


def _no_fire_time(row: Schedule, since: datetime, until: datetime) -> Exception:
    anchor = row.start_at or row.anchor_at or row.created_at
    rule = (
        f"the schedule has no fire time up to {until}, within its start_at = {row.start_at} and"
        f" end_at = {row.end_at}: choose a span in which it fires (an interval without its own"
        f" anchor counts from {anchor})"
    )
    return checks.invalid("since", since, rule)


#: Runs that one call reads, and how many of them at a time.
MAX_SEARCHED = 10_000_000
SEARCHED_AT_ONCE = 10_000


def rerun_filter(
    *,
    owner: str | None,
    since: datetime,
    until: datetime | None,
    ended_before: datetime | None,
    status: StatusFilter,
    name: str | None,
    task: str | None,
    now: datetime,
) -> RerunFilter:
    """Return the filter of ``rerun_many`` from its arguments, checked."""
    since = checks.check_required_instant("since", since)
    until = checks.check_instant("until", until) or now
    if since > now:
        rule = f"must not lie in the future (it is {now} now)"
        raise checks.invalid("since", since, rule, "future")
    if since > until:
        raise checks.invalid("since", since, f"must not be after until = {until}", "order")
    return RerunFilter(
        owner=owner,
        name=None if name is None else checks.check_name("name", name),
        task=None if task is None else checks.check_name("task", task),
        status=_check_statuses(status),
        since=since,
        until=min(until, now),
        ended_before=min(checks.check_instant("ended_before", ended_before) or now, now),
    )


def _check_statuses(status: StatusFilter) -> tuple[str, ...]:
    if status == Status.SKIPPED:
        rule = "has no run to repeat: call backfill(), or rerun() for a run that its task skipped"
        raise checks.invalid("status", status, rule)
    statuses = checks.check_choices("status", status, *RERUNNABLE)
    if not statuses:
        raise checks.invalid("status", status, f"must be one or several of {', '.join(RERUNNABLE)}")
    return statuses


def _with_schedule(session: Session, matching: RerunFilter) -> RerunFilter:
    """Return the filter with the id of its schedule, if it names a schedule."""
    if matching.owner is None or matching.name is None:
        return matching
    schedule_id = schedules.find_id(session, owner=matching.owner, name=matching.name)
    if schedule_id is None:
        raise NotFoundError("schedule", matching.name, owner=matching.owner)
    return replace(matching, schedule_id=schedule_id)


class _Search(NamedTuple):
    """The first runs that match, in the order of the search, and where the others begin."""

    runs: Sequence[RerunPosition]
    left_since: datetime | None


def search(session: Session, matching: RerunFilter) -> _Search:
    """Return the first MAX_BATCH runs that match.

    Raises InvalidArgumentError if too many runs do not match.
    """
    matching = _with_schedule(session, matching)
    found: list[RerunPosition] = []
    searched, after = 0, matching.start()
    while True:
        last = batches.last_position(session, matching, after=after, limit=SEARCHED_AT_ONCE)
        limit = MAX_BATCH + 1 - len(found)
        found += batches.find(session, matching, after=after, last=last, limit=limit)
        if len(found) > MAX_BATCH:
            # A search of all owners has the order of the creation. The runs that have a rerun then
            # do not match again.
            at = matching.since if matching.owner is None else found[-1].at
            return _Search(found[:-1], at)
        if last is None:
            return _Search(found, None)
        searched += SEARCHED_AT_ONCE
        if searched >= MAX_SEARCHED:
            raise _too_many(matching, f"more than {MAX_SEARCHED:,} runs lie in this span")
        after = last


def rerun_many(
    context: Context, session: Session, matching: RerunFilter, found: _Search, pace: Pace
) -> BatchInfo:
    """Record the reruns of what was found, as a batch."""
    ids = {each.schedule_id for each in found.runs}
    rows = schedules.lock_ids(session, sorted(ids))
    now = context.clock.now()
    settings = context.settings.for_pass()
    runnable = {row.id for row in rows.values() if _can_run(row, settings=settings)}
    # Under the locks: another transaction may have run them again since the search.
    run_ids = [each.run_id for each in found.runs]
    newest = batches.newest_by_ids(
        session, run_ids, owner=matching.owner, statuses=matching.statuses
    )
    by_id = {row.id: row for row in newest if row.schedule_id in runnable}
    chosen = [by_id[run_id] for run_id in run_ids if run_id in by_id]
    if found.left_since is not None and not chosen:
        raise _too_many(matching, f"none of the first {MAX_BATCH:,} runs can run again")
    batch = pace.batch(Origin.RERUN, size=len(chosen), now=now)
    records = [rerun_record(batch, rows[run.schedule_id], run, after=run.fire_at) for run in chosen]
    repeated = _insert(context, session, records, rows)
    made = BatchInfo.recorded(
        batch.id,
        number=len(records) - len(repeated),
        considered=len(found.runs),
        left_since=found.left_since,
        now=now,
    )
    given = {
        "since": matching.since,
        "until": matching.until,
        "ended_before": matching.ended_before,
        "statuses": list(matching.statuses),
        "task": matching.task,
        "per_minute": pace.per_minute,
        "now": pace.now,
    }
    return _record(
        context,
        session,
        made,
        Action.RERUN_MANY,
        owner=matching.owner,
        name=matching.name,
        given=given,
    )


def _can_run(row: Schedule, *, settings: Settings) -> bool:
    try:
        settings.owner_limits.check_task(owner=row.owner, task=row.task)
    except ValueError:
        return False
    return True


def _insert(
    context: Context, session: Session, records: Sequence[Record], rows: Mapping[int, Schedule]
) -> set[str]:
    """Insert the reruns of locked schedules. Return the ids of those that were repeated before."""
    settings = context.settings
    schedules.touch(session, sorted({record["schedule_id"] for record in records}))
    calendars = schedules.calendars_of(session, rows.values())

    def is_reserved(record: Record) -> bool:
        row, instant = rows[record["schedule_id"]], record["fire_at"]
        return is_fire_time(row, instant, calendars=calendars, settings=settings)

    return add_reruns(session, records, is_reserved=is_reserved, settings=settings)


def _too_many(matching: RerunFilter, problem: str) -> InvalidArgumentError:
    rule = (
        f"{problem} (until = {matching.until}), the limit of one call: split the span, or name a"
        " schedule with name= or an owner with for_owner()"
    )
    return checks.invalid("since", matching.since, rule)


def find_run(session: Session, *, owner: str | None, run_id: str) -> Run:
    """Return the run; ``owner=None`` means any owner. Raises NotFoundError."""
    run = runs.get(session, run_id=run_id)
    if run is None or (owner is not None and run.owner != owner):
        raise NotFoundError("run", run_id, owner=owner)
    return run


def rerun(context: Context, session: Session, run: Run, *, owner: str | None, at_once: bool) -> Run:
    """Record a pending rerun that is overdue already, so that any beat publishes it at once.

    Raises ConflictError if the run cannot run again now, and InvalidArgumentError if its task is
    not allowed.
    """
    row = _lock_schedule(session, run, owner=owner)
    now = context.clock.now()
    _check_ended(run)
    context.settings.owner_limits.check_task(owner=row.owner, task=row.task)
    newest = next(iter(batches.newest_of_family(session, run)), run)
    if newest.finished_at is None:
        rule = f"its rerun {newest.id} is {newest.status}: wait until it ends"
        raise checks.conflict("run_id", newest.rerun_of, rule, code="unfinished")
    batch = Batch(Origin.RERUN, now=now, ignores_quiet_hours=at_once)
    after = max(newest.fire_at, run.fire_at)
    record = rerun_record(batch, row, run, after=after)
    if _insert(context, session, [record], {row.id: row}):
        rule = (
            "it was rerun after the snapshot of this transaction: repeat the transaction, or use"
            " READ COMMITTED"
        )
        raise checks.conflict("run_id", run.id, rule, code="stale")
    run_id = str(record["id"])
    context.notifier.notify(session)
    made = runs.get(session, run_id=run_id)
    assert made is not None  # noqa: S101 - inserted above
    return made


def _lock_schedule(session: Session, run: Run, *, owner: str | None) -> Schedule:
    """Return the schedule of ``run``, locked, and read the run again under the lock.

    Raises NotFoundError if the schedule moved from ``owner`` to another owner.
    """
    row = None
    if run.schedule_id is not None:
        row = schedules.lock_id(session, schedule_id=run.schedule_id)
    session.refresh(run)
    if row is None or run.schedule_id is None:
        rule = f"schedule {run.name!r} was deleted: create() it, and call run_now()"
        raise checks.conflict("run_id", run.id, rule, code="deleted")
    if owner is not None and row.owner != owner:
        raise NotFoundError("run", run.id, owner=owner)
    return row


def _check_ended(run: Run) -> None:
    if not was_started(run.status, run.attempt):
        rule = (
            "the fire time was skipped, there is no run to repeat: call backfill() with since ="
            f" {run.fire_at} and a later until"
        )
        raise checks.conflict("run_id", run.id, rule, code="not_run")
    if not can_rerun(run.status, run.attempt):
        rule = f"the run is {run.status}: wait until it ends"
        raise checks.conflict("run_id", run.id, rule, code="unfinished")
