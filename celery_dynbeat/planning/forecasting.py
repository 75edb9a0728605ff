"""How many runs of many schedules come due in each bin of time, by queue and owner. Pure.

    schedule -> the group of schedules with the same runs in each bin -> the runs of one of them
             -> times the schedules of the group, by queue and owner

The first run of a schedule is what ``plan`` decides when beat claims it; its recurrences follow as
beat plans them. Schedules with an equal trigger and an equal next fire time are one group. The
intervals of ``Every`` that begin at different seconds are also one group if each bin has the same
number of fire times. They are counted without a loop over fire times.

The groups with the most schedules are computed first, with half of the steps. If the other half
does not suffice for the remaining groups, a random sample of them is computed and represents the
rest.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from math import gcd
from random import Random
from typing import NamedTuple, Protocol, TypeAlias

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning import (
    NO_CALENDARS,
    Calendars,
    ScheduleSpec,
    SpecColumns,
    spec_from_row,
    with_search_budget,
    without,
)
from celery_dynbeat.planning.plan import MICROSECOND, earliest_due, following, next_fire, plan
from celery_dynbeat.planning.upcoming import iter_run_times
from celery_dynbeat.triggers.base import (
    LOOKUP_STEPS,
    BudgetExceededError,
    SearchBudget,
)
from celery_dynbeat.triggers.every import Every

#: The maximum number of fire times of one schedule that are sent together with catch_up="all".
MAX_CAUGHT_UP = 1_000
#: The number of busiest bins whose owners are counted, and the number of largest owners per bin.
MAX_PEAKS, MAX_OWNERS = 10, 5


class Bins(NamedTuple):
    """``number`` bins of equal ``width`` from ``start``."""

    start: datetime
    width: timedelta
    number: int

    @property
    def end(self) -> datetime:
        """The end of the last bin."""
        return self.start + self.number * self.width


class ForecastColumns(SpecColumns, Protocol):
    """The columns of a schedule that a forecast needs."""

    next_fire_at: datetime | None
    run_count: int


class _Series(NamedTuple):
    """The runs of a schedule that beat claims at ``claim_at``.

    ``max_runs`` of ``spec`` is the number of runs that are left. Fields that do not affect the runs
    have their defaults, so that equal runs result in an equal series.
    """

    spec: ScheduleSpec
    fire_at: datetime
    claim_at: datetime
    skipped: frozenset[datetime]


class _Steps(NamedTuple):
    """Runs at equal intervals, in microseconds from the start of the first bin."""

    first: int
    interval: int
    max_runs: int | None


_Group: TypeAlias = _Series | _Steps
#: By owner and queue.
_Members: TypeAlias = Counter[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class Peak:
    """A bin with many runs: its number, its runs, and the runs of its largest owners."""

    bin: int
    runs: int
    owners: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Counts:
    """The runs by bin and queue, and the bins with the most runs, these first.

    ``computed`` of the ``schedules`` were computed; the others are estimated from a sample.
    ``incomplete`` schedules have more runs than were counted, because their trigger is too costly
    to follow to the end.
    """

    runs: Mapping[tuple[int, str | None], int]
    peaks: Sequence[Peak]
    schedules: int
    computed: int
    incomplete: int


class _Computed(NamedTuple):
    """The runs of each schedule of a group, by bin."""

    runs: Mapping[int, int]
    members: _Members
    is_complete: bool


class Forecast:
    """Groups the schedules that ``add`` takes, and counts their runs in ``bins``."""

    def __init__(self, settings: Settings, bins: Bins) -> None:
        self._settings, self._bins = settings, bins
        self._groups: defaultdict[_Group, _Members] = defaultdict(Counter)

    def add(
        self,
        row: ForecastColumns,
        *,
        queue: str | None,
        claim_at: datetime,
        skipped: Collection[datetime] = (),
        calendars: Calendars = NO_CALENDARS,
    ) -> None:
        """Add a schedule that beat claims at ``claim_at``: when it is due, or a hold ends.

        ``skipped`` are the fire times that ``skip()`` removed. ``calendars`` has the calendars that
        the trigger uses. A schedule whose trigger cannot be read has no runs, because beat will
        quarantine it.
        """
        try:
            spec = spec_from_row(row, self._settings, calendars)
        except InvalidTriggerError:
            return
        if row.next_fire_at is None:
            return
        left = None if spec.max_runs is None else spec.max_runs - row.run_count
        group = self._group(spec, left, row.next_fire_at, claim_at, frozenset(skipped))
        self._groups[group][row.owner, queue] += 1

    def _group(
        self,
        spec: ScheduleSpec,
        left: int | None,
        fire_at: datetime,
        claim_at: datetime,
        skipped: frozenset[datetime],
    ) -> _Group:
        is_ending = spec.end_at is not None and spec.end_at < self._bins.end
        is_punctual = claim_at == fire_at and not spec.jitter and not skipped
        is_punctual = is_punctual and spec.quiet is None
        if is_punctual and not is_ending:
            steps = self._steps(spec, left, fire_at)
            if steps is not None:
                return steps
        defaults = ScheduleSpec(spec.trigger)
        spec = spec._replace(
            key=spec.key if spec.jitter else defaults.key,
            start_at=None,
            end_at=spec.end_at if is_ending else None,
            max_runs=left,
            max_run_time=defaults.max_run_time,
        )
        if is_punctual:
            spec = spec._replace(
                catch_up=defaults.catch_up, catch_up_window=None, overlap=defaults.overlap
            )
        return _Series(spec, fire_at, claim_at, skipped)

    def _steps(self, spec: ScheduleSpec, left: int | None, fire_at: datetime) -> _Steps | None:
        """Return the steps of an ``Every`` of elapsed time, or None for another trigger."""
        trigger = spec.trigger
        if not isinstance(trigger, Every) or not trigger.interval or trigger.anchor is None:
            return None
        interval = trigger.interval // MICROSECOND
        if ((fire_at - trigger.anchor) // MICROSECOND) % interval or fire_at < trigger.anchor:
            # Manual SQL moved next_fire_at. The fire time after it is a step from the anchor again.
            return None
        interval *= max(-(-(spec.min_interval // MICROSECOND) // interval), 1)
        first = (fire_at - self._bins.start) // MICROSECOND
        # All terms except this remainder are multiples of the divisor, so the remainder changes no
        # bin.
        first -= first % gcd(interval, self._bins.width // MICROSECOND)
        return _Steps(first, interval, left)

    def count(self, *, steps: int, rng: Random, scale: float = 1.0) -> Counts:
        """Count the runs with about ``steps`` search steps (see ``triggers.base``).

        Each added schedule represents ``scale`` schedules.
        """
        groups = sorted(self._groups.items(), key=lambda item: -item[1].total())
        largest = [*self._computed(groups, steps=steps // 2)]
        others = groups[len(largest) :]
        rng.shuffle(others)
        sample = [*self._computed(others, steps=steps // 2)]
        total, drawn = _schedules([each for _, each in others]), _schedules(_members(sample))
        weighted = [(each, scale) for each in largest]
        weighted += [(each, scale * total / drawn) for each in sample]
        computed = _schedules(_members(largest)) + drawn
        incomplete = [each for each in (*largest, *sample) if not each.is_complete]
        return Counts(
            runs=_by_queue(weighted),
            peaks=_peaks(weighted),
            schedules=round(scale * (computed + total - drawn)),
            computed=computed,
            incomplete=_schedules(_members(incomplete)),
        )

    def _computed(
        self, groups: Sequence[tuple[_Group, _Members]], *, steps: int
    ) -> Iterator[_Computed]:
        """Yield the first groups, at least one, until the steps are spent."""
        spent = 0
        for group, members in groups:
            if spent >= steps:
                return
            # A group may take more steps than are left. Leaving such groups out would add a bias.
            own = SearchBudget(steps / 2)
            runs: Counter[int] = Counter()
            is_complete = True
            if isinstance(group, _Steps):
                _count_steps(group, self._bins, runs)
                own.spent += len(runs) + 1
            else:
                try:
                    for at in _run_times(group, self._bins, own):
                        runs[(at - self._bins.start) // self._bins.width] += 1
                except (InvalidTriggerError, BudgetExceededError):
                    is_complete = False
            spent += own.spent
            yield _Computed(runs, members, is_complete)


def _run_times(series: _Series, bins: Bins, budget: SearchBudget) -> Iterator[datetime]:
    """Yield the instants in ``bins`` at which the runs come due, the earliest first."""
    spec, claim_at = series.spec, series.claim_at
    cost = 0 if spec.trigger.needs_budget else LOOKUP_STEPS
    spec = without(with_search_budget(spec, budget=budget), series.skipped)
    budget.spend(cost)
    planned = plan(spec, fire_at=series.fire_at, run_count=0, now=claim_at, limit=MAX_CAUGHT_UP)
    if bins.start <= claim_at < bins.end:
        yield from (claim_at for _ in planned.runs)
    fire_at, left = planned.next_fire_at, spec.max_runs
    if left is not None:
        # The runs before the bins also count towards max_runs.
        left -= len(planned.runs)
    elif fire_at is not None and fire_at < (first := earliest_due(spec, bins.start)):
        fire_at = next_fire(spec, first - MICROSECOND)

    def fire_times() -> Iterator[datetime]:
        at = fire_at
        while at is not None and at < bins.end and (spec.end_at is None or at <= spec.end_at):
            yield at
            budget.spend(cost)
            at = following(spec, at)

    for at in islice(iter_run_times(spec, fire_times()), left):
        if bins.start <= max(at, claim_at) < bins.end:
            yield max(at, claim_at)


def _count_steps(steps: _Steps, bins: Bins, runs: Counter[int]) -> None:
    """Add the number of steps in each bin to ``runs``."""
    first, interval, left = steps
    width = bins.width // MICROSECOND
    before = max(-(first // interval), 0)
    at, end = first + before * interval, bins.number * width
    # Without max_runs, a number that is never reached.
    left = end if left is None else left - before
    while at < end and left > 0:
        number = at // width
        # The steps from this step to the end of its bin.
        inside = min(-(-((number + 1) * width - at) // interval), left)
        runs[number] += inside
        at, left = at + inside * interval, left - inside


def _schedules(many: Sequence[_Members]) -> int:
    return sum(members.total() for members in many)


def _members(computed: Sequence[_Computed]) -> Sequence[_Members]:
    return [each.members for each in computed]


def _by_queue(
    weighted: Sequence[tuple[_Computed, float]],
) -> Mapping[tuple[int, str | None], int]:
    found: defaultdict[tuple[int, str | None], float] = defaultdict(float)
    for group, weight in weighted:
        queues: Counter[str | None] = Counter()
        for (_, queue), number in group.members.items():
            queues[queue] += number
        for each, runs in group.runs.items():
            for queue, number in queues.items():
                found[each, queue] += runs * number * weight
    return {key: round(found[key]) for key in found}


def _peaks(weighted: Sequence[tuple[_Computed, float]]) -> Sequence[Peak]:
    totals: defaultdict[int, float] = defaultdict(float)
    for group, weight in weighted:
        number = group.members.total() * weight
        for each, runs in group.runs.items():
            totals[each] += runs * number
    highest = sorted(totals, key=lambda each: (-totals[each], each))[:MAX_PEAKS]
    return [Peak(each, round(totals[each]), _largest_owners(weighted, each)) for each in highest]


def _largest_owners(
    weighted: Sequence[tuple[_Computed, float]], number: int
) -> Sequence[tuple[str, int]]:
    """Return the owners with the most runs in the bin, with their runs."""
    found: defaultdict[str, float] = defaultdict(float)
    for group, weight in weighted:
        runs = group.runs.get(number, 0) * weight
        if runs:
            for (owner, _), members in group.members.items():
                found[owner] += members * runs
    largest = sorted(found, key=lambda owner: (-found[owner], owner))[:MAX_OWNERS]
    return [(owner, round(found[owner])) for owner in largest]
