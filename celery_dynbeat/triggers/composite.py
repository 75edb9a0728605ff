"""Triggers made of triggers: what they share, and their parts as JSON text.

A part is written as ``to_json`` gives it; the text of a part that is itself made of parts stands
there as JSON, not as a quoted string, so that people can read and type it.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TypeVar

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import Trigger, shorten

#: How many characters the text of such a trigger may have: a year of dates and some triggers.
MAX_SPEC = 8000
#: How many of them may be nested.
MAX_DEPTH = 3
# Each level of triggers is three of JSON at most: an object, its list, an object in it.
_MAX_NESTING = 3 * MAX_DEPTH + 1

C = TypeVar("C", bound="Composite")
ReadPart = Callable[[Mapping[str, object]], Trigger]


@dataclass(frozen=True)
class Composite(Trigger):
    """A trigger made of others. What is said to it about anchors and keys, it passes on."""

    __slots__ = ()

    @property
    @abstractmethod
    def parts(self) -> tuple[Trigger, ...]:
        """Return the triggers that this one is made of."""

    @abstractmethod
    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return this trigger made of ``change(part)`` for each part, to be evaluated."""

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger with parts that count from ``instant`` where they need an anchor."""
        return self.mapped(lambda part: part.anchored_at(instant))

    def hashed_by(self, key: str) -> Trigger:
        """Return this trigger with parts whose ``H`` have the values that ``key`` picks."""
        return self.mapped(lambda part: part.hashed_by(key))

    def check_size(self) -> None:
        """Raise ``InvalidTriggerError`` if this trigger is larger than what text can bring."""
        depth, size = depth_of(self), len(self.spec)
        if depth > MAX_DEPTH:
            message = f"{depth} combinations inside each other; at most {MAX_DEPTH} are allowed"
            raise InvalidTriggerError(message, field="spec")
        if size > MAX_SPEC:
            message = f"the combination takes {size} characters; at most {MAX_SPEC} are allowed"
            raise InvalidTriggerError(message, field="spec")


def rebuilt(trigger: C, /, **changes: object) -> C:
    """Return a copy with other fields, unchecked: evaluated and never stored, it may be larger."""
    copy: C = object.__new__(type(trigger))
    for name in (each.name for each in fields(trigger)):
        object.__setattr__(copy, name, changes.get(name, getattr(trigger, name)))
    return copy


def depth_of(trigger: Trigger) -> int:
    """Return how many composites are nested in ``trigger``, 0 for one that is none."""
    if not isinstance(trigger, Composite):
        return 0
    return 1 + max(depth_of(part) for part in trigger.parts)


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
        value = json.loads(spec)
        deep = _nesting(value) > _MAX_NESTING
    except (ValueError, RecursionError) as error:
        reason = f"it must be JSON such as {example}"
        raise InvalidTriggerError(f"{shorten(spec)}: {reason}", field="spec") from error
    if deep:
        reason = f"more than {MAX_DEPTH} combinations inside each other"
        raise InvalidTriggerError(f"{shorten(spec)}: {reason}", field="spec")
    return value


def read_parts(value: object, *, read: ReadPart, timezone: str | None) -> tuple[Trigger, ...]:
    """Read a list of parts; those that say nothing of a zone are in ``timezone``."""
    if not isinstance(value, list):
        message = f"{shorten(value)} must be a list of triggers in JSON"
        raise InvalidTriggerError(message, field="spec")
    return tuple(read_part(item, read=read, timezone=timezone) for item in value)


def read_part(value: object, *, read: ReadPart, timezone: str | None) -> Trigger:
    """Read one part."""
    if not isinstance(value, dict):
        message = f"{shorten(value)} must be a trigger, with the keys kind, spec and timezone"
        raise InvalidTriggerError(message, field="spec")
    spec = value.get("spec")
    text = dump(spec) if isinstance(spec, list | dict) else spec
    return read({"timezone": timezone, **value, "spec": text})


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
