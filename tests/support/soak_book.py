"""What a soak test owes: the fire times of schedules that somebody edits all the time.

All intervals count from one ``start_at``, so the fire times of a schedule between two edits are
whole multiples of its interval in the span between them. At the end the history must account for
each of them, as a run or within a skipped row, and for nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from celery_dynbeat.client import ScheduleInfo
from celery_dynbeat.db.models import Origin, Run

#: The clocks of two processes may differ by this: near a change of interval either may hold.
TOLERANCE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Epoch:
    """From ``since`` on the schedule fires every ``interval`` seconds."""

    since: datetime
    interval: int


@dataclass(slots=True)
class Entry:
    """One schedule as the driver left it; ``row`` is None once it is deleted."""

    name: str
    epochs: list[Epoch]
    row: ScheduleInfo | None
    manual: int = 0

    @property
    def interval(self) -> int:
        """The present interval."""
        return self.epochs[-1].interval


@dataclass(slots=True)
class Owed:
    """Fire times that the history must account for, and those that it may."""

    required: set[datetime] = field(default_factory=set)
    possible: set[datetime] = field(default_factory=set)


class Book:
    """All schedules that the driver made; ``start_at`` is what their intervals count from."""

    def __init__(self, start_at: datetime) -> None:
        self.start_at = start_at
        self.entries: dict[str, Entry] = {}
        #: That column of each living row at the end, which the API does not show.
        self.next_fire_at: dict[str, datetime] = {}

    def created(self, made: ScheduleInfo, interval: int) -> None:
        """Note a new schedule."""
        self.entries[made.name] = Entry(made.name, [Epoch(made.created_at, interval)], made)

    def changed(self, name: str, row: ScheduleInfo, interval: int | None = None) -> None:
        """Note that the schedule is planned anew from its last edit on."""
        entry = self.entries[name]
        entry.epochs.append(Epoch(row.updated_at, interval or entry.interval))
        entry.row = row

    def living(self) -> Sequence[Entry]:
        """Return the schedules that are not deleted."""
        return [entry for entry in self.entries.values() if entry.row is not None]

    def owed(self, entry: Entry, *, end: datetime) -> Owed:
        """Return the fire times of a schedule up to ``end``."""
        owed, ends = Owed(), [*(epoch.since for epoch in entry.epochs[1:]), end]
        for epoch, until in zip(entry.epochs, ends, strict=True):
            owed.required.update(self._fire_times(epoch, epoch.since, min(until, end)))
        for before, after in zip(entry.epochs, entry.epochs[1:], strict=False):
            if before.interval != after.interval:
                self._blur(owed, before, after)
        owed.possible = {at for at in owed.possible if at <= end} - owed.required
        return owed

    def _blur(self, owed: Owed, before: Epoch, after: Epoch) -> None:
        """Make what only one of two intervals fires near their change a mere possibility."""
        near = after.since - TOLERANCE, after.since + TOLERANCE
        one, other = (set(self._fire_times(epoch, *near)) for epoch in (before, after))
        owed.required -= one ^ other
        owed.possible |= one ^ other

    def _fire_times(self, epoch: Epoch, since: datetime, until: datetime) -> Iterable[datetime]:
        """Yield the fire times after ``since`` up to ``until``."""
        interval = timedelta(seconds=epoch.interval)
        number = (since - self.start_at) // interval + 1
        while (at := self.start_at + number * interval) <= until:
            yield at
            number += 1

    def settle(self, runs: Iterable[Run]) -> int:
        """Assert that the history holds what is owed, no more, and return how many that is.

        ``row`` of each living entry must be the row as it stands, paused, and ``next_fire_at`` be
        known.
        """
        by_name: dict[str, list[Run]] = {name: [] for name in self.entries}
        for run in runs:
            by_name[run.name].append(run)
        return sum(self._settle(entry, by_name[entry.name]) for entry in self.entries.values())

    def _settle(self, entry: Entry, runs: Sequence[Run]) -> int:
        own = [run for run in runs if run.origin == Origin.SCHEDULE]
        end = self._end(entry, own)
        owed = self.owed(entry, end=end - timedelta(microseconds=1))
        told = {run.scheduled_for for run in own}
        count = sum(run.fire_count for run in own)
        least, most = len(owed.required), len(owed.required | owed.possible)
        case = f"{entry.name}: {least} to {most} fire times before {end}, {count} in the history"
        assert len(told) == len(own), f"{case}; a fire time stands there twice"
        strange = sorted(told - owed.required - owed.possible)
        assert not strange, f"{case}; nobody owes {strange[:5]}; epochs {entry.epochs}"
        assert least <= count <= most, f"{case}; epochs {entry.epochs}"
        manual = sum(run.origin == Origin.MANUAL for run in runs)
        assert manual == entry.manual, f"{entry.name}: {manual} manual runs, not {entry.manual}"
        return count

    def _end(self, entry: Entry, own: Sequence[Run]) -> datetime:
        """Return the instant from which on nothing is owed yet."""
        if entry.row is not None:
            assert entry.row.next_run_at is None, f"{entry.name} is not paused"
            return self.next_fire_at[entry.name]
        # A deletion leaves no word of what it cut off; what there is must have no gaps.
        newest = max((run.scheduled_for for run in own), default=entry.epochs[0].since)
        return newest + timedelta(microseconds=1)
