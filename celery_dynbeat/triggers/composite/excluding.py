"""Excluding: a trigger without its fire times on certain days.

A search ends without a fire time after MAX_EXCLUDED_DAYS days or LONGEST_SEARCH, whichever comes
first.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError, UnresolvedCalendarError
from celery_dynbeat.common.text import EARLIEST, LATEST, shorten
from celery_dynbeat.triggers.base import (
    SAMPLE,
    SEARCH_STEPS,
    BudgetExceededError,
    Calendars,
    Cursor,
    SearchBudget,
    SingleCursor,
    Trigger,
)
from celery_dynbeat.triggers.calendar_days import CalendarDays, check_name, days_of, written_name
from celery_dynbeat.triggers.composite.any_of import AnyOf
from celery_dynbeat.triggers.composite.base import (
    CHECKED_FROM,
    Composite,
    days_zone,
    distinct,
    load,
    part_json,
    part_text,
    phrase_of,
    read_part,
    read_parts,
    rebuilt,
)
from celery_dynbeat.triggers.zones import day_around, load_zone, zone_name

MAX_DATES, MAX_TRIGGERS, _MAX_LISTED = 366, 10, 5
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_KEYS = ("trigger", "dates", "triggers", "calendars", "timezone")
_EXAMPLE = '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"dates":["2026-12-25"]}'
#: More than two years of a daily trigger.
MAX_EXCLUDED_DAYS = 800
#: In this time each date except 29 February falls on each weekday.
LONGEST_SEARCH = timedelta(days=12 * 366)
_DAY, _MICROSECOND = timedelta(days=1), timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Excluding(Composite):
    """Fire when ``trigger`` fires, except on certain days. ``Trigger.excluding`` builds it.

    ``what`` contains at most 366 dates, and at most 10 triggers that exclude each day on which they
    fire. The days are in ``timezone``, or else in the trigger's zone, or else in UTC. A trigger
    without a zone gets the zone of its schedule (or ``dynbeat_timezone``) when it is stored. A day
    begins when the clock first shows its midnight. Excluded triggers without a zone use the same
    zone. An excluded ``AnyOf`` counts as its members. An excluded trigger cannot have exclusions
    itself. ``calendars`` are the names of at most 5 shared calendars. ``resolved`` gives the
    trigger the days of these calendars, without which it yields no fire time.

    After 800 excluded days in a row, or after 12 years of excluded days, there is no further fire
    time. Fire times are in the years 1900 to 9900.

    Raises ``InvalidTriggerError`` with field ``"excluded"``, ``"timezone"``, or ``"spec"`` if it is
    too large.

    >>> weekdays = Cron("0 9 * * mon-fri").excluding(date(2026, 12, 25))
    >>> weekdays.describe()
    'At 09:00, Monday to Friday, UTC, except on 2026-12-25'
    >>> str(weekdays.next_after(datetime(2026, 12, 24, 9, tzinfo=UTC)))
    '2026-12-28 09:00:00+00:00'
    """

    kind: ClassVar[str] = "excluding"

    trigger: Trigger
    dates: tuple[date, ...]
    triggers: tuple[Trigger, ...]
    timezone: str | None
    calendars: tuple[str, ...]
    #: The days of each calendar, from ``resolved``. It is empty until the calendars are read.
    days: tuple[CalendarDays, ...] = field(init=False)

    def __init__(
        self,
        trigger: Trigger,
        *what: date | Trigger,
        timezone: str | ZoneInfo | None = None,
        dates: Iterable[date] = (),
        triggers: Iterable[Trigger] = (),
        calendars: Iterable[str] = (),
    ) -> None:
        # The field names are also arguments, for dataclasses.replace.
        what = (*what, *dates, *triggers)
        _check_types(trigger, what)
        names = {*map(check_name, calendars)}
        timezone = None if timezone is None else zone_name(timezone)
        zone = timezone or trigger.timezone
        if isinstance(trigger, Excluding) and trigger.timezone == zone:
            what = (*trigger.dates, *trigger.triggers, *what)
            names |= {*trigger.calendars}
            trigger = trigger.trigger
        _check_not_nested(trigger, zone)
        days, excluded = _split_exclusions(what, zone)
        if not what and not names:
            raise _refusal((), "nothing is excluded; give a date, a trigger or a calendar")
        object.__setattr__(self, "trigger", trigger)
        object.__setattr__(self, "dates", days)
        object.__setattr__(self, "triggers", excluded)
        object.__setattr__(self, "timezone", zone)
        object.__setattr__(self, "calendars", tuple(sorted(names)))
        object.__setattr__(self, "days", ())
        self.check_size()
        self.check_preparation()

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for a JSON object; parts that name no zone are in ``timezone``.

        Its days are in the same zone, unless the object has a ``timezone`` for them.
        """
        data = load(spec, example=_EXAMPLE)
        if not isinstance(data, dict) or "trigger" not in data or data.keys() - set(_KEYS):
            rule = f"it must be an object with the keys {', '.join(_KEYS)}, such as {_EXAMPLE}"
            raise InvalidTriggerError(f"{shorten(spec)}: {rule}", field="spec")
        trigger = read_part(data["trigger"], timezone=timezone)
        triggers = read_parts(data.get("triggers", []), timezone=timezone)
        zone, names = data.get("timezone", timezone), data.get("calendars", [])
        if not isinstance(names, list):
            raise _refusal(names, "the calendars must be a list of names")
        dates = _read_dates(data.get("dates", []))
        return cls(trigger, *dates, *triggers, timezone=zone, calendars=names)

    def __repr__(self) -> str:
        what = [*map(repr, (*self.dates, *self.triggers)), f"timezone={self.timezone!r}"]
        if self.calendars:
            what.append(f"calendar={self.calendars!r}")
        return f"{self.trigger!r}.excluding({', '.join(what)})"

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """Return the trigger and the excluded triggers."""
        return (self.trigger, *self.triggers)

    def first_excluded_day(self, budget: SearchBudget) -> str:
        """Return the start of an error that names the excluded day, if there is only one."""
        days = [*islice(ExcludingCursor(self, budget).days(CHECKED_FROM), 2)]
        return f"it excludes {days[0].date}, its only day: " if len(days) == 1 else ""

    @property
    def has_excluded_days(self) -> bool:
        """Whether the days of the calendars are known."""
        return len(self.days) == len(self.calendars)

    def excludes(self, instant: datetime) -> bool:
        """Return whether the day of ``instant`` is excluded. A day that is too costly is not."""
        try:
            is_excluded = ExcludingCursor(self, SearchBudget(SEARCH_STEPS)).excludes(instant)
        except BudgetExceededError:
            is_excluded = False
        return is_excluded or self.trigger.excludes(instant)

    @property
    def calendar_names(self) -> tuple[str, ...]:
        """Return the names of the calendars, including the calendars that the trigger needs."""
        return tuple(sorted({*self.calendars, *self.trigger.calendar_names}))

    def resolved(self, calendars: Calendars) -> Trigger:
        """Return this trigger with the days of its calendars."""
        if not self.calendar_names:
            return self
        days = tuple(days_of(calendars, name) for name in self.calendars)
        return rebuilt(self, trigger=self.trigger.resolved(calendars), days=days)

    @property
    def json_spec(self) -> dict[str, Any]:
        """Return the trigger, the dates, the excluded triggers and the calendars.

        If only the days have a zone, it is their ``timezone``. Otherwise, the row has it.
        """
        data: dict[str, Any] = {"trigger": part_json(self.trigger)}
        if self.dates:
            data["dates"] = [day.isoformat() for day in self.dates]
        if self.triggers:
            data["triggers"] = [*map(part_json, self.triggers)]
        if self.calendars:
            data["calendars"] = [*self.calendars]
        if self.needs_zone and self.timezone is not None:
            data["timezone"] = self.timezone
        return data

    def to_text(self) -> str:
        """Return the text of the trigger, ``except``, and the exclusions with commas."""
        what = [
            *map(date.isoformat, self.dates),
            *(f"calendar {written_name(name)}" for name in self.calendars),
            *(f"({trigger})" for trigger in self.triggers),
        ]
        return f"{part_text(self.trigger)} except {', '.join(what)}{days_zone(self, self.trigger)}"

    @property
    def needs_zone(self) -> bool:
        """Whether its days or any part need a zone."""
        return self.timezone is None or any(part.needs_zone for part in self.parts)

    def cursor(self, budget: SearchBudget) -> Cursor:
        """Return a cursor over the fire times on days that are not excluded."""
        return ExcludingCursor(self, budget)

    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return the newest fire time in ``(after, until]`` on a day that is not excluded."""
        return latest_included(self, budget, after=after, until=until)

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the shortest interval of the trigger: excluded days cannot shorten it."""
        return self.trigger.shortest_interval(after=after, sample=sample)

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the trigger and its exclusions. More than 5 dates are only counted."""
        exceptions = []
        if self.dates:
            exceptions.append(f"on {self._describe_dates()}")
        if self.triggers:
            phrases = "; ".join(phrase_of(trigger, timezone) for trigger in self.triggers)
            exceptions.append(f"on days of: {phrases}")
        if self.calendars:
            word = "calendars" if self.calendars[1:] else "calendar"
            exceptions.append(f"on days of the {word} {', '.join(self.calendars)}")
        return f"{phrase_of(self.trigger, timezone)}, except {' and '.join(exceptions)}"

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger with the zone ``name`` for its days and for each part that needs it.

        Zones that are set stay.
        """
        zone = self.timezone or name
        moved = Excluding(
            self.trigger.in_zone(name),
            *self.dates,
            *self.triggers,
            timezone=zone,
            calendars=self.calendars,
        )
        return rebuilt(moved, days=self.days)

    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return this trigger with each part changed."""
        changed = tuple(map(change, self.parts))
        if changed == self.parts:
            return self
        trigger, *excluded = changed
        return rebuilt(self, trigger=trigger, triggers=distinct(excluded))

    def _describe_dates(self) -> str:
        words = ", ".join(day.isoformat() for day in self.dates)
        if len(self.dates) > _MAX_LISTED:
            words = f"{len(self.dates)} dates"
        return words if self.timezone == self.trigger.timezone else f"{words} in {self.timezone}"


def _read_dates(texts: object) -> list[date]:
    if not isinstance(texts, list):
        raise _refusal(texts, "the dates must be a list of texts such as 2026-12-25")
    return [*map(read_date, texts)]


def read_date(text: object) -> date:
    """Return the date of ``2026-12-25``. Raises ``InvalidTriggerError``."""
    if not isinstance(text, str) or not _DATE.fullmatch(text):
        raise _refusal(text, "a date must be text such as 2026-12-25")
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise _refusal(text, "this day does not exist; write one such as 2026-12-25") from error


def _check_types(trigger: object, what: Iterable[object]) -> None:
    if not isinstance(trigger, Trigger):
        message = f"{shorten(trigger)} is not a trigger; write Cron(...).excluding(...)"
        raise InvalidTriggerError(message, field="trigger")
    for exclusion in what:
        if isinstance(exclusion, datetime):
            raise _refusal(
                exclusion, "days are excluded, not instants; pass .date() of the datetime"
            )
        if not isinstance(exclusion, date | Trigger):
            raise _refusal(exclusion, "it must be a datetime.date or a trigger, each an argument")


def _check_not_nested(trigger: Trigger, zone: str | None) -> None:
    """Refuse exclusions inside ``trigger``, because the cost of nested searches has no bound."""
    if isinstance(trigger, Excluding):
        reason = f"it has exclusions by days of {trigger.timezone or 'no zone'}, not of {zone}"
        raise _refusal(trigger, f"{reason}; give all of them the same timezone")
    if isinstance(trigger, AnyOf) and any(isinstance(part, Composite) for part in trigger.parts):
        reason = "its triggers have exclusions or business days"
        raise _refusal(trigger, f"{reason}; give all of them to each trigger")


def _split_exclusions(
    what: Iterable[date | Trigger], zone: str | None
) -> tuple[tuple[date, ...], tuple[Trigger, ...]]:
    """Return the dates, and the triggers with ``zone`` where they need one, each once."""
    exclusions = tuple(what)
    triggers = [
        part
        for trigger in exclusions
        if isinstance(trigger, Trigger)
        for part in (trigger.parts if isinstance(trigger, AnyOf) else (trigger,))
    ]
    if bad := next((trigger for trigger in triggers if isinstance(trigger, Composite)), None):
        raise _refusal(bad, "an excluded trigger cannot have exclusions; give plain triggers")
    dates = tuple(sorted({day for day in exclusions if not isinstance(day, Trigger)}))
    different = distinct(trigger if zone is None else trigger.in_zone(zone) for trigger in triggers)
    if len(dates) > MAX_DATES:
        raise _refusal(f"{len(dates)} dates", f"at most {MAX_DATES}; use a Cron for the rest")
    if len(different) > MAX_TRIGGERS:
        raise _refusal(f"{len(different)} triggers", f"at most {MAX_TRIGGERS}; join them in one")
    return dates, different


def _refusal(value: object, reason: str) -> InvalidTriggerError:
    return InvalidTriggerError(f"excluding {shorten(value)}: {reason}", field="excluded")


class _FireDay(NamedTuple):
    """A day with a fire time."""

    fire_time: datetime
    date: date
    start: datetime
    end: datetime
    is_excluded: bool


class ExcludingCursor(Cursor):
    """A cursor over the fire times on days that are not excluded."""

    def __init__(self, exclusion: Excluding, budget: SearchBudget) -> None:
        if len(exclusion.days) < len(exclusion.calendars):
            raise UnresolvedCalendarError(exclusion.calendars)
        self._exclusion, self._budget = exclusion, budget
        # The sets are not merged, because the set of a calendar can be large, and all triggers
        # share it.
        self._dates = (frozenset(exclusion.dates), *(days.dates for days in exclusion.days))
        self._zone = load_zone(exclusion.timezone or "UTC")
        self._fires = exclusion.trigger.cursor(budget)
        self._excluded = [SingleCursor(rule, budget) for rule in exclusion.triggers]
        # The end of the last day that was found not to be excluded.
        self._included_until = EARLIEST

    def _search(self, instant: datetime) -> datetime | None:
        fire_time = self._fires.next_after(max(instant, EARLIEST))
        if fire_time is None or fire_time > LATEST:
            return None
        if fire_time >= self._included_until:
            day = self._day_of(fire_time)
            if day.is_excluded:
                return self._first_included(day.end)
            self._included_until = day.end
        return fire_time

    def _first_included(self, end: datetime) -> datetime | None:
        """Return the first fire time from ``end``, the end of an excluded day."""
        for day in islice(self.days(end - _MICROSECOND), MAX_EXCLUDED_DAYS):
            if day.fire_time > end + LONGEST_SEARCH:
                return None
            if not day.is_excluded:
                self._included_until = day.end
                return day.fire_time
        return None

    def days(self, after: datetime) -> Iterator[_FireDay]:
        """Yield each day with a fire time after ``after``, excluded or not."""
        fire_time = self._fires.next_after(after)
        while fire_time is not None and fire_time <= LATEST:
            day = self._day_of(fire_time)
            yield day
            # A microsecond before the end, because the next midnight may be a fire time.
            fire_time = self._fires.next_after(day.end - _MICROSECOND)

    def excludes(self, instant: datetime) -> bool:
        """Return whether the day of ``instant`` is excluded."""
        return self._day_of(instant).is_excluded

    def _day_of(self, fire_time: datetime) -> _FireDay:
        day, start, end = day_around(self._zone, fire_time)
        is_excluded = any(day in dates for dates in self._dates) or any(
            (excluding := cursor.next_after(start - _MICROSECOND)) is not None and excluding < end
            for cursor in self._excluded
        )
        return _FireDay(fire_time, day, start, end, is_excluded)


def latest_included(
    exclusion: Excluding, budget: SearchBudget, *, after: datetime, until: datetime
) -> datetime | None:
    """Return the newest fire time in ``(after, until]`` on a day that is not excluded.

    The search looks back from ``until`` over spans that double. It therefore examines at most twice
    the excluded days before ``until``.
    """
    after, until = max(after, EARLIEST), min(until, LATEST)
    step, excluded = _DAY, 0
    while after < until and excluded <= MAX_EXCLUDED_DAYS:
        start = after if until - after <= step else until - step
        days = _days_within(exclusion, budget, after=start, until=until)
        newest = next((day for day in reversed(days) if not day.is_excluded), None)
        if newest is not None:
            first, last = max(newest.start - _MICROSECOND, start), newest.end - _MICROSECOND
            fire_time = exclusion.trigger.latest_within(budget, after=first, until=min(last, until))
            return fire_time or newest.fire_time
        until, step, excluded = start, step * 2, excluded + len(days)
    return None


def _days_within(
    exclusion: Excluding, budget: SearchBudget, *, after: datetime, until: datetime
) -> list[_FireDay]:
    days = ExcludingCursor(exclusion, budget).days(after)
    return list(takewhile(lambda day: day.fire_time <= until, days))
