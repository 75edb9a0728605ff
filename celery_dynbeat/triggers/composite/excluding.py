"""Excluding: a trigger without the fire times that fall on certain days."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import ClassVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import SAMPLE, Trigger, require_text
from celery_dynbeat.triggers.budget import Budget
from celery_dynbeat.triggers.composite.any_of import AnyOf
from celery_dynbeat.triggers.composite.members import (
    Composite,
    distinct,
    dump,
    load,
    part_json,
    phrase_of,
    read_part,
    read_parts,
    rebuilt,
)
from celery_dynbeat.triggers.composite.open_days import OpenDays, latest_open
from celery_dynbeat.triggers.search_budget import Walk
from celery_dynbeat.triggers.zones import lookup

_MOST_DATES, _MOST_TRIGGERS, _MOST_LISTED = 366, 10, 5
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_KEYS = ("trigger", "dates", "triggers")
_EXAMPLE = '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"dates":["2026-12-25"]}'


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Excluding(Composite):
    """Fire when ``trigger`` does, except on certain days; ``Trigger.excluding`` makes it.

    ``what`` are dates, at most 366, and triggers, at most 10, on whose days it does not fire. The
    days are those of ``timezone``, without one of the trigger's own zone, without that of UTC; a
    schedule gives its zone (``dynbeat_timezone``, if it has none) to a rule without one. A day
    begins when the clock first shows its midnight. Excluded triggers without a zone are in it too;
    an ``AnyOf`` among them counts as its own triggers, and none has exclusions of its own.

    After 800 excluded days in a row, or 12 years of nothing else, it fires no more. Fire times
    lie in the years 1900 to 9900.

    Raises ``InvalidTriggerError`` with field ``"excluded"``, ``"timezone"``, or ``"spec"`` when it
    gets too large.
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
        timezone: str | None = None,
        dates: Iterable[date] = (),
        triggers: Iterable[Trigger] = (),
    ) -> None:
        # By their names too, for dataclasses.replace.
        what = (*what, *dates, *triggers)
        _check(trigger, what)
        if timezone is not None:
            lookup(require_text(timezone, field="timezone", example="Asia/Seoul"))
        zone = timezone or trigger.timezone
        if isinstance(trigger, Excluding) and trigger.timezone == zone:
            what = (*trigger.dates, *trigger.triggers, *what)
            trigger = trigger.trigger
        _check_simple(trigger, zone)
        days, excluded = _sorted_out(what, zone)
        object.__setattr__(self, "trigger", trigger)
        object.__setattr__(self, "dates", days)
        object.__setattr__(self, "triggers", excluded)
        object.__setattr__(self, "timezone", zone)
        self.check_size()
        self.check_preparation()

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for a JSON object; parts that name no zone are in ``timezone``."""
        data = load(spec, example=_EXAMPLE)
        if not isinstance(data, dict) or "trigger" not in data or data.keys() - set(_KEYS):
            rule = f"it must be an object with the keys {', '.join(_KEYS)}, such as {_EXAMPLE}"
            raise InvalidTriggerError(f"{shorten(spec)}: {rule}", field="spec")
        trigger = read_part(data["trigger"], timezone=timezone)
        triggers = read_parts(data.get("triggers", []), timezone=timezone)
        return cls(trigger, *_read_dates(data.get("dates", [])), *triggers, timezone=timezone)

    def __repr__(self) -> str:
        what = ", ".join(map(repr, (*self.dates, *self.triggers)))
        return f"{self.trigger!r}.excluding({what}, timezone={self.timezone!r})"

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """Return the trigger and those that are excluded."""
        return (self.trigger, *self.triggers)

    @property
    def spec(self) -> str:
        """Return the trigger, the dates and the excluded triggers as an object in JSON."""
        data: dict[str, object] = {"trigger": part_json(self.trigger)}
        if self.dates:
            data["dates"] = [day.isoformat() for day in self.dates]
        if self.triggers:
            data["triggers"] = [part_json(trigger) for trigger in self.triggers]
        return dump(data)

    def walk(self, budget: Budget) -> Walk:
        """Return the fire times of the trigger that no excluded day holds."""
        return OpenDays(self, budget)

    def latest_within(self, budget: Budget, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]`` that no excluded day holds."""
        return latest_open(self, budget, after=after, until=until)

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return that of the trigger: whole days left out bring no fire times closer."""
        return self.trigger.shortest_interval(after=after, sample=sample)

    def phrase(self) -> str:
        """Say the trigger and what is excluded; dates by their number if they are many."""
        exceptions = []
        if self.dates:
            exceptions.append(f"on {self._said_dates()}")
        if self.triggers:
            phrases = "; ".join(map(phrase_of, self.triggers))
            exceptions.append(f"on days of: {phrases}")
        return f"{phrase_of(self.trigger)}, except {' and '.join(exceptions)}"

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger with the days, and the parts that need a zone, in ``name``.

        What has a zone already keeps it.
        """
        zone = self.timezone or name
        return Excluding(self.trigger.in_zone(name), *self.dates, *self.triggers, timezone=zone)

    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return this trigger with each of its parts changed."""
        changed = tuple(map(change, self.parts))
        if changed == self.parts:
            return self
        trigger, *excluded = changed
        return rebuilt(self, trigger=trigger, triggers=distinct(excluded))

    def _said_dates(self) -> str:
        said = ", ".join(day.isoformat() for day in self.dates)
        if len(self.dates) > _MOST_LISTED:
            said = f"{len(self.dates)} dates"
        return said if self.timezone == self.trigger.timezone else f"{said} in {self.timezone}"


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
            raise _refusal(text, "no such day; write one such as 2026-12-25") from error
    return days


def _check(trigger: object, what: Iterable[object]) -> None:
    if not isinstance(trigger, Trigger):
        message = f"{shorten(trigger)} is no trigger; write Cron(...).excluding(...)"
        raise InvalidTriggerError(message, field="trigger")
    for each in what:
        if isinstance(each, datetime):
            raise _refusal(each, "days are excluded, not instants; give each its .date()")
        if not isinstance(each, date | Trigger):
            raise _refusal(each, "it must be a datetime.date or a trigger, each an argument")


def _check_simple(trigger: Trigger, zone: str | None) -> None:
    """Refuse exclusions in what days are excluded from: searches in searches have no bound."""
    if isinstance(trigger, Excluding):
        reason = f"it has exclusions by days of {trigger.timezone or 'no zone'}, not of {zone}"
        raise _refusal(trigger, f"{reason}; give all of them the same timezone")
    if isinstance(trigger, AnyOf) and any(isinstance(each, Composite) for each in trigger.parts):
        raise _refusal(trigger, "its triggers have exclusions; give all of them to each trigger")


def _sorted_out(
    what: Iterable[date | Trigger], zone: str | None
) -> tuple[tuple[date, ...], tuple[Trigger, ...]]:
    """Return the dates and the triggers, each once; the triggers in ``zone`` if they need one."""
    given = tuple(what)
    triggers = [
        part
        for each in given
        if isinstance(each, Trigger)
        for part in (each.parts if isinstance(each, AnyOf) else (each,))
    ]
    if bad := next((each for each in triggers if isinstance(each, Composite)), None):
        raise _refusal(bad, "what is excluded has no exclusions of its own; give plain triggers")
    dates = tuple(sorted({each for each in given if not isinstance(each, Trigger)}))
    different = distinct(each if zone is None else each.in_zone(zone) for each in triggers)
    if not given:
        raise _refusal((), "nothing is excluded; give a date or a trigger")
    if len(dates) > _MOST_DATES:
        raise _refusal(f"{len(dates)} dates", f"at most {_MOST_DATES}; use a Cron for the rest")
    if len(different) > _MOST_TRIGGERS:
        raise _refusal(f"{len(different)} triggers", f"at most {_MOST_TRIGGERS}; join them in one")
    return dates, different


def _refusal(value: object, reason: str) -> InvalidTriggerError:
    return InvalidTriggerError(f"excluding {shorten(value)}: {reason}", field="excluded")
