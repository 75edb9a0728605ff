"""Claim, plan and record due schedules in one transaction.

    due rows, locked -> one Decision each -> insert the runs -> cancel replaced runs -> advance rows

- After the commit, each due fire time has a ``pending`` run or is covered by a ``skipped`` row. The
  schedules have their next fire times. After a rollback, nothing has changed.
- A schedule that cannot be planned is quarantined. The other schedules are not affected.
- A due schedule whose owner is held gets no run and keeps its fire time (``beat.holding``).
- A due schedule whose last runs all failed may be paused instead (``beat.holding``).
- A schedule with a trigger that this version does not support stays unchanged, for a newer beat.
  ``beat.unsupported`` reports it. The same is true for a time zone that this process does not know.
- If the database refuses the change of one row, the others are changed (``beat.refused``).

Fairness: if more rows are due than fit into a batch, owners with a large share of the previous
batch come second. The other owners get up to half of the next batch first. No owner therefore waits
for all runs of another owner, and each owner makes progress. Planning time is shared in the same
way: owners whose schedules take long to plan come second, and a claim plans for a limited time.
Rows that the claim does not reach stay unchanged. The commit unlocks them, and they are due for the
next claim.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.beat import fairness, recording
from celery_dynbeat.beat.decisions import (
    Decider,
    Decision,
    OutageDelay,
    OverlapState,
    decide_rows,
)
from celery_dynbeat.beat.fairness import PlanningTime
from celery_dynbeat.beat.holding import hold_rows, pause_failing
from celery_dynbeat.beat.refused import FULL_BATCH, Part, changing
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Origin
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import max_run_time
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store.runs import AddedRuns, unfinished
from celery_dynbeat.store.schedules import calendars_of, due
from celery_dynbeat.store.schedules.due import DueSchedule

#: In a full batch, a schedule whose new run replaces a locked run is due again after this time.
LOCKED_RUN_PAUSE = timedelta(milliseconds=500)


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


def claim(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    costly_in_rows: frozenset[str] = frozenset(),
    costly_owners: frozenset[str] = frozenset(),
    since: datetime | None = None,
    outage_delay: OutageDelay | None = None,
    part: Part = FULL_BATCH,
) -> Claimed:
    """Claim a batch of due schedules, record their runs, and return the runs to publish.

    ``costly_in_rows`` come from the previous claim, ``costly_owners`` from the claims of the last
    seconds. Both come second. No row is due before ``since``. A schedule whose queue is refused
    stays unplanned until the instant that ``outage_delay`` returns.

    ``part`` is the part of the due rows to claim. Raises RefusedBatchError if the database refuses
    a row, and LeftToNewerError if this process does not know the time zone of a row.
    """
    second = costly_in_rows | costly_owners if part.is_full else frozenset()
    rows = _lock_due(session, now=now, part=part, second=second, since=since)
    with changing(session, rows, part):
        batch_size = part.limit
        locked = len(rows)
        rows, held = hold_rows(session, rows, now=now, poll_interval=settings.poll_interval)
        rows, paused = pause_failing(session, rows, now=now, settings=settings)
        overlap = _overlap_state(session, rows, now=now, settings=settings)
        rows, replaces_locked = _without_locked_runs(session, rows, overlap, settings=settings)
        decider = Decider(
            now=now,
            settings=settings,
            overlap=overlap,
            # Read after the rows are locked, so that a day counts once upsert() has committed.
            calendars=calendars_of(session, rows),
            outage_delay=outage_delay,
        )
        planning_time = PlanningTime(costly_owners)
        decisions, is_out_of_time = decide_rows(
            rows, decider.due, now=now, planning_time=planning_time, batch_size=batch_size
        )
        sending = sum(len(decision.outgoing) for decision in decisions)
        fills_batch = max(locked, sending) >= batch_size
        if fills_batch:
            # They are the oldest rows, so the next batches would consist of them alone.
            again_at = now + LOCKED_RUN_PAUSE
            decisions += [
                Decision(row.owner, {"id": row.id, "next_run_at": again_at})
                for row in replaces_locked
            ]
        added = recording.record(session, decisions, settings=settings)
        new, waiting = added
        terminate = _replace_runs(session, decisions, added, now=now)
        recording.advance(session, decisions, new)
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


def _large_owners(decisions: Sequence[Decision], batch_size: int) -> frozenset[str]:
    """Return the owners with more than their share of a full batch, in rows or in runs."""
    rows: Counter[str] = Counter(decision.owner for decision in decisions)
    sent: Counter[str] = Counter(run.owner for each in decisions for run in each.outgoing)
    share = batch_size / fairness.FAIR_SHARE_DIVISOR
    return frozenset(owner for owner, count in (rows | sent).items() if count > share)


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


def _overlap_state(
    session: Session, rows: Sequence[DueSchedule], *, now: datetime, settings: Settings
) -> OverlapState:
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
    return OverlapState(count_of, buffered, queued_at)


def _waits(run: Row) -> bool:
    """Return whether a run waits for a place and has never been sent."""
    return run.status == Status.PENDING and run.overdue_at is None and run.sent_at is None


def _without_locked_runs(
    session: Session, rows: Sequence[DueSchedule], overlap: OverlapState, *, settings: Settings
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


def _replace_runs(
    session: Session, decisions: Sequence[Decision], added: AddedRuns, *, now: datetime
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
