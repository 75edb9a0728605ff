"""The upcoming fire times of a schedule, and their runs. Pure, like planning/plan.py."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple, Protocol

from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import (
    MICROSECOND,
    delayed_at,
    first_fire,
    following,
    most_runs,
    sends_all,
    unskipped,
)
from celery_dynbeat.triggers.zones import describe_instant

_SUPERSEDED = "in quiet hours: a newer fire time is sent instead"
_OVERLAPPED = "at the end of quiet hours: overlap skips it"


class ProgressColumns(Protocol):
    """The columns of a schedule that contain its progress."""

    next_fire_at: datetime | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    max_runs: int | None
    run_count: int


class PlannedFireTime(NamedTuple):
    """An upcoming fire time, whether it becomes a run, and what quiet hours do to it.

    ``wait_note=None`` means that they do nothing. ``is_overlapped`` means that it has no run
    because of the overlap policy.
    """

    at: datetime
    has_run: bool = True
    wait_note: str | None = None
    is_overlapped: bool = False


def window_note(
    window: object, fire_at: datetime, run_at: datetime, *, timezone: str
) -> str | None:
    """Return a note if the run of ``fire_at`` is sent later, at ``run_at``, because of a window."""
    if not window or run_at <= fire_at:
        return None
    return f"in its window: sent at {describe_instant(run_at, timezone)}"


def iter_upcoming(
    spec: ScheduleSpec, row: ProgressColumns, *, after: datetime | None = None
) -> Iterator[PlannedFireTime]:
    """Yield the upcoming fire times of a row, within its span and ``max_runs``.

    ``after`` leaves out the earlier ones, which are due, or wait for a release or for the end of
    quiet hours. A paused, finished or quarantined row has none. Raises InvalidTriggerError.
    """
    if row.next_run_at is None or row.next_fire_at is None:
        # The schedule is paused, finished or quarantined.
        return
    left = None if row.max_runs is None else max(row.max_runs - row.run_count, 0)
    fire_at, waiting = unskipped(spec, row.next_fire_at), 0
    if after is not None and row.next_fire_at <= after:
        if spec.quiet is None or spec.quiet.end(after) == after:
            # Without quiet hours, only the window makes a fire time wait.
            waiting = int(row.next_run_at > after)
        else:
            waiting = _waiting_runs(spec, row.next_fire_at, until=after, max_runs=left)
        left = None if left is None else max(left - waiting, 0)
        fire_at = first_fire(spec, now=after, last_run_at=row.last_run_at)
        if spec.quiet is None or fire_at is None or spec.quiet.end(fire_at) > spec.quiet.end(after):
            waiting = 0
    yield from iter_planned(spec, fire_at, max_runs=left, waiting=waiting)


def iter_sent(spec: ScheduleSpec, row: ProgressColumns) -> Iterator[PlannedFireTime]:
    """Yield the upcoming fire times of a row that are sent, those that wait first.

    Fire times without a run are left out. A paused, finished or quarantined row has none. Raises
    InvalidTriggerError.
    """
    if row.next_run_at is None or row.next_fire_at is None:
        return
    left = None if row.max_runs is None else max(row.max_runs - row.run_count, 0)
    fire_at = unskipped(spec, row.next_fire_at)
    yield from iter_planned(spec, fire_at, max_runs=left, only_runs=True)


def iter_planned(
    spec: ScheduleSpec,
    fire_at: datetime | None,
    *,
    max_runs: int | None,
    waiting: int = 0,
    only_runs: bool = False,
) -> Iterator[PlannedFireTime]:
    """Yield the fire times from ``fire_at`` on, up to the last one that ``max_runs`` runs allow.

    They are decided as beat decides them without downtime and without unfinished runs. Fire times
    without a run do not count. ``waiting`` runs of earlier fire times are sent together with the
    run of ``fire_at``. With ``only_runs`` the fire times without a run are left out. Raises
    InvalidTriggerError.
    """
    left, together = max_runs, waiting
    quiet_end = newest = None
    while fire_at is not None and left != 0 and (spec.end_at is None or fire_at <= spec.end_at):
        end = fire_at if spec.quiet is None else spec.quiet.end(fire_at)
        if end != quiet_end:
            together = together if quiet_end is None else 0
            # One search for all fire times of a quiet time.
            quiet_end, newest = end, fire_at if end == fire_at else _newest(spec, fire_at, end)
        planned = _planned(spec, fire_at, newest=newest, together=together)
        if only_runs and not planned.has_run and newest is not None and fire_at < newest:
            # One quiet time can have many fire times without a run.
            if planned.is_overlapped:
                fire_at = following(spec, newest)
                continue
            if not sends_all(spec):
                fire_at = newest
                continue
        if planned.has_run or not only_runs:
            yield planned
        if planned.has_run:
            together += 1
            left = None if left is None else left - 1
        # Beat applies min_interval before overlap.
        if planned.has_run or planned.is_overlapped:
            fire_at = following(spec, fire_at)
        else:
            fire_at = spec.trigger.next_after(fire_at)


def _planned(
    spec: ScheduleSpec, fire_at: datetime, *, newest: datetime | None, together: int
) -> PlannedFireTime:
    """Return a fire time; ``newest`` is the newest one of its quiet time.

    ``together`` earlier fire times of its quiet time have a run.
    """
    if spec.quiet is None:
        return PlannedFireTime(fire_at)
    if newest is not None and fire_at < newest and not sends_all(spec):
        return PlannedFireTime(fire_at, has_run=False, wait_note=_SUPERSEDED)
    most = most_runs(spec)
    if most is not None and together >= most:
        return PlannedFireTime(fire_at, has_run=False, wait_note=_OVERLAPPED, is_overlapped=True)
    note = spec.quiet.note(fire_at, delayed_at=delayed_at(spec, fire_at))
    return PlannedFireTime(fire_at, wait_note=note)


def _newest(spec: ScheduleSpec, fire_at: datetime, end: datetime) -> datetime | None:
    """Return the newest fire time from ``fire_at`` to ``end``, or None.

    The fire times are in the quiet time that lasts up to ``end``, or at its end.
    """
    until = end if spec.end_at is None else min(end, spec.end_at)
    return spec.trigger.latest_until(after=fire_at - MICROSECOND, until=until)


def _waiting_runs(
    spec: ScheduleSpec, fire_at: datetime, *, until: datetime, max_runs: int | None
) -> int:
    """Return how many runs of the fire times up to ``until`` wait for the end of quiet hours.

    The number is needed only if ``max_runs`` or the overlap policy limits the runs.
    """
    if sends_all(spec):
        limits = [limit for limit in (max_runs, most_runs(spec)) if limit is not None]
        if not limits:
            return 0
        after, limit = fire_at - MICROSECOND, min(limits)
        return spec.trigger.count_until(after=after, until=until, limit=limit)
    if max_runs is None:
        return 0
    end = until if spec.quiet is None else spec.quiet.end(until)
    newest = _newest(spec, fire_at, end)
    return int(newest is not None and newest <= until)
