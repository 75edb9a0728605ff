"""The upcoming fire times of a schedule. Pure, like planning/plan.py."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Protocol

from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import first_fire, following, run_at, unskipped


class ProgressColumns(Protocol):
    """The columns of a schedule that say how far it has come."""

    next_fire_at: datetime | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    max_runs: int | None
    run_count: int


def iter_upcoming(
    spec: ScheduleSpec, row: ProgressColumns, *, after: datetime | None = None
) -> Iterator[datetime]:
    """Yield the upcoming fire times of a row, within its span and ``max_runs``.

    ``after`` leaves out the earlier ones, which are due or wait for a release. A paused, finished
    or quarantined row has none. Raises InvalidTriggerError.
    """
    count = None if row.max_runs is None else max(row.max_runs - row.run_count, 0)
    return islice(_iter_upcoming(spec, row, after), count)


def _iter_upcoming(
    spec: ScheduleSpec, row: ProgressColumns, after: datetime | None
) -> Iterator[datetime]:
    if row.next_run_at is None or row.next_fire_at is None:
        # The schedule is paused, finished or quarantined.
        return
    fire_at = unskipped(spec, row.next_fire_at)
    if after is not None and row.next_fire_at <= after:
        fire_at = first_fire(spec, now=after, last_run_at=row.last_run_at)
    while fire_at is not None and (spec.end_at is None or fire_at <= spec.end_at):
        yield fire_at
        fire_at = following(spec, fire_at)


def iter_run_times(spec: ScheduleSpec, fire_times: Iterable[datetime]) -> Iterator[datetime]:
    """Yield when the runs of these fire times are due, in order.

    Fire times that quiet hours skip have no run. Unless ``catch_up`` is "all", all
    fire times in one quiet time have one run.
    """
    before: datetime | None = None
    for fire_at in fire_times:
        if spec.quiet is not None and spec.quiet.skips(fire_at):
            continue
        at = run_at(spec, fire_at)
        if spec.quiet is None or spec.catch_up == "all" or at != before:
            yield at
        before = at
