"""Claim, plan and record due schedules in one transaction.

    due rows, locked -> one Decision each -> insert the runs -> cancel replaced runs -> advance rows

- After the commit, each due fire time has a ``pending`` run or is covered by a ``skipped`` row. The
  schedules have their next fire times. After a rollback nothing has changed.
- A schedule that cannot be planned is quarantined. The other schedules are not affected.
- A due schedule whose owner is held is parked (``beat.holding``): no run, the same next fire time.
- A schedule with a trigger that this version does not support stays unchanged, for a newer beat.
  ``warn_unsupported`` logs it.

Fairness: while more is due than fits into a batch, the owners with a large share of the previous
batch come second. The other owners get up to half of the next batch first. So no owner waits for
all runs of another owner, and each owner makes progress. Planning time is shared in the same way:
owners whose schedules are costly to plan come second, and a claim plans for a limited time. Rows
that it does not reach stay unchanged. The commit unlocks them, and they are due for the next claim.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, cast

from sqlalchemy.orm import Session

from celery_dynbeat.beat import fairness, late_facts
from celery_dynbeat.beat.fairness import PlanningTime
from celery_dynbeat.beat.holding import park_held
from celery_dynbeat.beat.late_facts import DueRun
from celery_dynbeat.beat.quarantine import add_facts, log_quarantined, quarantine_unreadable
from celery_dynbeat.beat.reporting import report_quarantined, report_skipped
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Origin
from celery_dynbeat.planning.alerting import MIN_LATE
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.planning.plan import Plan, first_fire, plan, run_at, skip_missed
from celery_dynbeat.planning.schedule_spec import (
    ScheduleSpec,
    SpecColumns,
    max_run_time,
    spec_from_row,
    with_search_budget,
    without,
)
from celery_dynbeat.store import due, holds, overlaps, run_rows, runs, skips
from celery_dynbeat.store.rows import LockedRows, Row
from celery_dynbeat.triggers import KINDS

logger = logging.getLogger(__name__)

#: With catch_up="all", most fire times of one schedule that one pass sends.
CATCH_UP_BATCH = 100
#: In a full batch, a schedule whose new run replaces a locked run is due again after this time.
LOCKED_RUN_PAUSE = timedelta(milliseconds=500)
#: Most schedules with an unsupported trigger that the log names.
MAX_WARNED = 20

#: Returns until when a new run is deferred because its queue is refused, or None: record it now.
OutageDelay = Callable[[OutgoingRun], datetime | None]
#: By schedule id: the fire times that ``skip()`` took out.
_Skipped = Mapping[int, Sequence[datetime]]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The result of one claim.

    ``handled`` is the number of rows that were changed. ``outgoing`` are the new runs to publish.
    ``terminate`` are the ids of running runs that a newer run replaces. ``is_full`` means that more
    rows may be due than fit into a batch or its planning time. ``deprioritised_owners`` had a large
    share of a full batch. The schedules of ``costly_owners`` took long to plan.
    """

    handled: int
    outgoing: Sequence[OutgoingRun]
    terminate: Sequence[str]
    is_full: bool
    deprioritised_owners: frozenset[str]
    costly_owners: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Decision:
    """What a transaction writes for one schedule, and which of its runs are sent.

    ``change`` has the columns of its row. ``records`` are new rows of history. ``replaces`` means
    that the new run cancels the previous runs. ``quarantined`` is the name of the schedule if it
    is quarantined. ``due_run`` is the oldest run that is sent, if it may be late.
    """

    owner: str
    change: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]] = ()
    outgoing: Sequence[OutgoingRun] = ()
    replaces: bool = False
    quarantined: str | None = None
    due_run: DueRun | None = None


@dataclass(frozen=True, slots=True)
class _DecidedBatch:
    """The decisions of one claim, in the order of the rows.

    ``without_decision`` is the number of rows that were changed without one.
    """

    decisions: Sequence[_Decision]
    without_decision: int
    is_full: bool
    deprioritised_owners: frozenset[str]
    costly_owners: frozenset[str]


def claim(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    deprioritised_owners: frozenset[str] = frozenset(),
    costly_owners: frozenset[str] = frozenset(),
    since: datetime | None = None,
    outage_delay: OutageDelay | None = None,
    held_until: datetime | None = None,
) -> Claimed:
    """Claim a batch of due schedules, record their runs, and return the runs to publish.

    ``deprioritised_owners`` come from the previous claim, ``costly_owners`` from the claims of the
    last seconds. Both come second. No row is due before ``since``. A schedule whose queue is
    refused stays unplanned until the instant that ``outage_delay`` returns. The last hold of
    everything ended at ``held_until``.
    """
    batch = _decide_batch(
        session,
        now=now,
        settings=settings,
        deprioritised_owners=deprioritised_owners,
        costly_owners=costly_owners,
        since=since,
        outage_delay=outage_delay,
    )
    new = _record(session, batch.decisions, now=now)
    late_facts.store(
        session,
        [decision.due_run for decision in batch.decisions if decision.due_run is not None],
        new=new,
        now=now,
        held_until=held_until,
        settings=settings,
    )
    terminate = _replace_runs(session, batch.decisions, new, now=now)
    _advance(session, batch.decisions, new)
    return Claimed(
        handled=len(batch.decisions) + batch.without_decision,
        outgoing=[
            run for decision in batch.decisions for run in decision.outgoing if run.run_id in new
        ],
        terminate=terminate,
        is_full=batch.is_full,
        deprioritised_owners=batch.deprioritised_owners,
        costly_owners=batch.costly_owners,
    )


def _decide_batch(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    deprioritised_owners: frozenset[str],
    costly_owners: frozenset[str],
    since: datetime | None,
    outage_delay: OutageDelay | None,
) -> _DecidedBatch:
    """Lock a batch of due schedules and decide about each. The result does not hold the rows."""
    batch_size = settings.batch_size
    second = deprioritised_owners | costly_owners
    rows, unreadable = _lock_due(
        session,
        now=now,
        limit=batch_size,
        second=second,
        since=since,
        with_late_rule=settings.alerts_enabled,
    )
    quarantine_unreadable(session, unreadable, now=now)
    locked = len(rows) + len(unreadable)
    rows, parked = park_held(session, rows, now=now, poll_interval=settings.poll_interval)
    overlap = _overlap_state(session, rows, now=now, settings=settings)
    rows, replaces_locked = _without_locked_runs(session, rows, overlap, settings=settings)
    decide = partial(
        _decide_due,
        now=now,
        settings=settings,
        overlap=overlap,
        skipped=skips.of_rows(session, rows, now=now),
        outage_delay=outage_delay,
    )
    planning_time = PlanningTime(batch_size=batch_size, costly_owners=costly_owners)
    decisions, is_out_of_time = _decide_rows(
        rows, decide, batch_size=batch_size, planning_time=planning_time
    )
    sending = sum(len(decision.outgoing) for decision in decisions)
    fills_batch = max(locked, sending) >= batch_size
    if fills_batch:
        # They are the oldest: the next batches would consist of them alone.
        again_at = now + LOCKED_RUN_PAUSE
        decisions += [
            _Decision(row.owner, {"id": row.id, "next_run_at": again_at}) for row in replaces_locked
        ]
    return _DecidedBatch(
        decisions=decisions,
        without_decision=parked + len(unreadable),
        is_full=is_out_of_time or fills_batch,
        deprioritised_owners=_large_owners(decisions, batch_size) if fills_batch else frozenset(),
        costly_owners=planning_time.costly_owners(),
    )


def _decide_rows(
    rows: Sequence[Row],
    decide: Callable[..., _Decision],
    *,
    batch_size: int,
    planning_time: PlanningTime,
) -> tuple[list[_Decision], bool]:
    """Decide about the rows that fit into the batch and its planning time.

    The second result is true if the time did not suffice for a row of an owner that is not costly.
    """
    decisions: list[_Decision] = []
    sending = 0
    is_out_of_time = False
    for row in rows:
        if sending >= batch_size:
            # A backlog: the other rows stay due for the next pass.
            break
        if not planning_time.has_time_for(row.owner):
            # Rows of costly owners alone must not delay backfills and pruning.
            is_out_of_time = is_out_of_time or not planning_time.is_costly(row.owner)
            continue
        limit = min(batch_size - sending, CATCH_UP_BATCH)
        decision = _decide_or_quarantine(partial(decide, limit=limit), row)
        decisions.append(decision)
        sending += len(decision.outgoing)
        planning_time.add_row(row.owner)
    return decisions, is_out_of_time


def _decide_or_quarantine(decide: Callable[[Row], _Decision], row: Row) -> _Decision:
    try:
        decision = decide(row)
    except ImportError:
        # This process cannot load a module that it needs. The row is not at fault.
        raise
    # Invalid text, a removed time zone, a bug in a trigger: only this row is affected.
    except Exception as error:  # noqa: BLE001
        change = {"id": row.id, "next_run_at": None, "error": log_quarantined(row, error)}
        decision = _Decision(row.owner, change, quarantined=row.name)
    if row.hold_id != holds.WAS_PARKED:
        return decision
    return replace(decision, change={**decision.change, "held_at": None})


def _large_owners(decisions: Sequence[_Decision], batch_size: int) -> frozenset[str]:
    """Return the owners with more than their share of a full batch, in rows or in runs."""
    rows: Counter[str] = Counter(decision.owner for decision in decisions)
    sent: Counter[str] = Counter(run.owner for each in decisions for run in each.outgoing)
    share = batch_size / fairness.FAIR_SHARE_DIVISOR
    return frozenset(owner for owner, count in (rows | sent).items() if count > share)


def plan_unplanned(session: Session, *, now: datetime, settings: Settings) -> int:
    """Plan the next run of a batch of unplanned schedules; return the size of the batch."""
    rows, unreadable = due.lock_unplanned(session, limit=settings.batch_size)
    quarantine_unreadable(session, unreadable, now=now)
    skipped = skips.of_rows(session, rows, now=now)
    decide = partial(_decide_unplanned, now=now, settings=settings, skipped=skipped)
    planning_time = PlanningTime(batch_size=settings.batch_size)
    decisions: list[_Decision] = []
    for row in rows:
        if not planning_time.has_time_for(row.owner):
            break
        decisions.append(_decide_or_quarantine(decide, row))
        planning_time.add_row(row.owner)
    new = _record(session, decisions, now=now)
    _advance(session, decisions, new)
    return len(rows) + len(unreadable)


def _decide_unplanned(
    row: Row, *, now: datetime, settings: Settings, skipped: _Skipped
) -> _Decision:
    _check_payload(row)
    task_allowlist.check(settings, owner=row.owner, task=row.task)
    unlimited = spec_from_row(cast("SpecColumns", row), settings)
    spec = without(with_search_budget(unlimited), skipped.get(row.id, ()))
    missed = _missed_records(row, spec, now)
    fire_at = first_fire(spec, now=now, last_run_at=row.last_run_at)
    change = _change(row, spec, Plan(next_fire_at=fire_at), now)
    return _Decision(row.owner, {**change, "trigger_kind": unlimited.trigger.kind}, missed)


def _missed_records(row: Row, spec: ScheduleSpec, now: datetime) -> Sequence[Mapping[str, Any]]:
    """Return the record of the fire times that passed while the row was not in the index.

    Such a row was put back by SQL, with the next fire time from before.
    """
    if row.next_fire_at is None:
        return ()
    reason = "missed: the schedule was paused or quarantined"
    skip = skip_missed(spec, fire_at=row.next_fire_at, now=now, reason=reason)
    return () if skip is None else (run_rows.skipped_row(row, skip, now=now),)


def warn_unsupported(
    session: Session, *, now: datetime, already_warned: frozenset[int]
) -> frozenset[int]:
    """Warn of due schedules whose trigger this version does not support; return their ids.

    Ids in ``already_warned`` are not logged again.
    """
    rows = due.find_unsupported(session, now=now, limit=MAX_WARNED)
    for row in rows:
        if row.id not in already_warned:
            logger.warning(
                "schedule %r of owner %r does not run: unsupported trigger kind %r; this version"
                " supports %s. Start a beat of a newer version, or correct trigger_kind",
                row.name,
                row.owner,
                row.trigger_kind,
                ", ".join(KINDS),
                extra={
                    "event": Event.TRIGGER_UNSUPPORTED,
                    "owner": row.owner,
                    "schedule": row.name,
                    "schedule_id": row.id,
                },
            )
    return frozenset(row.id for row in rows)


def _lock_due(
    session: Session,
    *,
    now: datetime,
    limit: int,
    second: frozenset[str],
    since: datetime | None,
    with_late_rule: bool,
) -> LockedRows:
    """Lock up to ``limit`` due rows. The owners in ``second`` get what the others leave."""
    lock = partial(due.lock_due, session, now=now, since=since, with_late_rule=with_late_rule)
    if not second:
        return lock(limit=limit)
    first = lock(limit=limit - limit // 2, except_owners=second)
    left = limit - len(first.rows) - len(first.unreadable)
    others = lock(limit=left, only_owners=second)
    return LockedRows([*first.rows, *others.rows], [*first.unreadable, *others.unreadable])


class _OverlapState(NamedTuple):
    """By schedule id: the number of runs that count for overlap, and of those that are buffered."""

    unfinished: Counter[int]
    buffered: Counter[int]


def _overlap_state(
    session: Session, rows: Sequence[Row], *, now: datetime, settings: Settings
) -> _OverlapState:
    """Count the unfinished runs of the schedules whose overlap policy needs it."""
    counts_for: dict[int, timedelta] = {}
    for row in rows:
        # A duration out of range: planning this row raises the error.
        with suppress(ArithmeticError, TypeError, ValueError):
            if (row.overlap or settings.overlap) != "allow":
                counts_for[row.id] = _counts_for(row, settings)
    counting = [
        run
        for run in overlaps.unfinished_runs(session, list(counts_for))
        if run.started_at is None or now - run.started_at < counts_for[run.schedule_id]
    ]
    unfinished = Counter(run.schedule_id for run in counting)
    buffered = Counter(
        run.schedule_id
        for run in counting
        if run.sent_at is None and run.started_at is None and run.origin == Origin.SCHEDULE
    )
    return _OverlapState(unfinished, buffered)


def _without_locked_runs(
    session: Session, rows: Sequence[Row], overlap: _OverlapState, *, settings: Settings
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows that replace no run that another transaction has locked, and the others.

    The others wait for a later pass. A worker starts such a run, or a call cancels it.
    """
    replacing = [
        row.id
        for row in rows
        if overlap.unfinished[row.id] and (row.overlap or settings.overlap) == "cancel_previous"
    ]
    locked = overlaps.with_locked_runs(session, replacing)
    if not locked:
        return rows, ()
    free = [row for row in rows if row.id not in locked]
    return free, [row for row in rows if row.id in locked]


def _counts_for(row: Row, settings: Settings) -> timedelta:
    """Return how long a started run counts. cancel_previous cancels a run of any age."""
    if (row.overlap or settings.overlap) == "cancel_previous":
        return timedelta.max
    return max_run_time(row.max_run_time, settings)


def _decide_due(
    row: Row,
    *,
    now: datetime,
    settings: Settings,
    limit: int,
    overlap: _OverlapState,
    skipped: _Skipped,
    outage_delay: OutageDelay | None,
) -> _Decision:
    _check_payload(row)
    if outage_delay is not None:
        until = outage_delay(
            run_rows.new_outgoing_run(row, row.next_fire_at, now=now, settings=settings)
        )
        if until is not None:
            delayed = _delayed_run(row, now=now, settings=settings)
            change = {"id": row.id, "next_run_at": until}
            return _Decision(row.owner, change, due_run=delayed)
    task_allowlist.check(settings, owner=row.owner, task=row.task)
    # A Row has each selected column as an attribute, which its type cannot express.
    spec = with_search_budget(spec_from_row(cast("SpecColumns", row), settings))
    spec = without(spec, skipped.get(row.id, ()))
    planned = plan(
        spec,
        fire_at=row.next_fire_at,
        run_count=row.run_count,
        now=now,
        limit=limit,
        unfinished=overlap.unfinished[row.id],
        buffered=overlap.buffered[row.id],
        last_run_at=row.last_run_at,
    )
    new = [run_rows.new_outgoing_run(row, at, now=now, settings=settings) for at in planned.runs]
    # A buffered run is recorded like the others. The sweep publishes it when it need not wait.
    overdue_at = now + settings.dispatch_timeout
    records = [run_rows.pending_row(run, now=now, overdue_at=overdue_at) for run in new]
    records += [run_rows.skipped_row(row, skip, now=now) for skip in planned.skips]
    return _Decision(
        owner=row.owner,
        change=_change(row, spec, planned, now),
        records=records,
        outgoing=new[: len(planned.send)],
        replaces=planned.replaces,
        due_run=_due_run(row, new[: len(planned.send)], now=now),
    )


def _due_run(row: Row, sent: Sequence[OutgoingRun], *, now: datetime) -> DueRun | None:
    """Return the oldest of the ``sent`` runs if it may be late. A hold makes no run late."""
    # Without alerts, the row has no such columns.
    due_at = getattr(row, "next_run_at", None)
    if not sent or due_at is None or row.hold_id == holds.WAS_PARKED or now - due_at < MIN_LATE:
        return None
    # A release sets next_run_at.
    return DueRun(sent[0].run_id, row.id, due_at, bool(row.has_late_rule))


def _delayed_run(row: Row, *, now: datetime, settings: Settings) -> DueRun | None:
    """Return the due run of a schedule whose queue is refused, without a run id."""
    if getattr(row, "next_run_at", None) is None:
        return None
    # The delay changes next_run_at.
    jitter = settings.jitter if row.jitter is None else timedelta(seconds=row.jitter)
    due_at = min(now, row.next_fire_at + (jitter or timedelta(0)))
    return DueRun(None, row.id, due_at, bool(row.has_late_rule))


def _check_payload(row: Row) -> None:
    # The API rejects such a row. SQL by hand can write one.
    shapes = (("args", list), ("kwargs", dict), ("options", dict))
    for column, shape in shapes:
        if not isinstance(getattr(row, column), shape):
            msg = f"{column} must be a JSON {'array' if shape is list else 'object'}"
            raise TypeError(msg)


def _change(row: Row, spec: ScheduleSpec, planned: Plan, now: datetime) -> dict[str, Any]:
    fire_at = planned.next_fire_at
    change = {
        "id": row.id,
        "next_fire_at": fire_at,
        "next_run_at": None if fire_at is None else run_at(spec, fire_at),
        "run_count": row.run_count + len(planned.runs),
        "finished_at": now if fire_at is None else None,
    }
    return {**change, "last_run_at": planned.runs[-1]} if planned.runs else change


def _record(session: Session, decisions: Sequence[_Decision], *, now: datetime) -> Collection[str]:
    """Insert the rows of history. Return the ids of those whose fire time had no row."""
    new = runs.add(session, [record for each in decisions for record in each.records])
    quarantined = [each.change["id"] for each in decisions if each.quarantined is not None]
    add_facts(session, quarantined, now=now)
    for decision in decisions:
        report_skipped(session, [record for record in decision.records if record["id"] in new])
        if decision.quarantined is not None:
            report_quarantined(
                session,
                schedule_id=decision.change["id"],
                owner=decision.owner,
                name=decision.quarantined,
                error=decision.change["error"],
            )
    return new


def _replace_runs(
    session: Session, decisions: Sequence[_Decision], new: Collection[str], *, now: datetime
) -> Sequence[str]:
    """Cancel the runs that new runs replace; return the ids of those that are running."""
    replacing = [
        run
        for decision in decisions
        if decision.replaces
        # A fire time that already had its run replaces no other run.
        for run in decision.outgoing
        if run.run_id in new
    ]
    return overlaps.cancel_replaced(
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

    A fire time already has its run when the clock was set back.
    """
    present = sum(
        record["status"] == Status.PENDING and record["id"] not in new
        for record in decision.records
    )
    if not present:
        return decision.change
    change = {**decision.change, "run_count": decision.change["run_count"] - present}
    if change["next_fire_at"] is None:
        # The schedule may have runs left after all. The next pass plans it again.
        change["finished_at"] = None
    return change
