"""Fire times looked up in order, and what one question about them may cost.

People make up combinations that need thousands of lookups to tell one fire time. So each question
has an effort, one for all parts, counted in lookups of about 60 microseconds. It does not depend on
what is remembered: a rule that is refused once is refused always, on every machine.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.rrule import RRule
from celery_dynbeat.triggers.solar import Solar

#: The effort of one question: a tenth of a second.
MOST = 1800
# A look back from the end of a span is several lookups.
_LOOK_BACK = 4
# The sun takes half a millisecond. Days without the event are passed over one by one, so many.
_SOLAR, _MOST_DAYS = 8, 400
#: Before any fire time.
BEGINNING = datetime.min.replace(tzinfo=UTC)


class SpentError(Exception):
    """The effort of a question is spent; it never leaves this package."""


@dataclass(slots=True)
class Effort:
    """The lookups that a question has left."""

    left: int = MOST

    def spend(self, price: int) -> None:
        """Take ``price`` lookups. Raises ``SpentError`` when there are not so many left."""
        self.left -= price
        if self.left < 0:
            raise SpentError


class Walk(Protocol):
    """The fire times of a trigger, asked about instants that never decrease."""

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""


class LeafWalk:
    """The fire times of a trigger that is not made of others."""

    def __init__(self, trigger: Trigger, effort: Effort) -> None:
        self._trigger, self._effort = trigger, effort
        self._upcoming: datetime | None = BEGINNING

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire time after ``instant``; one that is still to come is known."""
        if self._upcoming is not None and self._upcoming <= instant:
            self._upcoming = self._trigger.next_after(instant)
            self._effort.spend(_price(self._trigger, instant, self._upcoming))
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
    """Yield the fire times after ``after``; ends early when the effort is spent."""
    try:
        fire_time = walk.after(after)
        while fire_time is not None:
            yield fire_time
            fire_time = walk.after(fire_time)
    except SpentError:
        return


def latest_of_leaf(
    trigger: Trigger, effort: Effort, *, after: datetime, until: datetime
) -> datetime | None:
    """Return the newest fire time in ``(after, until]`` of a trigger not made of others."""
    found = trigger.latest_until(after=after, until=until)
    effort.spend(_LOOK_BACK * _price(trigger, after if found is None else found, until))
    return found


def _price(trigger: Trigger, instant: datetime, found: datetime | None) -> int:
    """Return what it costs to find a fire time."""
    if isinstance(trigger, RRule):
        # It may consist of 20 rules, each of which is asked.
        return 1 + trigger.spec.count("RRULE:") // 3
    if not isinstance(trigger, Solar):
        return 1
    days = _MOST_DAYS if found is None else (found - instant).days
    return _SOLAR + 2 * max(min(days, _MOST_DAYS), 0)
