"""OnBusinessDay: a trigger whose fire times move to business days.

    fire time -> its day -> the business day -> the same wall time there

The order of two fire times can change when they move, but only within one business day. A search
therefore goes from one business day to the next. It collects the fire times of all days that move
to the business day, and sorts them. An empty span costs one search of the trigger.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError, UnresolvedCalendarError
from celery_dynbeat.common.text import EARLIEST, LATEST, shorten
from celery_dynbeat.triggers.base import (
    Calendars,
    Cursor,
    SearchBudget,
    Trigger,
)
from celery_dynbeat.triggers.calendar_days import (
    CalendarDays,
    check_name,
    days_of,
    written_name,
)
from celery_dynbeat.triggers.composite.any_of import AnyOf
from celery_dynbeat.triggers.composite.base import (
    CHECKED_FROM,
    Composite,
    days_zone,
    load,
    part_json,
    part_text,
    phrase_of,
    read_part,
    rebuilt,
)
from celery_dynbeat.triggers.zones import (
    LocalDay,
    day_around,
    first_instant,
    load_zone,
    local_day,
    skipped_days,
    wall_at,
    zone_name,
)

#: A fire time that would move further is dropped.
MAX_SHIFT = 31
#: The number of consecutive days with dropped fire times, after which there is no further fire
#: time.
MAX_DROPPED_DAYS = 800
#: The fire times of the trigger on one day of 24 hours.
MAX_PER_DAY = 24
#: Days with fire times that ``checked`` looks at.
_CHECKED_DAYS = 14
_KEYS = ("trigger", "direction", "calendar", "timezone")
_EXAMPLE = (
    '{"trigger":{"kind":"cron","spec":"0 9 1 * *"},"direction":"next","calendar":"holidays-de"}'
)
_DAY, _HOUR, _MICROSECOND = timedelta(days=1), timedelta(hours=1), timedelta(microseconds=1)


class Direction(StrEnum):
    """The business day to which a fire time moves, which is the next or the previous one."""

    NEXT = "next"
    PREVIOUS = "previous"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class OnBusinessDay(Composite):
    """Fire when ``trigger`` fires, but on business days. ``Trigger.on_business_day`` builds it.

    A business day is a day that is neither in the calendar nor in its weekend. A fire time on
    another day moves to the same wall time of the next or the previous business day. Two fire times
    that move to the same instant become one. If the clock skips the wall time on that day, the fire
    time moves to the first instant after the gap. If the clock repeats the wall time, the fire time
    moves to its first occurrence. If no business day lies within 31 days, the fire time is dropped.
    After 800 days with dropped fire times in a row, there is no further fire time.

    The days are in ``timezone``, or else in the trigger's zone, or else in UTC. A trigger without a
    zone gets the zone of its schedule (or ``dynbeat_timezone``) when it is stored. The trigger
    fires at most 24 times a day, and has no exclusions: exclude days from the result.

    Raises ``InvalidTriggerError`` with field ``"direction"``, ``"calendar"``, ``"timezone"`` or
    ``"trigger"``.

    >>> payday = Cron("0 9 1 * *").on_business_day("previous", calendar="holidays-de")
    >>> payday.describe()
    'At 09:00, on day 1 of the month, UTC, moved to the previous business day of holidays-de'
    >>> days = CalendarDays("holidays-de", frozenset({date(2027, 1, 1)}))
    >>> str(payday.resolved({"holidays-de": days}).next_after(datetime(2026, 12, 2, tzinfo=UTC)))
    '2026-12-31 09:00:00+00:00'
    """

    kind: ClassVar[str] = "on_business_day"

    trigger: Trigger
    direction: str
    calendar: str
    timezone: str | None
    #: The days of the calendar, from ``resolved``. None means that they have not been read.
    days: CalendarDays | None = field(init=False)

    def __init__(
        self,
        trigger: Trigger,
        direction: str,
        *,
        calendar: str,
        timezone: str | ZoneInfo | None = None,
    ) -> None:
        _check_trigger(trigger)
        if direction not in [*Direction]:
            rule = "it must be 'next' or 'previous'"
            raise InvalidTriggerError(f"direction {shorten(direction)}: {rule}", field="direction")
        zone = trigger.timezone if timezone is None else zone_name(timezone)
        object.__setattr__(self, "trigger", trigger)
        object.__setattr__(self, "direction", str(direction))
        object.__setattr__(self, "calendar", check_name(calendar))
        object.__setattr__(self, "timezone", zone)
        object.__setattr__(self, "days", None)
        self.check_size()
        self.check_preparation()

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for a JSON object; parts that name no zone are in ``timezone``.

        Its days are in the same zone, unless the object has a ``timezone`` for them.
        """
        data = load(spec, example=_EXAMPLE)
        is_complete = isinstance(data, dict) and {*_KEYS[:3]} <= data.keys() <= {*_KEYS}
        if not isinstance(data, dict) or not is_complete:
            rule = f"it must be an object with the keys {', '.join(_KEYS)}, such as {_EXAMPLE}"
            raise InvalidTriggerError(f"{shorten(spec)}: {rule}", field="spec")
        return cls(
            read_part(data["trigger"], timezone=timezone),
            data["direction"],
            calendar=data["calendar"],
            timezone=data.get("timezone", timezone),
        )

    def __repr__(self) -> str:
        what = f"{self.direction!r}, calendar={self.calendar!r}, timezone={self.timezone!r}"
        return f"{self.trigger!r}.on_business_day({what})"

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """Return the trigger."""
        return (self.trigger,)

    @property
    def json_spec(self) -> dict[str, Any]:
        """Return the trigger, the direction and the name of the calendar.

        If only the days have a zone, it is their ``timezone``. Otherwise, the row has it.
        """
        data = {
            "trigger": part_json(self.trigger),
            "direction": self.direction,
            "calendar": self.calendar,
        }
        if self.needs_zone and self.timezone is not None:
            data["timezone"] = self.timezone
        return data

    def to_text(self) -> str:
        """Return the text of the trigger and its business days."""
        days = f"on the {self.direction} business day of {written_name(self.calendar)}"
        return f"{part_text(self.trigger)} {days}{days_zone(self, self.trigger)}"

    @property
    def needs_zone(self) -> bool:
        """Whether its days or the trigger need a zone."""
        return self.timezone is None or self.trigger.needs_zone

    @property
    def has_excluded_days(self) -> bool:
        """Whether the days of the calendar are known."""
        return self.days is not None

    def excludes(self, instant: datetime) -> bool:
        """Return whether ``instant`` is not on a business day."""
        business = BusinessDays(self)
        return not business.includes(day_around(business.zone, instant).date)

    @property
    def calendar_names(self) -> tuple[str, ...]:
        """Return the name of the calendar."""
        return (self.calendar,)

    def resolved(self, calendars: Calendars) -> Trigger:
        """Return this trigger with the days of its calendar."""
        return rebuilt(self, days=days_of(calendars, self.calendar))

    def cursor(self, budget: SearchBudget) -> Cursor:
        """Return a cursor over the fire times on business days."""
        return BusinessDayCursor(self, budget)

    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return the newest fire time in ``(after, until]``.

        The search looks back from ``until`` over spans that double.
        """
        after, until = max(after, EARLIEST), min(until, LATEST)
        step, dropped = _DAY, 0
        while after < until and dropped <= MAX_DROPPED_DAYS:
            start = after if until - after <= step else until - step
            newest, cursor = None, BusinessDayCursor(self, budget)
            fire_time = cursor.next_after(start)
            while fire_time is not None and fire_time <= until:
                newest, fire_time = fire_time, cursor.next_after(fire_time)
            if newest is not None:
                return newest
            until, step, dropped = start, step * 2, dropped + cursor.dropped
        return None

    def require_fire_time(self, budget: SearchBudget) -> None:
        """Raise ``InvalidTriggerError`` if there is no fire time, or one day has too many."""
        # super() does not work here, because slots=True replaces this class with another class.
        Composite.require_fire_time(self, budget)
        days = BusinessDayCursor(self, budget).days(CHECKED_FROM)
        for _ in islice(days, _CHECKED_DAYS):
            pass

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the trigger, the direction and the calendar."""
        moved = f"moved to the {self.direction} business day of {self.calendar}"
        return f"{phrase_of(self.trigger, timezone)}, {moved}"

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger with the zone ``name`` for its days and for each part that needs it.

        Zones that are set stay.
        """
        return rebuilt(self, trigger=self.trigger.in_zone(name), timezone=self.timezone or name)

    def mapped(self, change: Callable[[Trigger], Trigger]) -> Trigger:
        """Return this trigger with its part changed."""
        trigger = change(self.trigger)
        return self if trigger == self.trigger else rebuilt(self, trigger=trigger)


def _check_trigger(trigger: object) -> None:
    if not isinstance(trigger, Trigger):
        message = f"{shorten(trigger)} is not a trigger; write Cron(...).on_business_day(...)"
        raise InvalidTriggerError(message, field="trigger")
    parts = trigger.parts if isinstance(trigger, AnyOf) else (trigger,)
    if any(isinstance(part, Composite) for part in parts):
        rule = "call on_business_day() first, and excluding() on its result"
        raise InvalidTriggerError(f"{shorten(trigger)} is combined: {rule}", field="trigger")


class BusinessDays:
    """The business days of a calendar. It remembers them for one search."""

    def __init__(self, rule: OnBusinessDay) -> None:
        if rule.days is None:
            raise UnresolvedCalendarError([rule.calendar])
        self.zone = load_zone(rule.timezone or "UTC")
        self._days = rule.days
        self._step = _DAY if rule.direction == Direction.NEXT else -_DAY
        self._known: dict[date, bool] = {}

    def includes(self, day: date) -> bool:
        """Return whether ``day`` is a business day."""
        known = self._known.get(day)
        if known is None:
            known = self._known[day] = self._is_business_day(day)
        return known

    def target(self, day: date) -> date | None:
        """Return the business day to which fire times of ``day`` move, or None if none is near."""
        return next((at for at in self._ahead(day, self._step) if self.includes(at)), None)

    def first_moved(self, day: date) -> date:
        """Return the first day whose fire times can move to ``day`` or to a later day."""
        return day if self._step < timedelta() else self._end_of_gap(day, -_DAY)

    def last_moved(self, day: date) -> date:
        """Return the last day whose fire times move to the business day ``day``."""
        return self._end_of_gap(day, _DAY) if self._step < timedelta() else day

    def _end_of_gap(self, day: date, step: timedelta) -> date:
        """Return the last of the days after ``day``, in steps, that are not business days."""
        last = day
        for at in islice(self._ahead(day, step), 1, None):
            if self.includes(at):
                break
            last = at
        return last

    @staticmethod
    def _ahead(day: date, step: timedelta) -> Iterator[date]:
        return (day + count * step for count in range(MAX_SHIFT + 1))

    def _is_business_day(self, day: date) -> bool:
        days = self._days
        is_taken = day.weekday() in days.weekend or day in days.dates
        return not is_taken and day not in skipped_days(self.zone)


class _BusinessDay(NamedTuple):
    """A business day, and the instants that the trigger yields there, in order."""

    date: date
    fire_times: tuple[datetime, ...]


class BusinessDayCursor(Cursor):
    """A cursor over the fire times on business days."""

    def __init__(self, rule: OnBusinessDay, budget: SearchBudget) -> None:
        self._rule, self._budget = rule, budget
        self._business = BusinessDays(rule)
        self._zone = self._business.zone
        #: Days whose fire times were dropped.
        self.dropped = 0
        self._loaded: _BusinessDay | None = None
        self._days: Iterator[_BusinessDay] | None = None

    def _search(self, instant: datetime) -> datetime | None:
        instant = max(instant, EARLIEST)
        found = self._first_loaded(instant)
        if found is not None:
            return found
        first = day_around(self._zone, instant).date
        # After a long span without a search, a new search costs less than counting the days of the
        # span.
        if self._days is None or (self._loaded is not None and self._loaded.date + _DAY < first):
            self._days = self.days(instant)
        for day in self._days:
            self._loaded = day
            found = self._first_loaded(instant)
            if found is not None:
                return found
        return None

    def _first_loaded(self, instant: datetime) -> datetime | None:
        loaded = () if self._loaded is None else self._loaded.fire_times
        return next((at for at in loaded if at > instant), None)

    def days(self, after: datetime) -> Iterator[_BusinessDay]:
        """Yield each business day with fire times, from the day of ``after`` on."""
        business, fires = self._business, self._rule.trigger.cursor(self._budget)
        first = day_around(self._zone, max(after, EARLIEST)).date
        start = local_day(self._zone, business.first_moved(first)).start
        dropped = 0
        # A microsecond before the start, because a midnight may be a fire time.
        while (fire_time := fires.next_after(start - _MICROSECOND)) is not None:
            if fire_time > LATEST or dropped > MAX_DROPPED_DAYS:
                return
            day = day_around(self._zone, fire_time)
            target = business.target(day.date)
            if target is None:
                start, dropped, self.dropped = day.end, dropped + 1, self.dropped + 1
            elif target < first:
                start = day.end
            else:
                start, dropped = local_day(self._zone, business.last_moved(target)).end, 0
                yield _BusinessDay(target, self._moved_to(target, fires, fire_time, until=start))

    def _moved_to(
        self, target: date, fires: Cursor, fire_time: datetime | None, *, until: datetime
    ) -> tuple[datetime, ...]:
        """Return the fire times from ``fire_time`` to ``until`` on the business day ``target``."""
        moved = set[datetime]()
        day, count = None, 0
        while fire_time is not None and fire_time < until:
            if day is None or fire_time >= day.end:
                day, count = day_around(self._zone, fire_time), 0
            count += 1
            _check_count(self._rule, day, count)
            is_moved = day.date != target
            moved.add(moved_to(self._zone, fire_time, target) if is_moved else fire_time)
            fire_time = fires.next_after(fire_time)
        return tuple(sorted(moved))


def moved_to(zone: ZoneInfo, fire_time: datetime, day: date) -> datetime:
    """Return the first instant on ``day`` with the wall time of ``fire_time``."""
    wall = wall_at(zone, fire_time).time()
    return first_instant(zone, datetime.combine(day, wall))[0]


def _check_count(rule: OnBusinessDay, day: LocalDay, count: int) -> None:
    """Raise ``InvalidTriggerError`` if ``count`` fire times are too many for one day."""
    # A clock that goes back makes a day longer.
    most = max(MAX_PER_DAY, math.ceil((day.end - day.start) / _HOUR))
    if count > most:
        message = (
            f"{shorten(rule.trigger.to_text())} fires more than {MAX_PER_DAY} times"
            f" on {day.date}: only triggers that fire less often can move to business days"
        )
        raise InvalidTriggerError(message, field="trigger")
