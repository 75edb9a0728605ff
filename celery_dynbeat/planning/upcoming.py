"""The upcoming fire times of a schedule, as the passes of beat decide about them. PURE.

Each step asks ``plan`` at the instant of beat's next pass, as the claim does. A hold is a time
without passes: the first pass is at its end.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import (
    Plan,
    due_at,
    due_until,
    following,
    most_admitted,
    next_planned,
    plan,
)

#: The maximum number of fire times of one schedule that are sent together with catch_up="all".
MAX_CAUGHT_UP = 1_000


class PlannedRun(NamedTuple):
    """An upcoming fire time, and when its run is sent."""

    at: datetime
    run_at: datetime


class PlannedFireTime(NamedTuple):
    """An upcoming fire time, and when its run is sent. ``reason`` is why it has no run."""

    at: datetime
    run_at: datetime | None = None
    reason: str | None = None


def iter_runs(
    spec: ScheduleSpec,
    fire_at: datetime | None,
    *,
    now: datetime,
    run_count: int = 0,
    claimed_at: datetime | None = None,
) -> Iterator[PlannedRun]:
    """Yield the fire times from ``fire_at`` on that become runs, as ``iter_planned`` does.

    ``run_count`` is the number of runs so far. ``claimed_at`` is when beat claims the first fire
    time, if an earlier plan has decided that.
    """
    passes = _passes(
        spec, fire_at, now=now, run_count=run_count, claimed_at=claimed_at, only_runs=True
    )
    for _, at, made in passes:
        yield from (PlannedRun(each, at) for each in made.runs)


def iter_planned(
    spec: ScheduleSpec, fire_at: datetime | None, *, now: datetime
) -> Iterator[PlannedFireTime]:
    """Yield the fire times from ``fire_at`` on, also those that are decided without a run.

    They are decided as beat decides them if it runs from ``now`` on without downtime, and each run
    ends before the next pass. Raises InvalidTriggerError.
    """
    for first, run_at, made in _passes(spec, fire_at, now=now):
        runs = set(made.runs)
        at: datetime | None = first
        newest = max((*made.runs, *(skip.newest for skip in made.skips)), default=first)
        while at is not None and at <= newest:
            if at in runs:
                yield PlannedFireTime(at, run_at)
            elif reason := next((each.reason for each in made.skips if at <= each.newest), None):
                yield PlannedFireTime(at, reason=reason)
            # Beat applies min_interval to the fire times that catch_up wants.
            is_wanted = at in runs or at > made.runs[-1] if runs else False
            at = following(spec, at) if is_wanted else spec.trigger.next_after(at)


def _passes(
    spec: ScheduleSpec,
    fire_at: datetime | None,
    *,
    now: datetime,
    run_count: int = 0,
    claimed_at: datetime | None = None,
    only_runs: bool = False,
) -> Iterator[tuple[datetime, datetime, Plan]]:
    """Yield the next fire time of each pass, when the pass is, and its plan.

    With ``only_runs``, the fire times that overlap skips are passed over: there can be millions.
    """
    passed_at: datetime | None = None
    most = most_admitted(spec) if only_runs else None
    unfinished = buffered = 0
    at = now
    while fire_at is not None:
        at = max(claimed_at or due_at(spec, fire_at, now=now), at)
        claimed_at = None
        if at != passed_at:
            # A run ends before the next pass, unless that follows at once.
            passed_at, unfinished, buffered = at, 0, 0
        made = plan(
            spec,
            fire_at=fire_at,
            run_count=run_count,
            now=at,
            limit=MAX_CAUGHT_UP if most is None else most,
            unfinished=unfinished,
            buffered=buffered,
        )
        yield fire_at, at, made
        run_count += len(made.runs)
        unfinished, buffered = unfinished + len(made.runs), buffered + len(made.buffered)
        if made.next_fire_at == fire_at and not made.runs and not made.skips:
            # The search for the end of a quiet time is bounded. Beat asks again at this instant.
            return
        fire_at = made.next_fire_at
        if fire_at is not None and most is not None and unfinished >= most:
            until = due_until(spec, fire_at, at)
            fire_at = fire_at if fire_at > until else next_planned(spec, until)
