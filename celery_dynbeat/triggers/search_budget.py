"""Fire times looked up in order, each paid for from the budget of the question."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Protocol

from celery_dynbeat.triggers.budget import Budget, SpentError

#: Before any fire time.
BEGINNING = datetime.min.replace(tzinfo=UTC)


class Walk(Protocol):
    """The fire times of a trigger, asked about instants that never decrease."""

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""


class Leaf(Protocol):
    """A trigger that is not made of others."""

    def next_within(self, instant: datetime, budget: Budget) -> datetime | None:
        """Return the first fire time strictly after ``instant``, paid for from ``budget``."""


class LeafWalk:
    """The fire times of such a trigger."""

    def __init__(self, trigger: Leaf, budget: Budget) -> None:
        self._trigger, self._budget = trigger, budget
        self._upcoming: datetime | None = BEGINNING

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire time after ``instant``; one that is still to come is known."""
        if self._upcoming is not None and self._upcoming <= instant:
            self._upcoming = self._trigger.next_within(instant, self._budget)
        return self._upcoming


class UnionWalk:
    """The fire times of several walks."""

    def __init__(self, walks: Iterable[Walk]) -> None:
        self._walks = tuple(walks)

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire time of any of them."""
        fire_times = (walk.after(instant) for walk in self._walks)
        return min((each for each in fire_times if each is not None), default=None)


def fire_times(walk: Walk, after: datetime) -> Iterator[datetime]:
    """Yield the fire times after ``after``; ends early when the budget is spent."""
    try:
        fire_time = walk.after(after)
        while fire_time is not None:
            yield fire_time
            fire_time = walk.after(fire_time)
    except SpentError:
        return
