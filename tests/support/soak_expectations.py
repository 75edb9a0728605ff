"""The expected fire times of a soak test, whose schedules are edited continuously.

All intervals count from one ``start_at``. So between two edits the fire times of a schedule are
whole multiples of its interval. At the end the history must contain each of them, as a run or in a
skipped row, and no others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.db.models import Origin, Run

#: The clocks of two processes may differ by this, so near a change either interval may apply.
TOLERANCE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class IntervalPeriod:
    """A period from ``since`` on, in which the schedule fires every ``interval`` seconds."""

    since: datetime
    interval: int


@dataclass(slots=True)
class Entry:
    """One schedule after the driver's edits; ``row`` is None if it is deleted."""

    name: str
    periods: list[IntervalPeriod]
    row: ScheduleInfo | None
    manual: int = 0

    @property
    def interval(self) -> int:
        """The current interval."""
        return self.periods[-1].interval


@dataclass(slots=True)
class ExpectedFireTimes:
    """Fire times that the history must contain, and those that it may contain."""

    required: set[datetime] = field(default_factory=set)
    possible: set[datetime] = field(default_factory=set)


class SoakExpectations:
    """All schedules that the driver made; their intervals count from ``start_at``."""

    def __init__(self, start_at: datetime) -> None:
        self.start_at = start_at
        self.entries: dict[str, Entry] = {}
        #: The column ``next_fire_at`` of each existing row at the end; the API does not return it.
        self.next_fire_at: dict[str, datetime] = {}

    def created(self, made: ScheduleInfo, interval: int) -> None:
        """Record a new schedule."""
        self.entries[made.name] = Entry(
            made.name, [IntervalPeriod(made.created_at, interval)], made
        )

    def changed(self, name: str, row: ScheduleInfo, interval: int | None = None) -> None:
        """Record that the schedule is planned again from its last edit on."""
        entry = self.entries[name]
        entry.periods.append(IntervalPeriod(row.updated_at, interval or entry.interval))
        entry.row = row

    def existing(self) -> Sequence[Entry]:
        """Return the schedules that are not deleted."""
        return [entry for entry in self.entries.values() if entry.row is not None]

    def expected_fire_times(self, entry: Entry, *, end: datetime) -> ExpectedFireTimes:
        """Return the fire times of a schedule up to ``end``."""
        expected, ends = ExpectedFireTimes(), [*(period.since for period in entry.periods[1:]), end]
        for period, until in zip(entry.periods, ends, strict=True):
            expected.required.update(self._fire_times(period, period.since, min(until, end)))
        for before, after in zip(entry.periods, entry.periods[1:], strict=False):
            if before.interval != after.interval:
                self._tolerate(expected, before, after)
        expected.possible = {at for at in expected.possible if at <= end} - expected.required
        return expected

    def _tolerate(
        self, expected: ExpectedFireTimes, before: IntervalPeriod, after: IntervalPeriod
    ) -> None:
        """Make fire times of only one of the two intervals near their change optional."""
        near = after.since - TOLERANCE, after.since + TOLERANCE
        one, other = (set(self._fire_times(period, *near)) for period in (before, after))
        expected.required -= one ^ other
        expected.possible |= one ^ other

    def _fire_times(
        self, period: IntervalPeriod, since: datetime, until: datetime
    ) -> Iterable[datetime]:
        """Yield the fire times after ``since`` up to ``until``."""
        interval = timedelta(seconds=period.interval)
        number = (since - self.start_at) // interval + 1
        while (at := self.start_at + number * interval) <= until:
            yield at
            number += 1

    def verify(self, runs: Iterable[Run]) -> int:
        """Assert that the history contains the expected fire times only; return their number.

        ``row`` of each existing entry must be its final, paused row, and ``next_fire_at`` must be
        set.
        """
        by_name: dict[str, list[Run]] = {name: [] for name in self.entries}
        for run in runs:
            by_name[run.name].append(run)
        return sum(self._verify(entry, by_name[entry.name]) for entry in self.entries.values())

    def _verify(self, entry: Entry, runs: Sequence[Run]) -> int:
        own = [run for run in runs if run.origin == Origin.SCHEDULE]
        end = self._end(entry, own)
        expected = self.expected_fire_times(entry, end=end - timedelta(microseconds=1))
        recorded = {run.fire_at for run in own}
        count = sum(run.fire_count for run in own)
        least, most = len(expected.required), len(expected.required | expected.possible)
        case = f"{entry.name}: {least} to {most} fire times before {end}, {count} in the history"
        assert len(recorded) == len(own), f"{case}; a fire time occurs twice"
        unexpected = sorted(recorded - expected.required - expected.possible)
        assert not unexpected, f"{case}; not expected: {unexpected[:5]}; periods {entry.periods}"
        assert least <= count <= most, f"{case}; periods {entry.periods}"
        manual = sum(run.origin == Origin.MANUAL for run in runs)
        assert manual == entry.manual, f"{entry.name}: {manual} manual runs, not {entry.manual}"
        return count

    def _end(self, entry: Entry, own: Sequence[Run]) -> datetime:
        """Return the instant from which on no fire time is expected."""
        if entry.row is not None:
            assert entry.row.next_run_at is None, f"{entry.name} is not paused"
            return self.next_fire_at[entry.name]
        # A deletion does not record the fire times that it cut off. The history must have no gaps.
        newest = max((run.fire_at for run in own), default=entry.periods[0].since)
        return newest + timedelta(microseconds=1)
