"""Every: fire times at equal intervals, of elapsed time or of calendar time."""

import math
import re
from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import ClassVar
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import EARLIEST, LATEST, describe_interval, describe_unit, shorten
from celery_dynbeat.triggers.base import MAX_INTERVAL, SAMPLE, Trigger, utc
from celery_dynbeat.triggers.iso8601 import (
    format_calendar,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from celery_dynbeat.triggers.zones import (
    describe_instant,
    first_instant,
    load_zone,
    skipped_days,
    wall_at,
    zone_name,
)

_REPEATING = re.compile(
    r"\s*R(?P<times>[^/]*)/(?P<anchor>[^/]*)/(?P<duration>[^/]*)", re.IGNORECASE
)
#: The calendar units, and the number of each in MAX_INTERVAL.
_MAX_COUNTS = {"days": 36525, "weeks": 5217, "months": 1200, "years": 100}


@dataclass(frozen=True, slots=True)
class CalendarSteps:
    """The instant ``anchor``, then its wall time in ``zone`` every ``days`` or every ``months``.

    Each step is counted from the anchor, not from the step before, so the 31st comes back after a
    short month. Instants increase with the index, but not strictly. Where a zone skips a whole day,
    that day's midnight and the next midnight are the same instant, and count once.

    One of the two is 0. ``anchor`` lies from EARLIEST to LATEST, in UTC. No step lies later.
    """

    anchor: datetime
    zone: ZoneInfo
    days: int
    months: int
    wall: datetime = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wall", wall_at(self.zone, self.anchor))

    def at(self, index: int) -> datetime | None:
        """Return the instant of a step, or None past LATEST. Step 0 is the anchor."""
        if index == 0:
            return self.anchor
        try:
            instant = first_instant(self.zone, self._wall(index))[0]
        except (OverflowError, ValueError):
            return None
        return instant if instant <= LATEST else None

    def index_until(self, instant: datetime) -> int:
        """Return the last index whose instant is at or before ``instant``; -1 before the anchor."""
        if instant < self.anchor:
            return -1
        instant = min(instant, LATEST)
        index = self._estimate(wall_at(self.zone, instant))
        # In a fold, the estimate is too low, because the clock showed later wall times before it.
        while (following := self.at(index + 1)) is not None and following <= instant:
            index += 1
        return index

    def count(self, *, after: datetime, until: datetime) -> int:
        """Count the different instants in ``(after, until]``."""
        low, high = self.index_until(after), self.index_until(until)
        if self.days != 1 or high <= low:
            return max(high - low, 0)
        indices = ((day - self.wall.date()).days for day in skipped_days(self.zone))
        duplicates = sum(low < i < high and self.at(i) == self.at(i + 1) for i in indices)
        return high - low - duplicates

    def _wall(self, index: int) -> datetime:
        """Return the wall time of a step. A month that is too short gives its last day."""
        first = self.wall
        if self.days:
            return first + timedelta(days=self.days * index)
        year, month = divmod(first.year * 12 + first.month - 1 + self.months * index, 12)
        day = min(first.day, monthrange(year, month + 1)[1])
        return first.replace(year=year, month=month + 1, day=day)

    def _estimate(self, wall: datetime) -> int:
        """Return the last index whose wall time is at or before ``wall``, at least 0."""
        if self.days:
            return max((wall - self.wall) // timedelta(days=self.days), 0)
        months = (wall.year - self.wall.year) * 12 + wall.month - self.wall.month
        index = max(months // self.months, 0)
        return index - 1 if index > 0 and self._wall(index) > wall else index


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Every(Trigger):
    """Fire at ``anchor``, one interval later, two intervals later and so on, without drift.

    ``interval`` is elapsed time, as a timedelta or a number of seconds, from a microsecond to 100
    years. ``timedelta(days=1)`` is 24 hours, not a calendar day. If there is no anchor, fire times
    count from the argument of each search.

    For calendar time, pass one of ``days``, ``weeks``, ``months`` and ``years``, as a whole number,
    instead of ``interval``. The trigger keeps the time of day that the clock of ``timezone`` (UTC
    by default) shows at the anchor. In a shorter month, the 31st becomes the last day, and 29
    February becomes the 28th. The original day returns as soon as it exists again. A time in a gap
    fires at the first instant after the gap, and a repeated time at its first occurrence. These
    fire times are in the years 1900 to 9900.

    Raises ``InvalidTriggerError`` with field ``"interval"``, ``"anchor"`` or ``"timezone"``.

    >>> Every(timedelta(minutes=5)).describe()
    'Every 5 minutes'
    >>> monthly = Every(months=1, anchor=datetime(2026, 1, 31, 9, tzinfo=UTC))
    >>> str(monthly.next_after(datetime(2026, 2, 1, tzinfo=UTC)))
    '2026-02-28 09:00:00+00:00'
    """

    kind: ClassVar[str] = "every"
    counts_fast: ClassVar[bool] = True

    interval: timedelta | None
    anchor: datetime | None
    days: int | None
    weeks: int | None
    months: int | None
    years: int | None
    timezone: str | None

    def __init__(
        self,
        interval: timedelta | float | None = None,
        *,
        anchor: datetime | None = None,
        days: int | None = None,
        weeks: int | None = None,
        months: int | None = None,
        years: int | None = None,
        timezone: str | ZoneInfo | None = None,
        **unknown: object,
    ) -> None:
        if unknown:
            raise _unknown_unit(*unknown)
        units = {"days": days, "weeks": weeks, "months": months, "years": years}
        chosen = {unit: count for unit, count in units.items() if count is not None}
        anchor = None if anchor is None else utc(anchor, field="anchor")
        if chosen:
            _check_calendar(chosen, interval=interval, anchor=anchor)
            timezone = None if timezone is None else zone_name(timezone)
        else:
            interval = _valid_interval(interval)
            _refuse_zone(timezone)
        values = {"interval": interval, "anchor": anchor, "timezone": timezone, **units}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for a duration or a repeating interval (``R/<instant>/P1M``)."""
        match = _REPEATING.fullmatch(spec)
        if match is not None and match["times"].strip():
            message = f"{shorten(spec)} counts its repetitions; write R/ and set max_runs instead"
            raise InvalidTriggerError(message, field="interval")
        anchor = None if match is None else parse_instant(match["anchor"], field="anchor")
        duration = parse_duration(spec if match is None else match["duration"])
        if isinstance(duration, timedelta):
            return cls(duration, anchor=anchor)
        return cls(anchor=anchor, timezone=timezone, **duration)

    def __repr__(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        parts = (f"{name}={value!r}" for name, value in values if value is not None)
        return f"Every({', '.join(parts)})"

    @property
    def spec(self) -> str:
        """Return an ISO 8601 duration, or a repeating interval if there is an anchor.

        The longest unit of elapsed time is an hour (``PT24H``). Days and longer units are calendar
        time (``P1D``): the nominal durations of RFC 5545, section 3.3.6.
        """
        if self.interval is None:
            duration = format_calendar(*self._calendar())
        else:
            duration = format_duration(self.interval)
        return duration if self.anchor is None else f"R/{format_instant(self.anchor)}/{duration}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, or None past LATEST."""
        instant = utc(instant, field="instant")
        if self.anchor is not None and instant < self.anchor:
            return self.anchor
        if self.interval is None:
            steps = self._steps(instant)
            return steps.at(steps.index_until(instant) + 1)
        start = instant if self.anchor is None else self.anchor
        try:
            return start + ((instant - start) // self.interval + 1) * self.interval
        except OverflowError:
            return None

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        after, until = utc(after, field="after"), utc(until, field="until")
        if self.interval is None:
            steps = self._steps(after)
            index = steps.index_until(until)
            return steps.at(index) if index > steps.index_until(after) else None
        first = self.next_after(after)
        if first is None or first > until:
            return None
        return first + (until - first) // self.interval * self.interval

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        after, until = utc(after, field="after"), utc(until, field="until")
        if self.interval is None:
            return min(self._steps(after).count(after=after, until=until), max(limit, 0))
        first = self.next_after(after)
        if first is None or first > until:
            return 0
        return min((until - first) // self.interval + 1, max(limit, 0))

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the interval itself if it is elapsed time.

        Otherwise, fire times are sampled, because months differ in length.
        """
        # super() does not work in a dataclass with slots, because that is a copy of the class.
        return self.interval or Trigger.shortest_interval(self, after=after, sample=sample)

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the interval, the anchor if there is one, and the zone of calendar time."""
        if self.interval is None:
            words, name = describe_unit(*self._calendar()), self.timezone or "UTC"
            if self.anchor is None:
                return f"{words}, {name}"
            return f"{words} from {describe_instant(self.anchor, name)}"
        words = describe_interval(self.interval)
        if self.anchor is None:
            return words
        return f"{words} from {describe_instant(self.anchor, timezone)}"

    @property
    def needs_zone(self) -> bool:
        """Whether it is calendar time without a zone."""
        return self.interval is None and self.timezone is None

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger in the zone ``name``, if it is calendar time without a zone."""
        return replace(self, timezone=name) if self.needs_zone else self

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger counting from ``instant``, itself if it has an anchor already."""
        if self.anchor is not None:
            return self
        anchor = utc(instant, field="anchor")
        if self.interval is None:
            _check_in_calendar(anchor)
        # Beat does this for each run. The values are valid already, so __init__ is skipped.
        anchored = object.__new__(Every)
        for name in _NAMES:
            object.__setattr__(anchored, name, getattr(self, name))
        object.__setattr__(anchored, "anchor", anchor)
        return anchored

    def _calendar(self) -> tuple[str, int]:
        """Return the calendar unit, in the singular, and its count."""
        return next((unit[:-1], getattr(self, unit)) for unit in _MAX_COUNTS if getattr(self, unit))

    def _steps(self, start: datetime) -> CalendarSteps:
        """Return the steps from the anchor, or from ``start`` without an anchor."""
        anchor = min(max(start, EARLIEST), LATEST) if self.anchor is None else self.anchor
        days, months = (self.days or 0) + 7 * (self.weeks or 0), self.months or 0
        return _calendar_steps(
            anchor, self.timezone or "UTC", days, months + 12 * (self.years or 0)
        )


_NAMES = tuple(field.name for field in fields(Every) if field.name != "anchor")


# A plan needs the same steps several times.
@lru_cache(maxsize=1024)
def _calendar_steps(anchor: datetime, timezone: str, days: int, months: int) -> CalendarSteps:
    return CalendarSteps(anchor, load_zone(timezone), days=days, months=months)


def _check_calendar(
    chosen: Mapping[str, object], *, interval: object, anchor: datetime | None
) -> None:
    unit, count = next(iter(chosen.items()))
    names = " and ".join([*(["an interval"] if interval is not None else []), *chosen])
    if interval is not None or len(chosen) > 1:
        rule = "a trigger has one unit; write it in the shorter unit, or use a Cron"
        raise InvalidTriggerError(f"Every is given {names}; {rule}", field="interval")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_COUNTS[unit]:
        rule = f"it must be a whole number from 1 to {_MAX_COUNTS[unit]} (100 years)"
        raise InvalidTriggerError(f"{unit} is {shorten(count)}; {rule}", field="interval")
    if anchor is not None:
        _check_in_calendar(anchor)


def _check_in_calendar(anchor: datetime) -> None:
    if not EARLIEST <= anchor <= LATEST:
        rule = "calendar time covers the years 1900 to 9900; choose an anchor in them"
        raise InvalidTriggerError(f"anchor {anchor}: {rule}", field="anchor")


def _refuse_zone(timezone: object) -> None:
    if timezone is not None:
        rule = "elapsed time has no zone; leave it out, or count days=, weeks=, months= or years="
        raise InvalidTriggerError(f"timezone is {shorten(timezone)}; {rule}", field="timezone")


def _unknown_unit(unit: str, *_others: str) -> InvalidTriggerError:
    if unit in {"seconds", "minutes", "hours", "milliseconds", "microseconds"}:
        hint = f"elapsed time is Every(timedelta({unit}=...)), or Every(300) in seconds"
    else:
        hint = "the calendar units are days, weeks, months and years"
    return InvalidTriggerError(f"Every has no {unit!r}: {hint}", field="interval")


def _valid_interval(interval: object) -> timedelta:
    if isinstance(interval, bool) or not isinstance(interval, timedelta | int | float):
        reason = "it must be a timedelta or a number of seconds"
    elif isinstance(interval, float) and not math.isfinite(interval):
        reason = "it must be finite"
    elif not -MAX_INTERVAL <= (duration := _as_timedelta(interval)) <= MAX_INTERVAL:
        reason = "it must not exceed 100 years"
    elif duration <= timedelta():
        reason = "it must be positive, at least a microsecond"
    else:
        return duration
    message = f"interval is {shorten(interval)}; {reason}, e.g. timedelta(minutes=5)"
    raise InvalidTriggerError(message, field="interval")


def _as_timedelta(interval: timedelta | float) -> timedelta:
    if isinstance(interval, timedelta):
        return interval
    seconds = max(
        min(interval, 2 * MAX_INTERVAL.total_seconds()), -2 * MAX_INTERVAL.total_seconds()
    )
    return timedelta(seconds=seconds)
