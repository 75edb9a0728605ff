"""From values to positions, and the values at which an axis has ticks.

The ticks of a time axis are at round wall times of its time zone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from celery_dynbeat.common.text import MONTHS, WEEKDAYS
from celery_dynbeat.triggers.zones import end_of_offset

_NICE_FACTORS = (1, 2, 5, 10)
_MS, _MIN, _HOUR, _DAY = 0.001, 60, 3600, 86_400
#: Steps between ticks that people read easily, in seconds.
_DURATION_STEPS = (
    *(n * _MS for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(1, 2, 5, 10, 15, 30),
    *(n * _MIN for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 5, 10, 20, 50, 100)),
)
#: The ticks of a logarithmic axis of durations, about a factor of ten apart, in seconds.
_DURATION_DECADES = (
    *(_MS, 0.01, 0.1, 1, 10, _MIN, 10 * _MIN, _HOUR),
    *(10 * _HOUR, 4 * _DAY, 40 * _DAY, 400 * _DAY),
)
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MIN, "min"), (1, "s"), (_MS, "ms"))
#: A larger range is drawn on a logarithmic axis.
_MAX_LINEAR_RATIO = 50
_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_ONE_DAY = timedelta(days=1)
_MONTH = timedelta(days=28)
_STEPS = (
    *(timedelta(seconds=n) for n in (1, 2, 5, 10, 15, 30)),
    *(timedelta(minutes=n) for n in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=n) for n in (1, 2, 3, 6, 12)),
    *(timedelta(days=n) for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)
#: A Monday. Ticks that are days apart count from it.
_EPOCH = date(2001, 1, 1)
_MAX_CLOCK_CHANGES = 8


class Scale(Protocol):
    """Positions of values on an axis: 0 is its start, 1 its end."""

    def position(self, value: float) -> float:
        """Return the position of ``value``. Outside the axis it is below 0 or above 1."""


@dataclass(frozen=True, slots=True)
class LinearScale:
    """Equal differences have equal distances."""

    start: float
    end: float

    def position(self, value: float) -> float:
        """Return the position of ``value``."""
        return (value - self.start) / ((self.end - self.start) or 1)


@dataclass(frozen=True, slots=True)
class LogScale:
    """Equal ratios have equal distances. ``start`` is above zero; a smaller value is at 0."""

    start: float
    end: float

    def position(self, value: float) -> float:
        """Return the position of ``value``."""
        span = math.log(self.end / self.start)
        return math.log(max(value, self.start) / self.start) / (span or 1)


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Equal elapsed times have equal distances, also across a clock change.

    Instants are compared as timestamps, because the difference of two datetimes in one time zone is
    a difference of wall times.
    """

    start_at: datetime
    end_at: datetime

    def position(self, at: datetime) -> float:
        """Return the position of ``at``."""
        return LinearScale(self.start_at.timestamp(), self.end_at.timestamp()).position(
            at.timestamp()
        )

    def clamped(self, at: datetime) -> float:
        """Return the position of ``at``, or of the nearest end of the axis."""
        return min(max(self.position(at), 0), 1)


@dataclass(frozen=True, slots=True)
class DurationAxis:
    """The scale of an axis of durations, and its ticks in seconds."""

    scale: Scale
    ticks: Sequence[float]
    is_log: bool


def count_ticks(highest: float, *, count: int = 4) -> list[float]:
    """Return about ``count`` whole numbers from 0 up to the first one at or above ``highest``."""
    step = max(_nice_step(max(highest, 1) / count), 1)
    return _multiples(step, highest)


def duration_axis(seconds: Sequence[float], *, count: int = 4) -> DurationAxis:
    """Return the axis for durations: logarithmic if the largest is many times the smallest."""
    positive = [value for value in seconds if value > 0]
    if positive and max(positive) > _MAX_LINEAR_RATIO * min(positive):
        ticks = _log_ticks(min(positive), max(positive))
        # There is no tick after 400 days.
        scale = LogScale(ticks[0], max(ticks[-1], *positive))
        return DurationAxis(scale, ticks, is_log=True)
    ticks = duration_ticks(max(positive, default=1), count=count)
    return DurationAxis(LinearScale(0, ticks[-1]), ticks, is_log=False)


def duration_ticks(highest: float, *, count: int = 4) -> list[float]:
    """Return about ``count`` durations from 0 up to the first one at or above ``highest``."""
    smallest = highest / count
    if smallest > _DURATION_STEPS[-1] or smallest < _MS / 2:
        return _multiples(_nice_step(smallest), highest)
    return _multiples(next(step for step in _DURATION_STEPS if step >= smallest), highest)


def format_tick(seconds: float) -> str:
    """Return a tick of durations in its largest unit: ``0``, ``50 ms``, ``1.5 s``, ``2 min``."""
    for size, unit in _UNITS:
        if seconds >= size * (1 - 1e-9):
            return f"{seconds / size:.6g} {unit}"
    return f"{seconds / _MS:.3g} ms" if seconds else "0"


def format_count(count: float) -> str:
    """Return a number of a tick: ``950``, ``2k``, ``1.5M``."""
    for size, suffix in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.6g}{suffix}"
    return f"{count:.0f}"


def _nice_step(smallest: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least ``smallest``."""
    power = 10.0 ** math.floor(math.log10(smallest))
    return next(n * power for n in _NICE_FACTORS if n * power >= smallest * (1 - 1e-9))


def _multiples(step: float, highest: float) -> list[float]:
    last = max(math.ceil(highest / step * (1 - 1e-9)), 1)
    return [step * index for index in range(last + 1)]


def _log_ticks(lowest: float, highest: float) -> list[float]:
    """Return the decades that enclose the values."""
    below = [tick for tick in _DURATION_DECADES if tick <= lowest] or [_DURATION_DECADES[0]]
    above = [tick for tick in _DURATION_DECADES if tick >= highest] or [_DURATION_DECADES[-1]]
    return [tick for tick in _DURATION_DECADES if below[-1] <= tick <= above[0]]


@dataclass(frozen=True, slots=True)
class TimeTick:
    """A tick at a round wall time. A major one begins a day on an axis of hours or less."""

    at: datetime
    label: str
    is_major: bool


@dataclass(frozen=True, slots=True)
class ClockChange:
    """The instant at which the clock of the axis goes forward or back."""

    at: datetime
    shift: timedelta

    @property
    def label(self) -> str:
        """Return the shift, for example ``+1 h`` or ``-30 min``."""
        minutes = abs(self.shift) // _MINUTE
        sign = "+" if self.shift > timedelta() else "\N{MINUS SIGN}"
        hours, rest = divmod(minutes, 60)
        return f"{sign}{minutes} min" if rest else f"{sign}{hours} h"


def time_step(start_at: datetime, end_at: datetime, *, count: int = 8) -> timedelta:
    """Return the smallest round step with which an axis has at most ``count`` + 1 ticks."""
    elapsed = timedelta(seconds=end_at.timestamp() - start_at.timestamp())
    return next((step for step in _STEPS if step * count >= elapsed), _STEPS[-1])


def is_daily(step: timedelta) -> bool:
    """Whether the ticks are days, whose labels are dates; others are times of day."""
    return step >= _ONE_DAY


def time_ticks(start_at: datetime, end_at: datetime, *, count: int = 8) -> list[TimeTick]:
    """Return the ticks in ``[start_at, end_at]``, in the zone of ``start_at``.

    Ticks of hours and less are multiples since the local midnight, also after a clock change: a
    wall time that does not exist has no tick, and one that occurs twice has two.
    """
    step = time_step(start_at, end_at, count=count)
    instants = (_days if is_daily(step) else _times)(start_at, end_at, step)
    return [_tick(at, step) for at in instants]


def clock_changes(start_at: datetime, end_at: datetime) -> list[ClockChange]:
    """Return the first few clock changes in ``(start_at, end_at)``."""
    zone = start_at.tzinfo
    if not isinstance(zone, ZoneInfo):
        return []
    found: list[ClockChange] = []
    at, stop = (instant.astimezone(UTC).replace(microsecond=0) for instant in (start_at, end_at))
    while len(found) < _MAX_CLOCK_CHANGES and (at := end_of_offset(zone, at, stop)) < stop:
        local, before = at.astimezone(zone), (at - _SECOND).astimezone(zone)
        shift = (local.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
        found.append(ClockChange(local, shift))
    return found


def day_label(day: date) -> str:
    """Return ``Mon 23 Nov``. The names are English in every locale."""
    return f"{WEEKDAYS[day.weekday()][:3]} {_date_label(day)}"


def _date_label(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1][:3]}"


def _tick(at: datetime, step: timedelta) -> TimeTick:
    if is_daily(step):
        label = f"{_date_label(at)} {at.year}" if step > _MONTH else _date_label(at)
        return TimeTick(at, label, is_major=False)
    is_midnight = not (at.hour or at.minute or at.second)
    return TimeTick(at, at.strftime("%H:%M:%S" if step < _MINUTE else "%H:%M"), is_midnight)


def _days(start_at: datetime, end_at: datetime, step: timedelta) -> Iterator[datetime]:
    """Yield the start of each ``step``-th day."""
    day = start_at.date()
    day -= (day - _EPOCH) % step
    while (at := _first_instant(day, start_at)).timestamp() <= end_at.timestamp():
        # Samoa had no 30 December 2011, so that day starts at the start of the next day.
        if at.timestamp() >= start_at.timestamp() and at.date() == day:
            yield at
        day += step


def _first_instant(day: date, like: datetime) -> datetime:
    """Return the start of ``day``. If midnight does not exist, the first instant after the gap."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=like.tzinfo)
    return midnight.astimezone(UTC).astimezone(like.tzinfo)


def _times(start_at: datetime, end_at: datetime, step: timedelta) -> Sequence[datetime]:
    """Return each instant whose wall time is a multiple of ``step`` since midnight."""
    zone, first, last = start_at.tzinfo, start_at.timestamp(), end_at.timestamp()
    end_at = end_at.astimezone(zone)
    # The clock may show times before the start time, or after the end time. An axis of times is too
    # short for two clock changes.
    shift = abs((end_at.utcoffset() or timedelta()) - (start_at.utcoffset() or timedelta()))
    wall = start_at.replace(tzinfo=None, fold=0) - shift
    stop = end_at.replace(tzinfo=None, fold=0) + shift
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    wall -= (wall - midnight) % step
    found: set[datetime] = set()
    while wall <= stop:
        for fold in (0, 1):
            at = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            exists = at.astimezone(zone).replace(tzinfo=None, fold=0) == wall
            if exists and first <= at.timestamp() <= last:
                found.add(at)
        wall += step
    return [at.astimezone(zone) for at in sorted(found)]
