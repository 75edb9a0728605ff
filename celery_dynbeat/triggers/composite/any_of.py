"""AnyOf: the fire times of several triggers combined."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import (
    SAMPLE,
    Cursor,
    SearchBudget,
    Trigger,
)
from celery_dynbeat.triggers.composite.base import (
    Composite,
    distinct,
    load,
    part_json,
    phrase_of,
    read_parts,
    rebuilt,
)

_MIN_TRIGGERS, MAX_TRIGGERS = 2, 20
# The fire times of one part that are compared at least.
_MIN_SAMPLE = 20
_EXAMPLE = '[{"kind":"cron","spec":"0 9 * * mon-fri"},{"kind":"every","spec":"P1M"}]'


@dataclass(frozen=True, slots=True, init=False, repr=False)
class AnyOf(Composite):
    """Fire when any of 2 to 20 triggers fires, but only once if several fire at one instant.

    The triggers are a set. Their order is not kept, and a repeated trigger counts once. The members
    of a nested ``AnyOf``, even within an exclusion, count as members of this trigger.

    Raises ``InvalidTriggerError`` with field ``"triggers"``, or ``"spec"`` if it is too large.

    >>> AnyOf(Cron("0 9 * * mon-fri"), Cron("0 12 * * sat")).describe()
    'At 12:00, on Saturday, UTC; or at 09:00, Monday to Friday, UTC'
    """

    kind: ClassVar[str] = "any_of"

    triggers: tuple[Trigger, ...]

    def __init__(self, *parts: Trigger, triggers: Iterable[Trigger] = ()) -> None:
        # The field name is also an argument, for dataclasses.replace.
        parts = (*parts, *triggers)
        _check(parts)
        different = _flat(parts)
        count = sum(map(_leaves, different))
        if len(different) < _MIN_TRIGGERS or count > MAX_TRIGGERS:
            message = (
                f"AnyOf has {count} different triggers; it must have {_MIN_TRIGGERS} to "
                f"{MAX_TRIGGERS}: use a single trigger without AnyOf, and split more triggers "
                "into several schedules"
            )
            raise InvalidTriggerError(message, field="triggers")
        object.__setattr__(self, "triggers", different)
        self.check_size()
        self.check_preparation()

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for a JSON list; parts that name no zone are in ``timezone``."""
        data = load(spec, example=_EXAMPLE)
        parts = read_parts(data, timezone=timezone)
        if timezone is not None and len(_flat(parts)) < _MIN_TRIGGERS:
            # Different triggers can become equal in a zone: "0 9 * * *" in that zone, and in none.
            return cls(*read_parts(data, timezone=None)).in_zone(timezone)
        return cls(*parts)

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(repr, self.triggers))})"

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """Return the triggers."""
        return self.triggers

    @property
    def json_spec(self) -> list[Any]:
        """Return the JSON of the triggers."""
        return [*map(part_json, self.triggers)]

    def to_text(self) -> str:
        """Return the texts of the triggers with ``or`` between them."""
        return " or ".join(
            f"({each})" if isinstance(each, Composite) else str(each) for each in self.triggers
        )

    def cursor(self, budget: SearchBudget) -> Cursor:
        """Return a cursor over the fire times of all triggers."""
        return _MergedCursor(trigger.cursor(budget) for trigger in self.triggers)

    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return the newest fire time of any trigger in ``(after, until]``."""
        newest = (part.latest_within(budget, after=after, until=until) for part in self.triggers)
        return max((at for at in newest if at is not None), default=None)

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the shortest interval between two of the next ``sample`` fire times.

        The fire times of each part are also sampled, because a part may begin long after the
        others.
        """
        share = max(sample // len(self.triggers), _MIN_SAMPLE)
        intervals = [part.shortest_interval(after=after, sample=share) for part in self.triggers]
        # super() does not work in a dataclass with slots, because that is a copy of the class.
        intervals.append(Composite.shortest_interval(self, after=after, sample=sample))
        return min((interval for interval in intervals if interval is not None), default=None)

    @property
    def has_excluded_days(self) -> bool:
        """Whether each part can exclude days."""
        return all(part.has_excluded_days for part in self.parts)

    def excludes(self, instant: datetime) -> bool:
        """Return whether each part excludes the day of ``instant``."""
        return all(part.excludes(instant) for part in self.parts)

    def phrase(self, timezone: str | None = None) -> str:
        """Describe each trigger."""
        return "; or ".join(phrase_of(trigger, timezone) for trigger in self.triggers)

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger with the zone ``name`` for each part that needs one and has none."""
        triggers = _flat(tuple(trigger.in_zone(name) for trigger in self.triggers))
        return AnyOf(*triggers) if len(triggers) > 1 else triggers[0]

    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return the changed triggers combined, or the only one if all become equal."""
        changed = tuple(map(change, self.triggers))
        if changed == self.triggers:
            return self
        different = _flat(changed)
        return rebuilt(self, triggers=different) if len(different) > 1 else different[0]


class _MergedCursor(Cursor):
    """A cursor over several cursors."""

    def __init__(self, cursors: Iterable[Cursor]) -> None:
        self._cursors = tuple(cursors)

    def _search(self, instant: datetime) -> datetime | None:
        following = (cursor.next_after(instant) for cursor in self._cursors)
        return min((fire_time for fire_time in following if fire_time is not None), default=None)


def _check(triggers: Iterable[object]) -> None:
    for trigger in triggers:
        if not isinstance(trigger, Trigger):
            message = f"{shorten(trigger)} is not a trigger; give each trigger as an argument"
            raise InvalidTriggerError(message, field="triggers")


def _flat(triggers: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    return distinct(
        part
        for trigger in triggers
        for part in (trigger.triggers if isinstance(trigger, AnyOf) else (trigger,))
    )


def _leaves(trigger: Trigger) -> int:
    """Return the number of triggers that fire; excluded triggers do not count."""
    if not isinstance(trigger, Composite):
        return 1
    return sum(map(_leaves, trigger.parts if isinstance(trigger, AnyOf) else trigger.parts[:1]))
