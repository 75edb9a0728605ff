"""Read fire times in order. Each search takes its steps from a budget."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Protocol

from celery_dynbeat.triggers.search_budget import BudgetExceededError, SearchBudget

#: Earlier than any fire time.
MIN_INSTANT = datetime.min.replace(tzinfo=UTC)


class Cursor(Protocol):
    """Finds the fire times of a trigger, for instants that never decrease."""

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""


class SingleTrigger(Protocol):
    """A trigger that is not made of other triggers."""

    def next_within(self, instant: datetime, budget: SearchBudget) -> datetime | None:
        """Return the first fire time strictly after ``instant``. Take its steps from ``budget``."""


class SingleCursor:
    """A cursor over one trigger. It remembers its last result."""

    def __init__(self, trigger: SingleTrigger, budget: SearchBudget) -> None:
        self._trigger, self._budget = trigger, budget
        self._upcoming: datetime | None = MIN_INSTANT

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time after ``instant``."""
        if self._upcoming is not None and self._upcoming <= instant:
            self._upcoming = self._trigger.next_within(instant, self._budget)
        return self._upcoming


class MergedCursor:
    """A cursor over several cursors."""

    def __init__(self, cursors: Iterable[Cursor]) -> None:
        self._cursors = tuple(cursors)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time of any cursor."""
        following = (cursor.next_after(instant) for cursor in self._cursors)
        return min((fire_time for fire_time in following if fire_time is not None), default=None)


def iter_fire_times(cursor: Cursor, *, after: datetime) -> Iterator[datetime]:
    """Yield the fire times after ``after``. The iterator ends early if the budget is exceeded."""
    try:
        fire_time = cursor.next_after(after)
        while fire_time is not None:
            yield fire_time
            fire_time = cursor.next_after(fire_time)
    except BudgetExceededError:
        return
