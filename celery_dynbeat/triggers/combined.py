"""AnyOf: the fire times of several triggers as those of one."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, islice, pairwise, takewhile
from typing import ClassVar

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import SAMPLE, Trigger, shorten, utc
from celery_dynbeat.triggers.composite import (
    Composite,
    ReadPart,
    distinct,
    dump,
    load,
    part_json,
    read_parts,
    rebuilt,
)

_FEWEST, _MOST = 2, 20
_EXAMPLE = '[{"kind":"cron","spec":"0 9 * * mon-fri"},{"kind":"every","spec":"P1M"}]'


@dataclass(frozen=True, slots=True, init=False, repr=False)
class AnyOf(Composite):
    """Fire when any of 2 to 20 different triggers does; when several do at once, fire once.

    It is a set: the order of the triggers does not matter and is not kept, one that is given twice
    counts once, and an ``AnyOf`` among them counts as its own triggers.

    Raises ``InvalidTriggerError`` with field ``"triggers"``, or ``"spec"`` when it gets too large.
    """

    kind: ClassVar[str] = "any_of"

    triggers: tuple[Trigger, ...]

    def __init__(self, *triggers: Trigger) -> None:
        _check(triggers)
        different = _flat(triggers)
        if not _FEWEST <= len(different) <= _MOST:
            message = (
                f"AnyOf has {len(different)} different triggers; it must have {_FEWEST} to {_MOST}:"
                " use a single trigger as it is, make several schedules of more"
            )
            raise InvalidTriggerError(message, field="triggers")
        object.__setattr__(self, "triggers", different)
        self.check_size()

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(repr, self.triggers))})"

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """Return the triggers."""
        return self.triggers

    @property
    def spec(self) -> str:
        """Return the triggers as a list in JSON."""
        return dump([part_json(trigger) for trigger in self.triggers])

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time of any of them strictly after ``instant``."""
        instant = utc(instant, field="instant")
        fire_times = (trigger.next_after(instant) for trigger in self.triggers)
        return min((each for each in fire_times if each is not None), default=None)

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time of any of them in ``(after, until]``."""
        newest = (trigger.latest_until(after=after, until=until) for trigger in self.triggers)
        return max((each for each in newest if each is not None), default=None)

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the different fire times in ``(after, until]``, at most up to ``limit``."""
        until = utc(until, field="until")
        inside = takewhile(lambda fire_time: fire_time <= until, self._walk(after))
        return sum(1 for _ in islice(inside, max(limit, 0)))

    def shortest_interval(self, *, after: datetime) -> timedelta | None:
        """Return the shortest distance between two of the next SAMPLE fire times."""
        sample = pairwise(islice(self._walk(after), SAMPLE + 1))
        return min((later - earlier for earlier, later in sample), default=None)

    def phrase(self) -> str:
        """Say each of them."""
        return "; or ".join(trigger.phrase() for trigger in self.triggers)

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger with the parts that need a zone and have none in ``name``."""
        placed = _flat(tuple(trigger.in_zone(name) for trigger in self.triggers))
        return AnyOf(*placed) if len(placed) > 1 else placed[0]

    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return the changed triggers combined; the one that is left if all become equal."""
        changed = tuple(map(change, self.triggers))
        if changed == self.triggers:
            return self
        different = _flat(changed)
        return rebuilt(self, triggers=different) if len(different) > 1 else different[0]

    def _walk(self, after: datetime) -> Iterator[datetime]:
        """Yield the fire times after ``after``; asks only the trigger that is next for its next.

        One that is slow to answer, because most of its days are excluded, is asked seldom.
        """
        merged = heapq.merge(*(_fire_times(trigger, after) for trigger in self.triggers))
        return (fire_time for fire_time, _ in groupby(merged))


def _fire_times(trigger: Trigger, after: datetime) -> Iterator[datetime]:
    fire_time = trigger.next_after(after)
    while fire_time is not None:
        yield fire_time
        fire_time = trigger.next_after(fire_time)


def parse_any_of(spec: str, timezone: str | None, *, read: ReadPart) -> Trigger:
    """Read the text of an ``AnyOf``; parts that name no zone are in ``timezone``."""
    return AnyOf(*read_parts(load(spec, example=_EXAMPLE), read=read, timezone=timezone))


def _check(triggers: Iterable[object]) -> None:
    for trigger in triggers:
        if not isinstance(trigger, Trigger):
            message = f"{shorten(trigger)} is no trigger; give each one as an argument"
            raise InvalidTriggerError(message, field="triggers")


def _flat(triggers: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    return distinct(
        part
        for trigger in triggers
        for part in (trigger.triggers if isinstance(trigger, AnyOf) else (trigger,))
    )
