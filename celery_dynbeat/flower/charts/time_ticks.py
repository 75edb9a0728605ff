"""The ticks of a time axis, at round wall times of its time zone, and the clock changes in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.common.text import MONTHS, WEEKDAYS
from celery_dynbeat.triggers.zones import end_of_offset

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
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
    return step >= _DAY


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
