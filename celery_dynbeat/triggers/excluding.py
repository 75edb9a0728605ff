"""Excluding: a trigger without the fire times that fall on certain days."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import ClassVar

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import Trigger, require_text, shorten, utc
from celery_dynbeat.triggers.composite import (
    Composite,
    ReadPart,
    distinct,
    dump,
    load,
    part_json,
    read_part,
    read_parts,
    rebuilt,
)
from celery_dynbeat.triggers.steps import EARLIEST, LATEST, day_around
from celery_dynbeat.triggers.zones import lookup

_MOST_DATES, _MOST_TRIGGERS, _MOST_LISTED = 366, 10, 5
# Excluded days in a row after which the search ends: of a daily trigger, more than five years.
_MOST_TRIES = 2000
# Their span after which it ends: each date but 29 February has been on each weekday by then.
_LONGEST_SEARCH = timedelta(days=12 * 366)
_MICROSECOND = timedelta(microseconds=1)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_KEYS = ("trigger", "dates", "triggers")
_EXAMPLE = '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"dates":["2026-12-25"]}'


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Excluding(Composite):
    """Fire when ``trigger`` does, except on certain days; ``Trigger.excluding`` makes it.

    ``what`` are dates, at most 366, and triggers, at most 10, on whose days it does not fire. The
    days are those of ``timezone``, without one of the trigger's own zone, without that of UTC; one
    begins when the clock first shows its midnight. Excluded triggers without a zone are in it too.

    After 2,000 excluded days in a row, or 12 years of nothing else, it fires no more. Fire times
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
        self, trigger: Trigger, *what: date | Trigger, timezone: str | None = None
    ) -> None:
        _check(what)
        if timezone is not None:
            lookup(require_text(timezone, field="timezone", example="Asia/Seoul"))
        zone = timezone or trigger.timezone
        if isinstance(trigger, Excluding) and trigger.timezone == zone:
            what = (*trigger.dates, *trigger.triggers, *what)
            trigger = trigger.trigger
        dates, triggers = _sorted_out(what, zone)
        object.__setattr__(self, "trigger", trigger)
        object.__setattr__(self, "dates", dates)
        object.__setattr__(self, "triggers", triggers)
        object.__setattr__(self, "timezone", zone)
        self.check_size()

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

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant`` that no excluded day holds."""
        instant = max(utc(instant, field="instant"), EARLIEST)
        days = _ExcludedDays(self)
        give_up_at = LATEST
        for _ in range(_MOST_TRIES):
            fire_time = self.trigger.next_after(instant)
            if fire_time is None or fire_time > give_up_at:
                return None
            end = days.end_around(fire_time)
            if end is None:
                return fire_time
            give_up_at = min(give_up_at, fire_time + _LONGEST_SEARCH)
            # Just before the end, because the next day's midnight may be a fire time.
            instant = end - _MICROSECOND
        return None

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``; costs the excluded days before it."""
        after = max(utc(after, field="after"), EARLIEST)
        until = min(utc(until, field="until"), LATEST)
        zone = lookup(self.timezone or "UTC")
        for _ in range(_MOST_TRIES):
            fire_time = self.trigger.latest_until(after=after, until=until)
            if fire_time is None:
                return None
            day, start, end = day_around(zone, fire_time)
            before, last = start - _MICROSECOND, end - _MICROSECOND
            newest = (each.latest_until(after=before, until=last) for each in self.triggers)
            if day not in self.dates and all(each is None for each in newest):
                return fire_time
            until = before
        return None

    def shortest_interval(self, *, after: datetime) -> timedelta | None:
        """Return that of the trigger: whole days left out bring no fire times closer."""
        return self.trigger.shortest_interval(after=after)

    def phrase(self) -> str:
        """Say the trigger and what is excluded; dates by their number if they are many."""
        exceptions = []
        if self.dates:
            exceptions.append(f"on {self._said_dates()}")
        if self.triggers:
            phrases = "; ".join(trigger.phrase() for trigger in self.triggers)
            exceptions.append(f"on days of: {phrases}")
        return f"{self.trigger.phrase()}, except {' and '.join(exceptions)}"

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


class _ExcludedDays:
    """The excluded days, asked about fire times that increase: each trigger is walked once."""

    def __init__(self, rule: Excluding) -> None:
        self._dates = rule.dates
        self._zone = lookup(rule.timezone or "UTC")
        self._walks = [_Walk(trigger) for trigger in rule.triggers]

    def end_around(self, fire_time: datetime) -> datetime | None:
        """Return the end of the excluded day that ``fire_time`` falls on, None if it does not."""
        day, start, end = day_around(self._zone, fire_time)
        if day in self._dates or any(walk.fires_in(start, end) for walk in self._walks):
            return end
        return None


class _Walk:
    """The fire times of one trigger, asked about spans that increase."""

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger
        self._upcoming: datetime | None = EARLIEST

    def fires_in(self, start: datetime, end: datetime) -> bool:
        """Whether there is a fire time in ``[start, end)``."""
        if self._upcoming is not None and self._upcoming < start:
            self._upcoming = self._trigger.next_after(start - _MICROSECOND)
        return self._upcoming is not None and self._upcoming < end


def parse_excluding(spec: str, timezone: str | None, *, read: ReadPart) -> Trigger:
    """Read the text of an ``Excluding``; parts that name no zone are in ``timezone``."""
    data = load(spec, example=_EXAMPLE)
    if not isinstance(data, dict) or "trigger" not in data or data.keys() - set(_KEYS):
        rule = f"it must be an object with the keys {', '.join(_KEYS)}, such as {_EXAMPLE}"
        raise InvalidTriggerError(f"{shorten(spec)}: {rule}", field="spec")
    trigger = read_part(data["trigger"], read=read, timezone=timezone)
    triggers = read_parts(data.get("triggers", []), read=read, timezone=timezone)
    return trigger.excluding(*_read_dates(data.get("dates", [])), *triggers, timezone=timezone)


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
            raise _refusal(text, str(error)) from error
    return days


def _check(what: Iterable[object]) -> None:
    for each in what:
        if isinstance(each, datetime):
            raise _refusal(each, "days are excluded, not instants; give each its .date()")
        if not isinstance(each, date | Trigger):
            raise _refusal(each, "it must be a datetime.date or a trigger, each an argument")


def _sorted_out(
    what: Iterable[date | Trigger], zone: str | None
) -> tuple[tuple[date, ...], tuple[Trigger, ...]]:
    """Return the dates and the triggers, each once; the triggers in ``zone`` if they need one."""
    given = tuple(what)
    triggers = [each for each in given if isinstance(each, Trigger)]
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
