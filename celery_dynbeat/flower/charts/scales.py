"""From values to positions, and the values at which an axis has ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

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
