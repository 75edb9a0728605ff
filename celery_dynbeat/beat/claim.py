"""Claim, plan and record due schedules in one transaction.

    due rows, locked -> one Decision each -> insert the runs -> cancel replaced runs -> advance rows

- After the commit, each due fire time has a ``pending`` run or is covered by a ``skipped`` row. The
  schedules have their next fire times. After a rollback, nothing has changed.
- A schedule that cannot be planned is quarantined. The other schedules are not affected.
- A due schedule whose owner is held gets no run and keeps its fire time (``beat.holding``).
- A due schedule whose last runs all failed may be paused instead (``beat.holding``).
- A schedule with a trigger that this version does not support stays unchanged, for a newer beat.
  ``warn_unsupported`` reports it. The same is true for a time zone that this process does not know.
- If the database refuses the change of one row, the others are changed (``beat.refused``).

Fairness: if more rows are due than fit into a batch, owners with a large share of the previous
batch come second. The other owners get up to half of the next batch first. No owner therefore waits
for all runs of another owner, and each owner makes progress. Planning time is shared in the same
way: owners whose schedules take long to plan come second, and a claim plans for a limited time.
Rows that the claim does not reach stay unchanged. The commit unlocks them, and they are due for the
next claim.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from sqlalchemy.orm import Session

from celery_dynbeat.beat import fairness
from celery_dynbeat.beat.fairness import PlanningTime
from celery_dynbeat.beat.holding import hold_rows, pause_failing, quarantine_of
from celery_dynbeat.beat.refused import LeftToNewerError, Part, UnknownZone, changing
from celery_dynbeat.common.errors import (
    InvalidTriggerError,
    UnknownZoneError,
    UnusableCalendarError,
    concerns_process,
)
from celery_dynbeat.common.run_ids import created_at, new_run_id
from celery_dynbeat.common.settings import Settings, check_task_allowed
from celery_dynbeat.common.states import MIN_LATE, Status, Wait
from celery_dynbeat.common.text import MAX_COUNT
from celery_dynbeat.db.models import Origin
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    SpecColumns,
    as_skips,
    calendar_names,
    calendars_behind,
    max_run_time,
    skips_in,
    spec_from_row,
    with_search_budget,
)
from celery_dynbeat.planning.plan import (
    MICROSECOND,
    OutgoingRun,
    Plan,
    blocked_fire,
    due_at,
    first_planned,
    plan,
    run_at,
    skip_missed,
)
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.store.schedules import calendars_of, due, run_rows
from celery_dynbeat.store.schedules.due import DueSchedule
from celery_dynbeat.store.schedules.run_rows import AddedRuns
from celery_dynbeat.telemetry import emit, emit_on_commit, events, has_listeners
from celery_dynbeat.triggers import KINDS
from celery_dynbeat.triggers.wrappers import unwrapped

#: The maximum number of fire times of one schedule that one pass sends with catch_up="all".
CATCH_UP_BATCH = 100
#: In a full batch, a schedule whose new run replaces a locked run is due again after this time.
LOCKED_RUN_PAUSE = timedelta(milliseconds=500)
#: The maximum number of batches of unplanned schedules that one pass reads if calendars are locked.
MAX_UNPLANNED_BATCHES = 5
#: The maximum number of schedules with an unsupported trigger that are reported.
MAX_WARNED = 20
#: The end of the last hold of everything, if there was none.
_NO_HOLD = datetime.min.replace(tzinfo=UTC)

#: Returns until when a new run is deferred because its queue is refused, or None to record it now.
OutageDelay = Callable[[OutgoingRun], datetime | None]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The result of one claim.

    ``handled`` is the number of rows that were changed. ``outgoing`` are the new runs to publish.
    ``terminate`` are the ids of running runs that a newer run replaces. ``is_full`` means that more
    rows may be due than fit into a batch or its planning time. The owners ``costly_in_rows`` had a
    large share of a full batch. The schedules of ``costly_owners`` took long to plan.
    ``has_waiting`` means that new runs wait for a place.
    """

    handled: int
    outgoing: Sequence[OutgoingRun]
    terminate: Sequence[str]
    is_full: bool
    costly_in_rows: frozenset[str]
    costly_owners: frozenset[str]
    has_waiting: bool = False


class _Decision(NamedTuple):
    """What a transaction writes for one schedule, and which of its runs are sent.

    If ``is_change`` is false, the row already has these values.

    ``change`` has the columns of its row. ``records`` are new rows of history. ``replaces`` means
    that the new run cancels the previous runs. ``late`` is the oldest run that is sent, if it is
    late and a listener uses late runs.
    """

    owner: str
    change: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]] = ()
    outgoing: Sequence[OutgoingRun] = ()
    replaces: bool = False
    quarantined: events.ScheduleQuarantined | None = None
    late: events.LateRun | None = None
    is_change: bool = True


def claim(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    costly_in_rows: frozenset[str] = frozenset(),
    costly_owners: frozenset[str] = frozenset(),
    since: datetime | None = None,
    outage_delay: OutageDelay | None = None,
    held_until: datetime | None = None,
    part: Part | None = None,
) -> Claimed:
    """Claim a batch of due schedules, record their runs, and return the runs to publish.

    ``costly_in_rows`` come from the previous claim, ``costly_owners`` from the claims of the last
    seconds. Both come second. No row is due before ``since``. A schedule whose queue is refused
    stays unplanned until the instant that ``outage_delay`` returns. The last hold of everything
    ended at ``held_until``.

    ``part`` is the part of the due rows to claim. Raises RefusedBatchError if the database refuses
    a row, and LeftToNewerError if this process does not know the time zone of a row.
    """
    part = part or Part(settings.batch_size)
    second = costly_in_rows | costly_owners if part.is_full else frozenset()
    rows = _lock_due(session, now=now, part=part, second=second, since=since)
    with changing(session, rows, part):
        return _claim_rows(
            session,
            rows,
            now=now,
            settings=settings,
            costly_owners=costly_owners,
            outage_delay=outage_delay,
            held_until=held_until,
            part=part,
        )


def _claim_rows(
    session: Session,
    rows: Sequence[DueSchedule],
    *,
    now: datetime,
    settings: Settings,
    costly_owners: frozenset[str],
    outage_delay: OutageDelay | None,
    held_until: datetime | None,
    part: Part,
) -> Claimed:
    batch_size = part.limit
    locked = len(rows)
    rows, held = hold_rows(session, rows, now=now, poll_interval=settings.poll_interval)
    rows, paused = pause_failing(session, rows, now=now, settings=settings)
    overlap = _overlap_state(session, rows, now=now, settings=settings)
    rows, replaces_locked = _without_locked_runs(session, rows, overlap, settings=settings)
    decide = partial(
        _decide_due,
        now=now,
        settings=settings,
        overlap=overlap,
        # Read after the rows are locked, so that a day counts as soon as upsert() has committed.
        calendars=calendars_of(session, rows),
        outage_delay=outage_delay,
        late_since=(held_until or _NO_HOLD) if has_listeners(events.RunsLate) else None,
    )
    planning_time = PlanningTime(batch_size=batch_size, costly_owners=costly_owners)
    decisions, is_out_of_time = _decide_rows(
        rows, decide, now=now, batch_size=batch_size, planning_time=planning_time
    )
    sending = sum(len(decision.outgoing) for decision in decisions)
    fills_batch = max(locked, sending) >= batch_size
    if fills_batch:
        # They are the oldest rows, so the next batches would consist of them alone.
        again_at = now + LOCKED_RUN_PAUSE
        decisions += [
            _Decision(row.owner, {"id": row.id, "next_run_at": again_at}) for row in replaces_locked
        ]
    added = _record(session, decisions, now=now, settings=settings)
    new, waiting = added
    terminate = _replace_runs(session, decisions, added, now=now)
    _advance(session, decisions, new)
    return Claimed(
        handled=len(decisions) + held + paused,
        outgoing=[
            run
            for decision in decisions
            for run in decision.outgoing
            if run.run_id in new and run.run_id not in waiting
        ],
        terminate=terminate,
        is_full=is_out_of_time or fills_batch,
        costly_in_rows=_large_owners(decisions, batch_size)
        if fills_batch and part.is_full
        else frozenset(),
        costly_owners=planning_time.costly_owners(),
        has_waiting=bool(waiting),
    )


def _decide_rows(
    rows: Sequence[DueSchedule],
    decide: Callable[..., _Decision],
    *,
    now: datetime,
    batch_size: int,
    planning_time: PlanningTime,
) -> tuple[list[_Decision], bool]:
    """Decide about the rows that fit into the batch and its planning time.

    The second result is true if the time was too short for a row of an owner that is not costly.
    """
    decisions: list[_Decision] = []
    sending = 0
    is_out_of_time = False
    unknown: list[UnknownZone] = []
    for row in rows:
        if sending >= batch_size:
            # There is a backlog. The other rows stay due for the next pass.
            break
        if not planning_time.has_time_for(row.owner):
            # If only rows of costly owners are left, they must not delay backfills and pruning.
            is_out_of_time = is_out_of_time or not planning_time.is_costly(row.owner)
            continue
        limit = min(batch_size - sending, CATCH_UP_BATCH)
        try:
            decision = _decide_or_quarantine(partial(decide, limit=limit), row, now=now)
        except UnknownZoneError as error:
            unknown.append(UnknownZone(row, error))
            continue
        decisions.append(decision)
        sending += len(decision.outgoing)
        planning_time.add_row(row.owner)
    if unknown:
        raise LeftToNewerError(unknown)
    return decisions, is_out_of_time


def _decide_or_quarantine(
    decide: Callable[[DueSchedule], _Decision], row: DueSchedule, *, now: datetime
) -> _Decision:
    """Decide about a row. Raises UnknownZoneError, and the error of a process that is at fault."""
    try:
        decision = decide(row)
    except UnknownZoneError:
        # The tz database of a newer beat may have the zone.
        raise
    # Invalid text, a bug in a trigger: only this row is affected.
    except Exception as error:
        if concerns_process(error):
            raise
        if isinstance(error, InvalidTriggerError) and (names := calendars_behind(row, error)):
            # The next edit of a calendar may end the quarantine.
            error = UnusableCalendarError.from_trigger_error(names, error)
        quarantined = quarantine_of(row, error, now=now)
        change = {"id": row.id, "next_run_at": None, "error": quarantined.error}
        decision = _Decision(row.owner, change, quarantined=quarantined)
    if not row.was_held:
        return decision
    return decision._replace(change={**decision.change, "held_at": None})


def _large_owners(decisions: Sequence[_Decision], batch_size: int) -> frozenset[str]:
    """Return the owners with more than their share of a full batch, in rows or in runs."""
    rows: Counter[str] = Counter(decision.owner for decision in decisions)
    sent: Counter[str] = Counter(run.owner for each in decisions for run in each.outgoing)
    share = batch_size / fairness.FAIR_SHARE_DIVISOR
    return frozenset(owner for owner, count in (rows | sent).items() if count > share)


def plan_unplanned(
    session: Session, *, now: datetime, settings: Settings, part: Part | None = None
) -> int:
    """Plan the next run of up to a batch of unplanned schedules; return their number.

    ``part`` and the errors are as in ``claim``.
    """
    part = part or Part(settings.batch_size)
    planned, locked = 0, frozenset[str]()
    seen: list[DueSchedule] = []
    for _ in range(MAX_UNPLANNED_BATCHES):
        rows = due.lock_unplanned(
            session,
            limit=part.limit - planned,
            except_calendars=locked,
            except_ids=part.except_ids,
        )
        seen += rows
        names = calendar_names(rows)
        # An UPDATE may fail for a row of an earlier round only at its end.
        with changing(session, seen, part):
            if not names:
                plans = plan_rows(session, rows, now=now, settings=settings)
                write_plans(session, plans, now=now, settings=settings)
                return planned + len(rows)
            number, waiting = _plan_and_link(session, rows, names, now=now, settings=settings)
        planned, locked = planned + number, locked | waiting
        if not waiting or planned >= part.limit:
            break
        # The schedules of a locked calendar must not delay the others.
    return planned


def _plan_and_link(
    session: Session,
    rows: Sequence[DueSchedule],
    used: Collection[str],
    *,
    now: datetime,
    settings: Settings,
) -> tuple[int, frozenset[str]]:
    """Plan unplanned schedules, and link them with the calendars ``used`` by their triggers.

    Those whose calendar another transaction has locked stay unplanned. Returns the number of the
    others, and the names of the locked calendars.
    """
    # A late import: few schedules use calendars.
    from celery_dynbeat.store import calendars  # noqa: PLC0415

    locked = calendars.lock_free(session, used)
    existing = calendars_of(session, rows)
    waiting = frozenset(existing.keys() - locked.keys())
    names = {row.id: calendar_names([row]) for row in rows}
    rows = [row for row in rows if names[row.id].isdisjoint(waiting)]
    # Not read again: a calendar that is created in the meantime is not locked, so it gets no link.
    plans = plan_rows(session, rows, now=now, settings=settings, calendars=existing)
    write_plans(session, plans, now=now, settings=settings)
    calendars.link_unlinked(session, [(row.id, names[row.id]) for row in rows], locked)
    return len(rows), waiting


def plan_rows(
    session: Session,
    rows: Sequence[DueSchedule],
    *,
    now: datetime,
    settings: Settings,
    resumed_at: Mapping[int, datetime] = MappingProxyType({}),
    calendars: Calendars | None = None,
) -> Sequence[_Decision]:
    """Plan the next run of locked schedules that have none, for ``write_plans``.

    ``resumed_at`` contains, by id, the instant from which a schedule is planned. The other
    schedules are planned from ``now``. The fire times before it are recorded as skipped.
    ``calendars`` are the calendars of the rows, if the caller has read them. The result has no
    decision about a schedule that the planning time does not reach.
    """
    used = calendars_of(session, rows) if calendars is None else calendars

    def decide(row: DueSchedule) -> _Decision:
        return _decide_unplanned(
            row,
            now=now,
            since=resumed_at.get(row.id, now + MICROSECOND) - MICROSECOND,
            settings=settings,
            calendars=used,
        )

    return _decide_in_time(rows, decide, now=now, settings=settings)


def replan_rows(
    session: Session,
    rows: Sequence[DueSchedule],
    *,
    now: datetime,
    settings: Settings,
    since: Mapping[int, datetime],
) -> Sequence[_Decision]:
    """Plan locked schedules again, with the present days of their calendars.

    Their next fire times have not passed. ``since`` contains, by id, the instant from which a
    schedule is planned. Its fire times from this instant on are due. A schedule that is in
    quarantine because of its calendars leaves it if it has a fire time, and is planned from
    ``now``. The result has no decision about a schedule that the planning time does not reach.
    """
    calendars = calendars_of(session, rows)

    def decide(row: DueSchedule) -> _Decision:
        return _decide_again(
            row,
            now=now,
            since=min(since[row.id], now),
            settings=settings,
            calendars=calendars,
        )

    return _decide_in_time(rows, decide, now=now, settings=settings)


def _decide_in_time(
    rows: Sequence[DueSchedule],
    decide: Callable[[DueSchedule], _Decision],
    *,
    now: datetime,
    settings: Settings,
) -> Sequence[_Decision]:
    """Decide about the rows that the planning time reaches."""
    planning_time = PlanningTime(batch_size=settings.batch_size)
    decisions: list[_Decision] = []
    unknown: list[UnknownZone] = []
    for row in rows:
        if not planning_time.has_time_for(row.owner):
            break
        try:
            decisions.append(_decide_or_quarantine(decide, row, now=now))
        except UnknownZoneError as error:
            unknown.append(UnknownZone(row, error))
            continue
        planning_time.add_row(row.owner)
    if unknown:
        raise LeftToNewerError(unknown)
    return decisions


def write_plans(
    session: Session, decisions: Sequence[_Decision], *, now: datetime, settings: Settings
) -> None:
    """Write the decisions of ``plan_rows``."""
    new = _record(session, decisions, now=now, settings=settings).ids
    _advance(session, decisions, new)


def _decide_unplanned(
    row: DueSchedule,
    *,
    now: datetime,
    since: datetime,
    settings: Settings,
    calendars: Calendars,
) -> _Decision:
    """Decide the next run, with the first fire time after ``since``."""
    run_rows.check_payload(row)
    check_task_allowed(settings, owner=row.owner, task=row.task)
    spec = with_search_budget(spec_from_row(cast("SpecColumns", row), settings, calendars))
    missed = _missed_records(row, spec, since=since, now=now)
    fire_at = first_planned(spec, now=since, last_run_at=row.last_run_at)
    change = _change(row, spec, Plan(next_fire_at=fire_at), now)
    change["trigger_kind"] = unwrapped(spec.trigger).kind
    decision = _Decision(row.owner, change, missed)
    return _unless_exhausted(decision, row, spec, now=now)


def _decide_again(
    row: DueSchedule,
    *,
    now: datetime,
    since: datetime,
    settings: Settings,
    calendars: Calendars,
) -> _Decision:
    """Decide the next run of a schedule that has one, or that its calendars have quarantined."""
    spec = with_search_budget(spec_from_row(cast("SpecColumns", row), settings, calendars))
    is_quarantined = row.next_run_at is None
    after = now if is_quarantined else since
    fire_at = first_planned(spec, now=after, last_run_at=row.last_run_at)
    change = {**_change(row, spec, Plan(next_fire_at=fire_at), now), "error": None}
    if change["next_run_at"] is not None:
        # Not before now, because beat reads the index from its watermark on.
        change["next_run_at"] = max(change["next_run_at"], now)
    missed = _missed_records(row, spec, since=now, now=now) if is_quarantined else ()
    is_change = is_quarantined or fire_at is None or fire_at != row.next_fire_at
    if not row.was_held:
        # A quiet day, or a window, moves only the instant at which the schedule is due.
        is_change = is_change or change["next_run_at"] != row.next_run_at
    decision = _Decision(row.owner, change, missed, is_change=is_change)
    return _unless_exhausted(decision, row, spec, now=now)


def _unless_exhausted(
    decision: _Decision, row: DueSchedule, spec: ScheduleSpec, *, now: datetime
) -> _Decision:
    """Return ``decision``, or a quarantine if the calendars alone end the schedule."""
    change = decision.change
    if not spec.calendars or change["next_fire_at"] is not None:
        return decision
    blocked_at = blocked_fire(
        spec,
        since=row.next_fire_at or now,
        now=now,
        run_count=change["run_count"],
        last_run_at=change.get("last_run_at", row.last_run_at),
    )
    if blocked_at is None:
        return decision
    quarantined = quarantine_of(row, UnusableCalendarError(spec.calendars), now=now)
    # The plan that ends the quarantine records the fire times from this one on as missed.
    change = {
        **change,
        "next_fire_at": blocked_at,
        "finished_at": None,
        "error": quarantined.error,
    }
    return decision._replace(change=change, quarantined=quarantined)


def _missed_records(
    row: DueSchedule, spec: ScheduleSpec, *, since: datetime, now: datetime
) -> Sequence[Mapping[str, Any]]:
    """Return the records of the fire times that passed while the row was not in the index.

    Such a row is in the index again because manual SQL put it there, or because its pause has
    ended. It still has its old next fire time.
    """
    if row.next_fire_at is None:
        return ()
    reason = "missed: the schedule was paused or quarantined"
    missed = skip_missed(spec, fire_at=row.next_fire_at, now=since, reason=reason)
    return [run_rows.skipped_row(row, skip, now=now) for skip in missed]


def warn_unsupported(
    session: Session, *, now: datetime, already_warned: frozenset[int]
) -> frozenset[int]:
    """Report due schedules whose trigger this version does not support; return their ids.

    Ids in ``already_warned`` are not reported again.
    """
    rows = due.find_unsupported(session, now=now, limit=MAX_WARNED)
    for row in rows:
        if row.id not in already_warned and has_listeners(events.TriggerUnsupported):
            event = events.TriggerUnsupported(
                schedule_id=row.id,
                owner=row.owner,
                schedule=row.name,
                trigger_kind=row.trigger_kind,
                supported=", ".join(KINDS),
            )
            emit(event)
    return frozenset(row.id for row in rows)


def _lock_due(
    session: Session,
    *,
    now: datetime,
    part: Part,
    second: frozenset[str],
    since: datetime | None,
) -> Sequence[DueSchedule]:
    """Lock the due rows of ``part``.

    The owners in ``second`` get the places that the others leave.
    """
    limit = part.limit
    lock = partial(due.lock_due, session, now=now, since=since, except_ids=part.except_ids)
    if not second:
        return lock(limit=limit)
    first = lock(limit=limit - limit // 2, except_owners=second)
    return [*first, *lock(limit=limit - len(first), only_owners=second)]


class _OverlapState(NamedTuple):
    """The numbers of runs that count for overlap and of buffered runs, by schedule id.

    ``queued_at`` is since when the oldest run waits for a place that a new run replaces.
    """

    unfinished: Counter[int]
    buffered: Counter[int]
    queued_at: Mapping[int, datetime]


def _overlap_state(
    session: Session, rows: Sequence[DueSchedule], *, now: datetime, settings: Settings
) -> _OverlapState:
    """Count the unfinished runs of the schedules whose overlap policy needs it."""
    limiting = {row.id: row for row in rows if (row.overlap or settings.overlap) != "allow"}
    counting = [
        run
        for run in unfinished.unfinished_runs(session, list(limiting))
        if _counts(run, limiting[run.schedule_id], now=now, settings=settings)
    ]
    count_of = Counter(run.schedule_id for run in counting)
    buffered = Counter(
        run.schedule_id
        for run in counting
        if run.sent_at is None and run.started_at is None and run.origin == Origin.SCHEDULE
    )
    queued_at: dict[int, datetime] = {}
    for run in counting:
        replaces = (limiting[run.schedule_id].overlap or settings.overlap) == "cancel_previous"
        if replaces and _waits(run):
            at = created_at(run.id)
            queued_at[run.schedule_id] = min(at, queued_at.get(run.schedule_id, at))
    return _OverlapState(count_of, buffered, queued_at)


def _waits(run: Row) -> bool:
    """Return whether a run waits for a place and has never been sent."""
    return run.status == Status.PENDING and run.overdue_at is None and run.sent_at is None


def _without_locked_runs(
    session: Session, rows: Sequence[DueSchedule], overlap: _OverlapState, *, settings: Settings
) -> tuple[Sequence[DueSchedule], Sequence[DueSchedule]]:
    """Return the rows that replace no run that another transaction has locked, and the others.

    The others wait for a later pass. A worker starts such a run, or a call cancels it.
    """
    replacing = [
        row.id
        for row in rows
        if row.id in overlap.unfinished and (row.overlap or settings.overlap) == "cancel_previous"
    ]
    locked = unfinished.with_locked_runs(session, replacing, except_batches=True)
    if not locked:
        return rows, ()
    free = [row for row in rows if row.id not in locked]
    return free, [row for row in rows if row.id in locked]


def _counts(run: Row, row: DueSchedule, *, now: datetime, settings: Settings) -> bool:
    """Return whether an unfinished run counts. With cancel_previous, every run does."""
    if (row.overlap or settings.overlap) == "cancel_previous":
        return True
    if run.started_at is None:
        return True
    return bool(now - run.started_at < max_run_time(row.max_run_time, settings))


def _decide_due(
    row: DueSchedule,
    *,
    now: datetime,
    settings: Settings,
    limit: int,
    overlap: _OverlapState,
    calendars: Calendars,
    outage_delay: OutageDelay | None,
    late_since: datetime | None,
) -> _Decision:
    run_rows.check_payload(row)
    fire_at = _fire_at(row)
    # SpecColumns has attributes that can be set, unlike the fields of a named tuple.
    spec = with_search_budget(spec_from_row(cast("SpecColumns", row), settings, calendars))
    if outage_delay is not None:
        until = outage_delay(run_rows.new_outgoing_run(row, fire_at, now=now, settings=settings))
        if until is not None:
            # The delay changes next_run_at.
            late = _late_run(row, None, run_at(spec, fire_at), now=now, late_since=late_since)
            return _Decision(row.owner, {"id": row.id, "next_run_at": until}, late=late)
    check_task_allowed(settings, owner=row.owner, task=row.task)
    planned = plan(
        spec,
        fire_at=fire_at,
        run_count=row.run_count,
        now=now,
        limit=limit,
        # ``get`` is faster than a subscript, for which a Counter computes a missing count in
        # Python.
        unfinished=overlap.unfinished.get(row.id, 0),
        buffered=overlap.buffered.get(row.id, 0),
        last_run_at=row.last_run_at,
    )
    new = [
        run_rows.new_outgoing_run(
            row, at, now=now, settings=settings, next_fire_at=planned.next_fire_at
        )
        for at in planned.runs
    ]
    if planned.replaces and (queued_at := overlap.queued_at.get(row.id)):
        # The new run takes the place of the old one in the queue. At its end, a run that is
        # replaced again and again would never start.
        new = [run._replace(run_id=new_run_id(queued_at)) for run in new]
    # A buffered run is recorded like the others. The sweep publishes it when it no longer has to
    # wait.
    overdue_at = now + settings.dispatch_timeout
    outgoing, buffered = new[: len(planned.send)], new[len(planned.send) :]
    row_of = partial(run_rows.pending_row, now=now, overdue_at=overdue_at)
    records = [row_of(run) for run in outgoing]
    records += [row_of(run, waits_for=Wait.PREVIOUS) for run in buffered]
    records += [run_rows.skipped_row(row, skip, now=now) for skip in planned.skips]
    late = None
    # A run is not late because of a hold. A release sets next_run_at.
    if outgoing and row.next_run_at is not None and not row.was_held:
        run_id = outgoing[0].run_id
        late = _late_run(row, run_id, row.next_run_at, now=now, late_since=late_since)
    decision = _Decision(
        owner=row.owner,
        change=_change(row, spec, planned, now),
        records=records,
        outgoing=outgoing,
        replaces=planned.replaces,
        late=late,
    )
    return _unless_exhausted(decision, row, spec, now=now)


def _fire_at(row: DueSchedule) -> datetime:
    if row.next_fire_at is None:
        msg = "next_fire_at must not be NULL while next_run_at is set"
        raise TypeError(msg)
    return row.next_fire_at


def _late_run(
    row: DueSchedule,
    run_id: str | None,
    due_at: datetime,
    *,
    now: datetime,
    late_since: datetime | None,
) -> events.LateRun | None:
    """Return a run that was due at ``due_at`` if it is late.

    If ``late_since`` is None, no run is late.
    """
    if late_since is None:
        return None
    late_by = now - max(due_at, late_since)
    if late_by <= MIN_LATE:
        return None
    return events.LateRun(run_id=run_id, schedule_id=row.id, late_by=late_by)


def _change(row: DueSchedule, spec: ScheduleSpec, planned: Plan, now: datetime) -> dict[str, Any]:
    fire_at, made = planned.next_fire_at, planned.runs
    change: dict[str, Any] = {
        "id": row.id,
        "next_fire_at": fire_at,
        "next_run_at": None if fire_at is None else due_at(spec, fire_at, now=now),
        "run_count": min(row.run_count + len(made), MAX_COUNT),
        "finished_at": now if fire_at is None else None,
    }
    if made:
        change["last_run_at"] = made[-1]
    if planned.passed:
        skipped = skips_in(row.skips)
        change["skips"] = as_skips({at: skipped[at] for at in skipped.keys() - planned.passed})
    return change


def _record(
    session: Session, decisions: Sequence[_Decision], *, now: datetime, settings: Settings
) -> AddedRuns:
    """Insert the rows of history. Return the ids of rows whose fire time had no row before."""
    records = [record for each in decisions for record in each.records]
    added = run_rows.add_runs(session, records, settings=settings)
    new = added.ids
    quarantined = [each.quarantined for each in decisions if each.quarantined is not None]
    emit_on_commit(session, *quarantined)
    if has_listeners(events.FireTimesSkipped):
        emit_on_commit(session, *skipped_of(record for record in records if record["id"] in new))
    if has_listeners(events.RunsLate):
        late = [each.late for each in decisions if each.late is not None]
        made = [run for run in late if run.run_id is None or run.run_id in new]
        if made:
            emit_on_commit(session, events.RunsLate(runs=made, at=now))
    return added


def skipped_of(records: Iterable[Mapping[str, Any]]) -> Iterable[events.FireTimesSkipped]:
    """Return the event of each ``skipped`` row among new rows of history."""
    for record in records:
        if record["status"] == Status.SKIPPED:
            yield events.FireTimesSkipped(
                owner=record["owner"],
                schedule=record["name"],
                task=record["task"],
                scheduled_for=record["scheduled_for"],
                count=record["fire_count"],
                reason=record["error"],
            )


def _replace_runs(
    session: Session, decisions: Sequence[_Decision], added: AddedRuns, *, now: datetime
) -> Sequence[str]:
    """Cancel the runs that new runs replace; return the ids of those that are running."""
    replacing = [
        run
        for decision in decisions
        if decision.replaces
        # A fire time that already had its run replaces no other run.
        for run in decision.outgoing
        if run.run_id in added.ids
    ]
    return unfinished.cancel_replaced(
        session,
        [run.schedule_id for run in replacing],
        by=[run.run_id for run in replacing],
        now=now,
    )


def _advance(session: Session, decisions: Sequence[_Decision], new: Collection[str]) -> None:
    changes = [decision.change for decision in decisions]
    if sum(len(decision.records) for decision in decisions) != len(new):
        changes = [_without_present_runs(decision, new) for decision in decisions]
    # One statement for each set of columns.
    by_columns: defaultdict[frozenset[str], list[Mapping[str, Any]]] = defaultdict(list)
    for change in changes:
        by_columns[frozenset(change)].append(change)
    for same_columns in by_columns.values():
        due.advance(session, same_columns)


def _without_present_runs(decision: _Decision, new: Collection[str]) -> Mapping[str, Any]:
    """Return the change of the row without the runs that existed before.

    If the clock was set back, a fire time can already have its run.
    """
    present = sum(
        record["status"] == Status.PENDING and record["id"] not in new
        for record in decision.records
    )
    if not present:
        return decision.change
    change = {**decision.change, "run_count": decision.change["run_count"] - present}
    if change["next_fire_at"] is None:
        # The schedule may still have runs left, so the next pass plans it again.
        change["finished_at"] = None
    return change
