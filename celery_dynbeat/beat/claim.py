"""Due schedules to runs, within one transaction: claim, plan, record.

When the transaction commits, each fire time that was due is a ``pending`` run or stands in a
``skipped`` one, and the schedules have moved on. When it does not, nothing has happened. A schedule
that cannot be planned is set aside with its error; the others are not touched by it. One whose kind
of trigger this version does not know stays as it is, for a newer beat: it is only told of.

Fairness: while more is due than fits into a batch, the owners who took a large share of the one
before come second. The others get up to half of the batch first, so that nobody waits behind all of
one owner's runs, and no owner waits for ever. Planning time is shared likewise: owners whose
schedules are costly to plan come second, and a claim plans for a limited time. Rows that it does
not reach stay as they are, unlocked with the commit, and are due for the next claim.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from sqlalchemy.orm import Session

from celery_dynbeat.beat import fairness
from celery_dynbeat.beat.fairness import Planning
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Origin
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.planning.plan import Plan, first_fire, plan, run_at, skip_missed
from celery_dynbeat.planning.schedule_spec import (
    ScheduleSpec,
    SpecColumns,
    max_run_time,
    metered,
    spec_from_row,
)
from celery_dynbeat.store import due, overlaps, run_rows, runs
from celery_dynbeat.store.rows import LockedRows, Row, UnreadableRow, format_error
from celery_dynbeat.triggers import KINDS

logger = logging.getLogger(__name__)

#: With catch_up="all", the fire times of one schedule that one pass sends at most.
CATCH_UP_BATCH = 100
#: Of the schedules that are passed over, those that the log names at most.
MOST_TOLD = 20


#: Returns until when a new run waits, because its queue is refused; None: it is recorded.
Hold = Callable[[OutgoingRun], datetime | None]


@dataclass(slots=True)
class Claimed:
    """What one claim decided, row by row.

    ``terminate`` are runs in progress that a newer one replaces. ``full``: more may be due than
    fits into a batch, or could be planned in time. ``heavy`` are the owners who had a large share
    of a full batch, ``costly`` those whose schedules took long to plan.
    """

    rows: int = 0
    full: bool = False
    outgoing: list[OutgoingRun] = field(default_factory=list)
    terminate: list[str] = field(default_factory=list)
    heavy: frozenset[str] = frozenset()
    costly: frozenset[str] = frozenset()
    records: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)


def claim(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    heavy: frozenset[str] = frozenset(),
    costly: frozenset[str] = frozenset(),
    since: datetime | None = None,
    hold: Hold | None = None,
) -> Claimed:
    """Claim a batch of due schedules, record their runs, and return what is to be published.

    ``heavy`` is what the claim before found, ``costly`` what those of the last seconds did: both
    come second. Nothing is known to be due before ``since``. A schedule whose queue is refused
    stays as it is until the instant that ``hold`` returns.
    """
    claimed = _decided(
        session, now=now, settings=settings, heavy=heavy, costly=costly, since=since, hold=hold
    )
    _record(session, claimed, now=now)
    return claimed


def _decided(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    heavy: frozenset[str],
    costly: frozenset[str],
    since: datetime | None,
    hold: Hold | None,
) -> Claimed:
    """Lock a batch of due schedules and decide on each; the rows are not needed any more then."""
    claimed = Claimed()
    limit = settings.batch_size
    rows, damaged = _lock_due(session, now=now, limit=limit, second=heavy | costly, since=since)
    claimed.rows += _set_damaged_aside(session, damaged)
    busy = _OverlapState(session, rows, now=now, settings=settings)
    planning = Planning(batch_size=settings.batch_size, costly=costly)
    taken: list[Row] = []
    for row in rows:
        left = settings.batch_size - len(claimed.outgoing)
        if left <= 0:
            # A backlog: the rows behind stay due for the next pass.
            break
        if not planning.has_time_for(row.owner):
            # What costly owners have left must not keep beat from backfills and pruning.
            claimed.full = claimed.full or row.owner not in costly
            continue
        taken.append(row)
        try:
            limit = min(left, CATCH_UP_BATCH)
            if hold is None or not _is_held(claimed, row, hold, now=now, settings=settings):
                _decide(claimed, row, now=now, settings=settings, limit=limit, busy=busy)
        except ImportError:
            # This process cannot load what it needs: no row's trouble, and no row is to be lost.
            raise
        # Damaged text, a zone that vanished, a trigger with a flaw: this row's trouble alone.
        except Exception as error:  # noqa: BLE001
            _set_aside(claimed, row, error)
        planning.planned(row.owner)
    claimed.rows += len(taken)
    claimed.costly = planning.costly_owners()
    if max(len(rows) + len(damaged), len(claimed.outgoing)) >= settings.batch_size:
        claimed.full = True
        claimed.heavy = _deprioritised_owners(taken, claimed.outgoing, settings.batch_size)
    return claimed


def _is_held(claimed: Claimed, row: Row, hold: Hold, *, now: datetime, settings: Settings) -> bool:
    """Put off a schedule that cannot be published now. Its fire times are planned later."""
    _check_payload(row)
    until = hold(run_rows.new_outgoing_run(row, row.next_fire_at, now=now, settings=settings))
    if until is not None:
        claimed.changes.append({"id": row.id, "next_run_at": until})
    return until is not None


def _deprioritised_owners(
    rows: Sequence[Row], outgoing: Sequence[OutgoingRun], batch_size: int
) -> frozenset[str]:
    """Return the owners who had more than their share of a full batch, in rows or in runs."""
    shares = Counter(row.owner for row in rows) | Counter(run.owner for run in outgoing)
    return frozenset(owner for owner in shares if shares[owner] > batch_size / fairness.HEAVY_SHARE)


def plan_unplanned(session: Session, *, now: datetime, settings: Settings) -> int:
    """Give a batch of unplanned schedules their next run; return how many there were."""
    claimed = Claimed()
    rows, damaged = due.lock_unplanned(session, limit=settings.batch_size)
    _set_damaged_aside(session, damaged)
    planning = Planning(batch_size=settings.batch_size)
    for row in rows:
        if not planning.has_time_for(row.owner):
            break
        try:
            _check_payload(row)
            task_allowlist.check(settings, owner=row.owner, task=row.task)
            stated = spec_from_row(cast("SpecColumns", row), settings)
            rule = metered(stated)
            _tell_passed(claimed, row, rule, now)
            fire_at = first_fire(rule, now=now, last_run_at=row.last_run_at)
            moved = _moved(row, rule, Plan(next_fire_at=fire_at), now)
            claimed.changes.append({**moved, "trigger_kind": stated.trigger.kind})
        except ImportError:
            raise
        # As above: this row's trouble alone.
        except Exception as error:  # noqa: BLE001
            _set_aside(claimed, row, error)
        planning.planned(row.owner)
    _record(session, claimed, now=now)
    return len(rows) + len(damaged)


def tell_passed_over(session: Session, *, now: datetime, told: frozenset[int]) -> frozenset[int]:
    """Warn of schedules that are due and of an unknown kind; return the ids of those there are.

    Those in ``told`` were told of before.
    """
    rows = due.find_unsupported(session, now=now, limit=MOST_TOLD)
    for row in rows:
        if row.id not in told:
            logger.warning(
                "schedule %r of owner %r is passed over: unknown kind of trigger %r; known are %s."
                " A newer version's beat may know it; else mend the row",
                row.name,
                row.owner,
                row.trigger_kind,
                ", ".join(KINDS),
                extra={"event": Event.TRIGGER_UNSUPPORTED, "schedule_id": row.id},
            )
    return frozenset(row.id for row in rows)


def _lock_due(
    session: Session,
    *,
    now: datetime,
    limit: int,
    second: frozenset[str],
    since: datetime | None,
) -> LockedRows:
    lock = partial(due.lock_due, session, now=now, since=since)
    if not second:
        return lock(limit=limit)
    others = lock(limit=limit - limit // 2, except_owners=second)
    left = limit - len(others.rows) - len(others.unreadable)
    theirs = lock(limit=left, only_owners=second)
    return LockedRows([*others.rows, *theirs.rows], [*others.unreadable, *theirs.unreadable])


class _OverlapState:
    """The runs of each schedule that overlap with its next, where its policy asks for it."""

    def __init__(
        self, session: Session, rows: Sequence[Row], *, now: datetime, settings: Settings
    ) -> None:
        longest: dict[int, timedelta] = {}
        for row in rows:
            # Beyond all durations: its own rule will say so.
            with suppress(ArithmeticError, TypeError, ValueError):
                if (row.overlap or settings.overlap) != "allow":
                    longest[row.id] = _counts_for(row, settings)
        counting = [
            run
            for run in overlaps.unfinished_runs(session, list(longest))
            if run.started_at is None or now - run.started_at < longest[run.schedule_id]
        ]
        self.unfinished = Counter(run.schedule_id for run in counting)
        self.waiting = Counter(
            run.schedule_id
            for run in counting
            if run.sent_at is None and run.started_at is None and run.origin == Origin.SCHEDULE
        )


def _counts_for(row: Row, settings: Settings) -> timedelta:
    """Return for how long a run counts: one that a newer one ends does so however old it is."""
    if (row.overlap or settings.overlap) == "cancel_previous":
        return timedelta.max
    return max_run_time(row.max_run_time, settings)


def _decide(
    claimed: Claimed,
    row: Row,
    *,
    now: datetime,
    settings: Settings,
    limit: int,
    busy: "_OverlapState",
) -> None:
    _check_payload(row)
    task_allowlist.check(settings, owner=row.owner, task=row.task)
    # A Row has each selected column as an attribute, which its type cannot say.
    rule = metered(spec_from_row(cast("SpecColumns", row), settings))
    planned = plan(
        rule,
        fire_at=row.next_fire_at,
        run_count=row.run_count,
        now=now,
        limit=limit,
        unfinished=busy.unfinished[row.id],
        waiting=busy.waiting[row.id],
        last_run_at=row.last_run_at,
    )
    new = [run_rows.new_outgoing_run(row, at, now=now, settings=settings) for at in planned.runs]
    claimed.changes.append(_moved(row, rule, planned, now))
    claimed.outgoing += new[: len(planned.send)]
    # A run that waits is one that nobody sends until the sweep finds that it need not wait.
    overdue_at = now + settings.dispatch_timeout
    claimed.records += [run_rows.pending_row(run, now=now, overdue_at=overdue_at) for run in new]
    claimed.records += [run_rows.skipped_row(row, skip, now=now) for skip in planned.skips]
    if planned.replaces:
        claimed.replaced.append(row.id)


def _tell_passed(claimed: Claimed, row: Row, rule: ScheduleSpec, now: datetime) -> None:
    """Record what passed while a row was out of the index, before a hand put it back."""
    if row.next_fire_at is None:
        return
    reason = "missed: the schedule was paused or broken"
    skip = skip_missed(rule, fire_at=row.next_fire_at, now=now, reason=reason)
    if skip is not None:
        claimed.records.append(run_rows.skipped_row(row, skip, now=now))


def _record(session: Session, claimed: Claimed, *, now: datetime) -> None:
    new = runs.add(session, claimed.records)
    _replace(session, claimed, new, now=now)
    claimed.outgoing = [outgoing for outgoing in claimed.outgoing if outgoing.run_id in new]
    _uncount(claimed, new)
    # One statement for each set of columns that is written.
    for columns in {frozenset(change) for change in claimed.changes}:
        same = [change for change in claimed.changes if change.keys() == columns]
        due.advance(session, same)
    # A batch of them is large, and what is published next takes its place.
    claimed.records.clear()
    claimed.changes.clear()


def _replace(session: Session, claimed: Claimed, new: Collection[str], *, now: datetime) -> None:
    """Cancel the runs that new ones replace; a fire time that had its run already replaces none."""
    by = {run.schedule_id: run.run_id for run in claimed.outgoing if run.run_id in new}
    replaced = [schedule_id for schedule_id in claimed.replaced if schedule_id in by]
    ids = [by[schedule_id] for schedule_id in replaced]
    claimed.terminate = overlaps.cancel_replaced(session, replaced, by=ids, now=now)


def _uncount(claimed: Claimed, new: Collection[str]) -> None:
    """Count no run for a fire time that had its own, from before the clock was set back."""
    present = Counter(
        record["schedule_id"]
        for record in claimed.records
        if record["status"] == Status.PENDING and record["id"] not in new
    )
    for change in claimed.changes:
        if count := present[change["id"]]:
            change["run_count"] -= count
            if change["next_fire_at"] is None:
                # Perhaps it has runs left after all: the next pass plans it anew.
                change["finished_at"] = None


def _check_payload(row: Row) -> None:
    # The API refuses such a row; one that was typed by hand is caught here.
    shapes = (("args", list), ("kwargs", dict), ("options", dict))
    for column, shape in shapes:
        if not isinstance(getattr(row, column), shape):
            msg = f"{column} must be a JSON {'array' if shape is list else 'object'}"
            raise TypeError(msg)


def _moved(row: Row, rule: ScheduleSpec, planned: Plan, now: datetime) -> dict[str, Any]:
    fire_at = planned.next_fire_at
    change = {
        "id": row.id,
        "next_fire_at": fire_at,
        "next_run_at": None if fire_at is None else run_at(rule, fire_at),
        "run_count": row.run_count + len(planned.runs),
        "finished_at": now if fire_at is None else None,
    }
    return {**change, "last_run_at": planned.runs[-1]} if planned.runs else change


def _set_aside(claimed: Claimed, row: Row, error: Exception) -> None:
    logger.error(
        "schedule %r of owner %r is set aside: %s",
        row.name,
        row.owner,
        error,
        exc_info=error,
        extra={"event": Event.SCHEDULE_QUARANTINED, "schedule_id": row.id},
    )
    claimed.changes.append({"id": row.id, "next_run_at": None, "error": format_error(error)})


def _set_damaged_aside(session: Session, damaged: Sequence[UnreadableRow]) -> int:
    """Set schedules aside that nobody can read; return how many."""
    for damage in damaged:
        # Not exc_info: it may quote what cannot be read.
        logger.error(
            "schedule %s is set aside: %s",
            damage.id,
            damage,
            extra={"event": Event.SCHEDULE_QUARANTINED, "schedule_id": damage.id},
        )
    due.quarantine_unreadable(session, damaged)
    return len(damaged)
