"""Every: fire times at equal distances."""

import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import Trigger, shorten, utc
from celery_dynbeat.triggers.text import format_duration, format_instant
from celery_dynbeat.triggers.words import describe_duration

_LONGEST = timedelta(days=36525)


@dataclass(frozen=True, slots=True, init=False)
class Every(Trigger):
    """Fire at ``anchor``, ``anchor + interval``, ``anchor + 2 * interval`` ..., without drift.

    ``interval`` is a timedelta or a number of seconds, from a microsecond to 100 years, and means
    elapsed time: 24 hours, not a day of the calendar. Without an anchor fire times count from
    whatever instant is asked about.

    Raises ``InvalidTriggerError`` with field ``"interval"`` or ``"anchor"``.
    """

    kind: ClassVar[str] = "every"

    interval: timedelta
    anchor: datetime | None = field(default=None)

    def __init__(self, interval: timedelta | float, *, anchor: datetime | None = None) -> None:
        object.__setattr__(self, "interval", _checked(interval))
        object.__setattr__(self, "anchor", None if anchor is None else utc(anchor, field="anchor"))

    @property
    def spec(self) -> str:
        """Return the interval as an ISO 8601 duration, with an anchor as a repeating interval."""
        duration = format_duration(self.interval)
        return duration if self.anchor is None else f"R/{format_instant(self.anchor)}/{duration}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, None past the year 9999."""
        instant = utc(instant, field="instant")
        if self.anchor is not None and instant < self.anchor:
            return self.anchor
        start = instant if self.anchor is None else self.anchor
        try:
            return start + ((instant - start) // self.interval + 1) * self.interval
        except OverflowError:
            return None

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        first, until = self.next_after(after), utc(until, field="until")
        if first is None or first > until:
            return None
        return first + (until - first) // self.interval * self.interval

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        first, until = self.next_after(after), utc(until, field="until")
        if first is None or first > until:
            return 0
        return min((until - first) // self.interval + 1, max(limit, 0))

    def phrase(self) -> str:
        """Say the interval, and the anchor if there is one."""
        words = describe_duration(self.interval)
        return (
            words if self.anchor is None else f"{words} from {self.anchor.replace(tzinfo=None)} UTC"
        )

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger counting from ``instant``, itself if it has an anchor already."""
        return self if self.anchor is not None else replace(self, anchor=instant)


def _checked(interval: object) -> timedelta:
    if isinstance(interval, bool) or not isinstance(interval, timedelta | int | float):
        reason = "it must be a timedelta or a number of seconds"
    elif isinstance(interval, float) and not math.isfinite(interval):
        reason = "it must be finite"
    elif not -_LONGEST <= (duration := _as_timedelta(interval)) <= _LONGEST:
        reason = "it must not exceed 100 years"
    elif duration <= timedelta():
        reason = "it must be positive, a microsecond at least"
    else:
        return duration
    message = f"interval is {shorten(interval)}; {reason}, e.g. timedelta(minutes=5)"
    raise InvalidTriggerError(message, field="interval")


def _as_timedelta(interval: timedelta | float) -> timedelta:
    if isinstance(interval, timedelta):
        return interval
    seconds = max(min(interval, 2 * _LONGEST.total_seconds()), -2 * _LONGEST.total_seconds())
    return timedelta(seconds=seconds)
