"""Excluding: a trigger without its fire times on certain days."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import ClassVar
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import SAMPLE, Trigger
from celery_dynbeat.triggers.composite.any_of import AnyOf
from celery_dynbeat.triggers.composite.base import (
    Composite,
    part_json,
    phrase_of,
    rebuilt,
    row_part_json,
)
from celery_dynbeat.triggers.composite.excluded_days import ExcludingCursor, latest_included
from celery_dynbeat.triggers.composite.parts import (
    distinct,
    dump,
    load,
    read_part,
    read_parts,
)
from celery_dynbeat.triggers.cursors import Cursor
from celery_dynbeat.triggers.search_budget import SearchBudget
from celery_dynbeat.triggers.zones import zone_name

_MAX_DATES, _MAX_TRIGGERS, _MAX_LISTED = 366, 10, 5
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_KEYS = ("trigger", "dates", "triggers", "timezone")
_EXAMPLE = '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"dates":["2026-12-25"]}'


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Excluding(Composite):
    """Fire when ``trigger`` fires, except on certain days. ``Trigger.excluding`` builds it.

    ``what`` is at most 366 dates, and at most 10 triggers that exclude each day on which they fire.
    The days are days of ``timezone``, by default of the trigger's zone, else of UTC. A trigger
    without a zone gets the zone of its schedule (or ``dynbeat_timezone``) when it is stored. A day
    begins when the clock first shows its midnight. Excluded triggers without a zone are in the
    same zone. An ``AnyOf`` among them counts as its own triggers. An excluded trigger
    cannot have exclusions.

    After 800 excluded days in a row, or 12 years of them, there is no further fire time. Fire times
    lie in the years 1900 to 9900.

    Raises ``InvalidTriggerError`` with field ``"excluded"``, ``"timezone"``, or ``"spec"`` when it
    is too large.
    """

    kind: ClassVar[str] = "excluding"

    trigger: Trigger
    dates: tuple[date, ...]
    triggers: tuple[Trigger, ...]
    timezone: str | None

    def __init__(
        self,
        trigger: Trigger,
        *what: date | Trigger,
        timezone: str | ZoneInfo | None = None,
        dates: Iterable[date] = (),
        triggers: Iterable[Trigger] = (),
    ) -> None:
        # The field names are arguments too, for dataclasses.replace.
        what = (*what, *dates, *triggers)
        _check_types(trigger, what)
        timezone = None if timezone is None else zone_name(timezone)
        zone = timezone or trigger.timezone
        if isinstance(trigger, Excluding) and trigger.timezone == zone:
            what = (*trigger.dates, *trigger.triggers, *what)
            trigger = trigger.trigger
        _check_not_nested(trigger, zone)
        days, excluded = _split_exclusions(what, zone)
        object.__setattr__(self, "trigger", trigger)
        object.__setattr__(self, "dates", days)
        object.__setattr__(self, "triggers", excluded)
        object.__setattr__(self, "timezone", zone)
        self.check_size()
        self.check_preparation()

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for a JSON object; parts that name no zone are in ``timezone``.

        So are its days, unless the object has a ``timezone`` of its days.
        """
        data = load(spec, example=_EXAMPLE)
        if not isinstance(data, dict) or "trigger" not in data or data.keys() - set(_KEYS):
            rule = f"it must be an object with the keys {', '.join(_KEYS)}, such as {_EXAMPLE}"
            raise InvalidTriggerError(f"{shorten(spec)}: {rule}", field="spec")
        trigger = read_part(data["trigger"], timezone=timezone)
        triggers = read_parts(data.get("triggers", []), timezone=timezone)
        zone = data.get("timezone", timezone)
        return cls(trigger, *_read_dates(data.get("dates", [])), *triggers, timezone=zone)

    def __repr__(self) -> str:
        what = ", ".join(map(repr, (*self.dates, *self.triggers)))
        return f"{self.trigger!r}.excluding({what}, timezone={self.timezone!r})"

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """Return the trigger and the excluded triggers."""
        return (self.trigger, *self.triggers)

    @property
    def spec(self) -> str:
        """Return the trigger, the dates and the excluded triggers as a JSON object."""
        return dump(self._data(part_json))

    @property
    def needs_zone(self) -> bool:
        """Whether its days or any part need a zone."""
        return self.timezone is None or any(part.needs_zone for part in self.parts)

    @property
    def row_spec(self) -> str:
        """Return the JSON object of ``spec`` without the zones that the row gives.

        If only the days have a zone, the object has it as ``timezone``.
        """
        data = self._data(row_part_json)
        if self.needs_zone and self.timezone is not None:
            data["timezone"] = self.timezone
        return dump(data)

    def cursor(self, budget: SearchBudget) -> Cursor:
        """Return a cursor over the fire times on days that are not excluded."""
        return ExcludingCursor(self, budget)

    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return the newest fire time in ``(after, until]`` on a day that is not excluded."""
        return latest_included(self, budget, after=after, until=until)

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return that of the trigger: excluding whole days cannot shorten an interval."""
        return self.trigger.shortest_interval(after=after, sample=sample)

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the trigger and its exclusions. More than 5 dates are only counted."""
        exceptions = []
        if self.dates:
            exceptions.append(f"on {self._describe_dates()}")
        if self.triggers:
            phrases = "; ".join(phrase_of(each, timezone) for each in self.triggers)
            exceptions.append(f"on days of: {phrases}")
        return f"{phrase_of(self.trigger, timezone)}, except {' and '.join(exceptions)}"

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger with the zone ``name`` for its days and for each part that needs it.

        Zones that are set stay.
        """
        zone = self.timezone or name
        return Excluding(self.trigger.in_zone(name), *self.dates, *self.triggers, timezone=zone)

    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return this trigger with each part changed."""
        changed = tuple(map(change, self.parts))
        if changed == self.parts:
            return self
        trigger, *excluded = changed
        return rebuilt(self, trigger=trigger, triggers=distinct(excluded))

    def _data(self, to_json: Callable[[Trigger], dict[str, object]]) -> dict[str, object]:
        data: dict[str, object] = {"trigger": to_json(self.trigger)}
        if self.dates:
            data["dates"] = [day.isoformat() for day in self.dates]
        if self.triggers:
            data["triggers"] = [to_json(trigger) for trigger in self.triggers]
        return data

    def _describe_dates(self) -> str:
        words = ", ".join(day.isoformat() for day in self.dates)
        if len(self.dates) > _MAX_LISTED:
            words = f"{len(self.dates)} dates"
        return words if self.timezone == self.trigger.timezone else f"{words} in {self.timezone}"


def _read_dates(texts: object) -> list[date]:
    if not isinstance(texts, list):
        raise _refusal(texts, "the dates must be a list of texts such as 2026-12-25")
    days = []
    for text in texts:
        if not isinstance(text, str) or not _DATE.fullmatch(text):
            raise _refusal(text, "a date must be text such as 2026-12-25")
        try:
            days.append(date.fromisoformat(text))
        except ValueError as error:
            raise _refusal(text, "this day does not exist; write one such as 2026-12-25") from error
    return days


def _check_types(trigger: object, what: Iterable[object]) -> None:
    if not isinstance(trigger, Trigger):
        message = f"{shorten(trigger)} is not a trigger; write Cron(...).excluding(...)"
        raise InvalidTriggerError(message, field="trigger")
    for each in what:
        if isinstance(each, datetime):
            raise _refusal(each, "days are excluded, not instants; give each its .date()")
        if not isinstance(each, date | Trigger):
            raise _refusal(each, "it must be a datetime.date or a trigger, each an argument")


def _check_not_nested(trigger: Trigger, zone: str | None) -> None:
    """Refuse exclusions inside ``trigger``: the cost of nested searches has no bound."""
    if isinstance(trigger, Excluding):
        reason = f"it has exclusions by days of {trigger.timezone or 'no zone'}, not of {zone}"
        raise _refusal(trigger, f"{reason}; give all of them the same timezone")
    if isinstance(trigger, AnyOf) and any(isinstance(each, Composite) for each in trigger.parts):
        raise _refusal(trigger, "its triggers have exclusions; give all of them to each trigger")


def _split_exclusions(
    what: Iterable[date | Trigger], zone: str | None
) -> tuple[tuple[date, ...], tuple[Trigger, ...]]:
    """Return the dates, and the triggers with ``zone`` where they need one, each once."""
    given = tuple(what)
    triggers = [
        part
        for each in given
        if isinstance(each, Trigger)
        for part in (each.parts if isinstance(each, AnyOf) else (each,))
    ]
    if bad := next((each for each in triggers if isinstance(each, Composite)), None):
        raise _refusal(bad, "an excluded trigger cannot have exclusions; give plain triggers")
    dates = tuple(sorted({each for each in given if not isinstance(each, Trigger)}))
    different = distinct(each if zone is None else each.in_zone(zone) for each in triggers)
    if not given:
        raise _refusal((), "nothing is excluded; give a date or a trigger")
    if len(dates) > _MAX_DATES:
        raise _refusal(f"{len(dates)} dates", f"at most {_MAX_DATES}; use a Cron for the rest")
    if len(different) > _MAX_TRIGGERS:
        raise _refusal(f"{len(different)} triggers", f"at most {_MAX_TRIGGERS}; join them in one")
    return dates, different


def _refusal(value: object, reason: str) -> InvalidTriggerError:
    return InvalidTriggerError(f"excluding {shorten(value)}: {reason}", field="excluded")
