"""Triggers made of triggers: what they share, and their parts as JSON text.

A part is written as ``to_json`` gives it; the text of a part that is itself made of parts stands
there as JSON, not as a quoted string, so that people can read and type it.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import ClassVar, TypeVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.budget import SEARCH, Budget, SpentError
from celery_dynbeat.triggers.limits import MAX_COMPOSITE
from celery_dynbeat.triggers.metered import Metered, check_preparation, too_costly
from celery_dynbeat.triggers.parse import parse_part
from celery_dynbeat.triggers.search_budget import Walk

#: How many are nested at most: AnyOf of exclusions from AnyOf.
MAX_DEPTH = 3
# Where it is looked whether a trigger fires at all: none looks back beyond the year 1900.
_PROBE = datetime(1901, 1, 1, tzinfo=UTC)
# Each level of triggers is three of JSON at most: an object, its list, an object in it.
_MAX_NESTING = 3 * MAX_DEPTH + 1

C = TypeVar("C", bound="Composite")


@dataclass(frozen=True)
class Composite(Trigger):
    """A trigger made of others. What is said to it about anchors and keys, it passes on.

    A question that takes too many steps raises ``InvalidTriggerError``; the same question does so
    each time.
    """

    __slots__ = ()

    max_spec_length: ClassVar[int] = MAX_COMPOSITE
    metered: ClassVar[bool] = True

    @property
    @abstractmethod
    def parts(self) -> tuple[Trigger, ...]:
        """Return the triggers that this one is made of."""

    @abstractmethod
    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return this trigger made of ``change(part)`` for each part, to be evaluated."""

    @abstractmethod
    def walk(self, budget: Budget) -> Walk:
        """Return its fire times, each paid for from ``budget``."""

    @abstractmethod
    def latest_within(self, budget: Budget, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, paid for from ``budget``."""

    @property
    def preparation(self) -> int:
        """Return the steps to prepare the recurrence rules in it."""
        return sum(part.preparation for part in self.parts)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""
        return Metered(self, Budget(SEARCH)).next_after(instant)

    def next_within(self, instant: datetime, budget: Budget) -> datetime | None:
        """Return ``next_after(instant)``, paid for from ``budget``."""
        return self.walk(budget).after(instant)

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        return Metered(self, Budget(2 * SEARCH)).latest_until(after=after, until=until)

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``.

        It may stop earlier where that takes too many steps: there are at least so many.
        """
        # It takes half of them.
        metered = Metered(self, Budget(4 * SEARCH))
        return metered.count_until(after=after, until=until, limit=limit)

    def checked(self) -> Trigger:
        """Return this trigger.

        Raises ``InvalidTriggerError`` if this trigger, or an exclusion in it, has no fire time.
        Without a check: a trigger with an ``H``, whose fire times depend on the key of the
        schedule, and one with a ``Once.after``, which has no instant yet.
        """
        if self.hashed_by("") is not self or self.resolved_at(_PROBE) is not self:
            return self
        budget = Budget(SEARCH)
        try:
            for part in (self, *self.parts):
                if isinstance(part, Composite) and part.walk(budget).after(_PROBE) is None:
                    rule = "it has no fire time left; exclude fewer days, or leave it out"
                    message = f"{part.kind} {shorten(part.spec)}: {rule}"
                    raise InvalidTriggerError(message, field="excluded")
        except SpentError:
            raise too_costly(self, budget, what="to find its first fire time") from None
        return self

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger with parts that count from ``instant`` where they need an anchor."""
        return self.mapped(lambda part: part.anchored_at(instant))

    def hashed_by(self, key: str) -> Trigger:
        """Return this trigger with parts whose ``H`` have the values that ``key`` picks."""
        return self.mapped(lambda part: part.hashed_by(key))

    def bound_to(self, key: str) -> Trigger:
        """Return this trigger with parts that fire as ``hashed_by(key)`` does."""
        return self.mapped(lambda part: part.bound_to(key))

    def resolved_at(self, instant: datetime) -> Trigger:
        """Return this trigger without a ``Once.after`` in it: they count from ``instant``."""
        resolved = self.mapped(lambda part: part.resolved_at(instant))
        # An instant takes more characters than a delay.
        if isinstance(resolved, Composite) and resolved is not self:
            resolved.check_size()
        return resolved

    def check_size(self) -> None:
        """Raise ``InvalidTriggerError`` if this trigger is larger than what text can bring."""
        size = len(self.spec)
        if size > MAX_COMPOSITE:
            message = (
                f"the combination takes {size} characters; at most {MAX_COMPOSITE} are allowed"
            )
            raise InvalidTriggerError(message, field="spec")

    def check_preparation(self) -> None:
        """Raise ``InvalidTriggerError`` if the rules in this trigger take too long to prepare."""
        check_preparation(self, self.preparation)


def phrase_of(part: Trigger) -> str:
    """Say a part within a sentence that goes on, so that one sees where the part ends."""
    phrase = part.phrase()
    return f"({phrase})" if isinstance(part, Composite) or "; " in phrase else phrase


def rebuilt(trigger: C, /, **changes: object) -> C:
    """Return a copy with other fields, unchecked: evaluated and never stored, it may be larger."""
    copy: C = object.__new__(type(trigger))
    for name in (each.name for each in fields(trigger)):
        object.__setattr__(copy, name, changes.get(name, getattr(trigger, name)))
    return copy


def distinct(triggers: Iterable[Trigger]) -> tuple[Trigger, ...]:
    """Return the different ones in an order that does not depend on the one given."""
    return tuple(sorted(set(triggers), key=_order))


def part_json(trigger: Trigger) -> dict[str, object]:
    """Return a part as JSON; null for a zone tells that it has none, not even that of the row."""
    data: dict[str, object] = {**trigger.to_json()}
    if isinstance(trigger, Composite):
        data["spec"] = json.loads(trigger.spec)
    return data


def dump(value: object) -> str:
    """Return compact JSON, with characters of any language as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def load(spec: str, *, example: str) -> object:
    """Read JSON typed by anybody. Raises ``InvalidTriggerError`` with field ``"spec"``."""
    try:
        value = json.loads(spec, object_pairs_hook=_object)
        deep = _nesting(value) > _MAX_NESTING
    except InvalidTriggerError:
        raise
    except (ValueError, RecursionError) as error:
        reason = f"it must be JSON such as {example}"
        raise InvalidTriggerError(f"{shorten(spec)}: {reason}", field="spec") from error
    if deep:
        reason = f"more than {MAX_DEPTH} combinations inside each other"
        raise InvalidTriggerError(f"{shorten(spec)}: {reason}", field="spec")
    return value


def read_parts(value: object, *, timezone: str | None) -> tuple[Trigger, ...]:
    """Read a list of parts; those that say nothing of a zone are in ``timezone``.

    Reading ends with the part that takes too many steps to prepare, those before it included.
    """
    if not isinstance(value, list):
        message = f"{shorten(value)} must be a list of triggers in JSON"
        raise InvalidTriggerError(message, field="spec")
    parts, steps = list[Trigger](), 0
    for item in value:
        part = read_part(item, timezone=timezone)
        steps += part.preparation
        check_preparation(part, steps)
        parts.append(part)
    return tuple(parts)


def read_part(value: object, *, timezone: str | None) -> Trigger:
    """Read one part."""
    if not isinstance(value, dict):
        message = f"{shorten(value)} must be a trigger, with the keys kind, spec and timezone"
        raise InvalidTriggerError(message, field="spec")
    spec = value.get("spec")
    text = dump(spec) if isinstance(spec, list | dict) else spec
    return parse_part({"timezone": timezone, **value, "spec": text})


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a key that stands twice: Python would keep the last and lose the others' values."""
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            message = f"the key {shorten(key)} stands twice in one object; join what it says"
            raise InvalidTriggerError(message, field="spec")
        seen.add(key)
    return dict(pairs)


def _nesting(value: object) -> int:
    """Return how many lists and objects are nested, counted no further than is needed."""
    level, depth = [value], 0
    while level and depth <= _MAX_NESTING:
        inner = [each for each in level if isinstance(each, list | dict)]
        level = [
            child for each in inner for child in (each.values() if isinstance(each, dict) else each)
        ]
        depth += bool(inner)
    return depth


def _order(trigger: Trigger) -> tuple[str, str, str]:
    return trigger.kind, trigger.spec, trigger.timezone or ""
