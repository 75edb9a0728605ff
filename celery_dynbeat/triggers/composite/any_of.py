"""AnyOf: the fire times of several triggers as those of one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import ClassVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import SAMPLE, Trigger, utc
from celery_dynbeat.triggers.budget import SEARCH, Budget
from celery_dynbeat.triggers.composite.members import (
    Composite,
    distinct,
    dump,
    load,
    part_json,
    phrase_of,
    read_parts,
    rebuilt,
)
from celery_dynbeat.triggers.search_budget import UnionWalk, Walk, fire_times

_FEWEST, _MOST = 2, 20
# The distance between the fire times of one part shows in so many of them.
_LEAST_SAMPLE = 20
_EXAMPLE = '[{"kind":"cron","spec":"0 9 * * mon-fri"},{"kind":"every","spec":"P1M"}]'


@dataclass(frozen=True, slots=True, init=False, repr=False)
class AnyOf(Composite):
    """Fire when any of 2 to 20 different triggers does; when several do at once, fire once.

    It is a set: the order of the triggers does not matter and is not kept, one that is given twice
    counts once, and an ``AnyOf`` among them, also within an exclusion, counts as its own triggers.

    Raises ``InvalidTriggerError`` with field ``"triggers"``, or ``"spec"`` when it gets too large.
    """

    kind: ClassVar[str] = "any_of"

    triggers: tuple[Trigger, ...]

    def __init__(self, *given: Trigger, triggers: Iterable[Trigger] = ()) -> None:
        # By its name too, for dataclasses.replace.
        given = (*given, *triggers)
        _check(given)
        different = _flat(given)
        count = sum(map(_leaves, different))
        if len(different) < _FEWEST or count > _MOST:
            message = (
                f"AnyOf has {count} different triggers; it must have {_FEWEST} to {_MOST}:"
                " use a single trigger as it is, make several schedules of more"
            )
            raise InvalidTriggerError(message, field="triggers")
        object.__setattr__(self, "triggers", different)
        self.check_size()
        self.check_preparation()

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for a JSON list; parts that name no zone are in ``timezone``."""
        return cls(*read_parts(load(spec, example=_EXAMPLE), timezone=timezone))

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

    def walk(self, budget: Budget) -> Walk:
        """Return the fire times of all of them."""
        return UnionWalk(trigger.walk(budget) for trigger in self.triggers)

    def latest_within(self, budget: Budget, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time of any of them in ``(after, until]``."""
        newest = (part.latest_within(budget, after=after, until=until) for part in self.triggers)
        return max((each for each in newest if each is not None), default=None)

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the shortest distance between two of the next ``sample`` fire times.

        Or between two of one part, if that is shorter: it may begin long after those.
        """
        after = utc(after, field="after")
        share = max(sample // len(self.triggers), _LEAST_SAMPLE)
        own = (part.shortest_interval(after=after, sample=share) for part in self.triggers)
        found = pairwise(islice(fire_times(self.walk(Budget(SEARCH)), after), sample))
        distances = [*own, *(later - earlier for earlier, later in found)]
        return min((each for each in distances if each is not None), default=None)

    def phrase(self) -> str:
        """Say each of them."""
        return "; or ".join(map(phrase_of, self.triggers))

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


def _leaves(trigger: Trigger) -> int:
    """Return of how many triggers it takes the fire times; what is excluded takes no part."""
    if not isinstance(trigger, Composite):
        return 1
    return sum(map(_leaves, trigger.parts if isinstance(trigger, AnyOf) else trigger.parts[:1]))
