"""The base class of triggers that combine other triggers, and their parts as JSON.

Each part is its ``to_json`` without a missing zone.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import RepeatedKeyError, load_json, shorten
from celery_dynbeat.triggers.base import (
    MAX_COMPOSITE_LENGTH,
    SEARCH_STEPS,
    BudgetExceededError,
    Calendars,
    Cursor,
    SearchBudget,
    Trigger,
    parse_part,
)
from celery_dynbeat.triggers.calendar_days import empty_calendars
from celery_dynbeat.triggers.wrappers import BudgetedTrigger, check_preparation, too_many_steps

# The instant from which ``checked`` searches. No search goes back past the year 1900.
CHECKED_FROM = datetime(1901, 1, 1, tzinfo=UTC)

#: Calendars that one trigger names. Each plan of its schedule reads them.
MAX_CALENDARS = 5

#: The deepest nesting is AnyOf of exclusions from business days of AnyOf.
MAX_DEPTH = 4
# A level of triggers adds at most three levels of JSON: an object, its list, an object in the list.
_MAX_NESTING = 3 * MAX_DEPTH + 1

C = TypeVar("C", bound="Composite")


@dataclass(frozen=True)
class Composite(Trigger):
    """A trigger that combines others. It applies anchors and keys to each of them.

    A search that takes too many steps raises ``InvalidTriggerError``. The same search does so each
    time.
    """

    __slots__ = ()

    max_spec_length: ClassVar[int] = MAX_COMPOSITE_LENGTH
    needs_budget: ClassVar[bool] = True

    @property
    @abstractmethod
    def json_spec(self) -> Any:
        """Return the list or the object that ``spec`` has as JSON text."""

    @abstractmethod
    def to_text(self) -> str:
        """Return the text of the trigger. ``from_text`` reads it back."""

    @property
    def spec(self) -> str:
        """Return the JSON of the parts. A part that names no zone has no key for it."""
        return json.dumps(self.json_spec, ensure_ascii=False, separators=(",", ":"))

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON. ``spec`` is the list or the object itself.

        ``timezone`` is None if it would count for a part that names none.
        """
        timezone = None if self.needs_zone else self.timezone
        return {"kind": self.kind, "spec": self.json_spec, "timezone": timezone}

    @property
    @abstractmethod
    def parts(self) -> tuple[Trigger, ...]:
        """Return the triggers that this one combines."""

    @abstractmethod
    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return this trigger with ``change(part)`` for each part. It may exceed size limits."""

    @abstractmethod
    def cursor(self, budget: SearchBudget) -> Cursor:
        """Return a cursor over the fire times, which takes its steps from ``budget``."""

    @abstractmethod
    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return the newest fire time in ``(after, until]``. Take its steps from ``budget``."""

    @property
    def needs_zone(self) -> bool:
        """Whether any part needs a zone."""
        return any(part.needs_zone for part in self.parts)

    @property
    def preparation_steps(self) -> int:
        """Return the steps to prepare the recurrence rules of all parts."""
        return sum(part.preparation_steps for part in self.parts)

    @property
    def calendar_names(self) -> tuple[str, ...]:
        """Return the names of the calendars that any part needs."""
        return tuple(sorted({name for part in self.parts for name in part.calendar_names}))

    def resolved(self, calendars: Calendars) -> Trigger:
        """Return this trigger with the days of its calendars in each part."""
        return self.mapped(lambda part: part.resolved(calendars))

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""
        return BudgetedTrigger(self, SearchBudget(SEARCH_STEPS)).next_after(instant)

    def next_within(self, instant: datetime, budget: SearchBudget) -> datetime | None:
        """Return ``next_after(instant)``. Take its steps from ``budget``."""
        return self.cursor(budget).next_after(instant)

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        budgeted = BudgetedTrigger(self, SearchBudget(2 * SEARCH_STEPS))
        return budgeted.latest_until(after=after, until=until)

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``.

        The count is too low if it would take more than 2 * SEARCH_STEPS.
        """
        # A count takes half of its budget.
        budgeted = BudgetedTrigger(self, SearchBudget(4 * SEARCH_STEPS))
        return budgeted.count_until(after=after, until=until, limit=limit)

    def checked(self) -> Trigger:
        """Return this trigger.

        Raises ``InvalidTriggerError`` if this trigger, or an exclusion in it, has no fire time.
        Two triggers are not checked: one with an ``H``, whose fire times depend on the key of the
        schedule, and one with a ``Once.after``, which has no instant yet. Calendars count as empty.
        """
        if self.hashed_by("") is not self or self.resolved_at(CHECKED_FROM) is not self:
            return self
        budget = SearchBudget(SEARCH_STEPS)
        checked: Trigger = self
        if names := self.calendar_names:
            checked = self.resolved(empty_calendars(names))
        assert isinstance(checked, Composite)  # noqa: S101 - resolved() keeps the kind
        try:
            for part in (checked, *checked.parts):
                if isinstance(part, Composite):
                    part.require_fire_time(budget)
        except BudgetExceededError:
            raise too_many_steps(self, budget, task="finding its first fire time") from None
        return self

    def first_excluded_day(self, budget: SearchBudget) -> str:  # noqa: ARG002 - most exclude none
        """Return the start of an error about the first day that the trigger excludes, or ""."""
        return ""

    def require_fire_time(self, budget: SearchBudget) -> None:
        """Raise ``InvalidTriggerError`` if there is no fire time at all."""
        if self.cursor(budget).next_after(CHECKED_FROM) is None:
            rule = "it has no fire time left; exclude fewer days, or leave it out"
            message = f"{shorten(str(self))}: {self.first_excluded_day(budget)}{rule}"
            raise InvalidTriggerError(message, field="excluded")

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger with each part that needs an anchor counting from ``instant``."""
        return self.mapped(lambda part: part.anchored_at(instant))

    def hashed_by(self, key: str) -> Trigger:
        """Return this trigger with each ``H`` replaced by the values that ``key`` selects."""
        return self.mapped(lambda part: part.hashed_by(key))

    def bound_to(self, key: str) -> Trigger:
        """Return this trigger with the same text and the fire times of ``hashed_by(key)``."""
        return self.mapped(lambda part: part.bound_to(key))

    def resolved_at(self, instant: datetime) -> Trigger:
        """Return this trigger with ``instant`` plus the delay for each ``Once.after``."""
        resolved = self.mapped(lambda part: part.resolved_at(instant))
        # An instant is longer than a delay, so the spec may now be too long.
        if isinstance(resolved, Composite) and resolved is not self:
            resolved.check_size()
        return resolved

    def check_size(self) -> None:
        """Raise ``InvalidTriggerError`` for a spec that is too long or has too many calendars."""
        size = len(self.spec)
        if size > MAX_COMPOSITE_LENGTH:
            limit = f"at most {MAX_COMPOSITE_LENGTH} are allowed"
            message = f"the combination takes {size} characters; {limit}"
            raise InvalidTriggerError(message, field="spec")
        names = self.calendar_names
        if len(names) > MAX_CALENDARS:
            message = (
                f"the trigger names {len(names)} calendars; at most {MAX_CALENDARS} are allowed:"
                " let one calendar have their days"
            )
            raise InvalidTriggerError(message, field="calendar")

    def check_preparation(self) -> None:
        """Raise ``InvalidTriggerError`` if the recurrence rules take too long to prepare."""
        check_preparation(self, self.preparation_steps)


def part_json(part: Trigger) -> dict[str, Any]:
    """Return ``to_json`` of a part, without a zone that it does not name."""
    return {key: value for key, value in part.to_json().items() if value is not None}


def part_text(part: Trigger) -> str:
    """Return the text of a part, in parentheses if it has several parts itself."""
    return f"({part})" if part.kind == "any_of" else str(part)


def days_zone(trigger: Trigger, part: Trigger) -> str:
    """Return `` in Asia/Seoul`` if the days of ``trigger`` are not in the zone of ``part``."""
    return "" if trigger.timezone in {None, part.timezone} else f" in {trigger.timezone}"


def phrase_of(part: Trigger, timezone: str | None) -> str:
    """Return the phrase of a part, in parentheses if its end would be unclear."""
    phrase = part.phrase(timezone)
    return f"({phrase})" if isinstance(part, Composite) or "; " in phrase else phrase


def rebuilt(trigger: C, /, **changes: object) -> C:
    """Return an unchecked copy with other fields. It is never stored, so it may be larger."""
    copy: C = object.__new__(type(trigger))
    for name in (field.name for field in fields(trigger)):
        object.__setattr__(copy, name, changes.get(name, getattr(trigger, name)))
    return copy


def distinct(triggers: Iterable[Trigger]) -> tuple[Trigger, ...]:
    """Return the different triggers, in an order that does not depend on theirs."""
    return tuple(sorted(set(triggers), key=_order))


def load(spec: str, *, example: str) -> object:
    """Return the value of JSON text. Raises ``InvalidTriggerError`` with field ``"spec"``."""
    try:
        value = load_json(spec)
        too_deep = _nesting(value) > _MAX_NESTING
    except RepeatedKeyError as error:
        raise InvalidTriggerError(str(error), field="spec") from None
    except (ValueError, RecursionError) as error:
        reason = f"it must be JSON such as {example}"
        raise InvalidTriggerError(f"{shorten(spec)}: {reason}", field="spec") from error
    if too_deep:
        reason = f"more than {MAX_DEPTH} combinations inside each other"
        raise InvalidTriggerError(f"{shorten(spec)}: {reason}", field="spec")
    return value


def read_parts(value: object, *, timezone: str | None) -> tuple[Trigger, ...]:
    """Return the parts of a JSON list. Parts without a ``timezone`` key are in ``timezone``.

    Raises ``InvalidTriggerError`` at the first part at which the preparation of the parts so far
    takes too many steps. The rest is not read.
    """
    if not isinstance(value, list):
        message = f"{shorten(value)} must be a list of triggers in JSON"
        raise InvalidTriggerError(message, field="spec")
    return prepared(read_part(item, timezone=timezone) for item in value)


def prepared(triggers: Iterable[Trigger]) -> tuple[Trigger, ...]:
    """Return ``triggers``. Stop at the first one at which preparing them takes too many steps."""
    parts, steps = list[Trigger](), 0
    for part in triggers:
        steps += part.preparation_steps
        check_preparation(part, steps)
        parts.append(part)
    return tuple(parts)


def read_part(value: object, *, timezone: str | None) -> Trigger:
    """Return the part of a JSON object. If it has no ``timezone`` key, it is in ``timezone``."""
    if not isinstance(value, dict):
        message = f"{shorten(value)} must be a trigger, with the keys kind, spec and timezone"
        raise InvalidTriggerError(message, field="spec")
    return parse_part({"timezone": timezone, **value})


def _nesting(value: object) -> int:
    """Return the depth of nested lists and objects, at most one more than the limit."""
    level, depth = [value], 0
    while level and depth <= _MAX_NESTING:
        inner = [value for value in level if isinstance(value, list | dict)]
        level = [
            child
            for value in inner
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        depth += bool(inner)
    return depth


def _order(trigger: Trigger) -> tuple[str, str, str]:
    return trigger.kind, trigger.spec, trigger.timezone or ""
