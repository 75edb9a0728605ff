"""Time zones, and the instants of wall times around a clock change.

Wall times are naive. When the clock goes forward, it skips a *gap* of wall times. When it goes
back, it repeats a *fold* of wall times. Offsets come from PEP 495: the two readings of a wall time
(fold 0 and fold 1) have different offsets only inside a gap or a fold.

A day begins at the first instant at which the clock shows its midnight or a later time. A zone can
skip a day.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError, UnknownZoneError
from celery_dynbeat.common.settings import nearest_zone, zone_names
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import require_text

_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}", re.ASCII)
_SECOND = timedelta(seconds=1)
# In the tz database since 1900, two clock changes are at least almost four days apart (Freetown,
# 1939). If both ends of a stride have the same offset, there is therefore no change between them.
_STRIDE = timedelta(days=3)
# The longest gap in the tz database is the day that Samoa skipped.
_LONGEST_GAP = timedelta(hours=25)


class Gap(NamedTuple):
    """The wall times ``[start, end)`` that the clock skipped."""

    start: datetime
    end: datetime

    @property
    def length(self) -> timedelta:
        """Return how far the clock went forward."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Fold:
    """The wall times ``[first, end)`` that occur twice, and the pass in which an instant lies."""

    first: datetime
    end: datetime
    offset_in_second_pass: timedelta
    second_pass: bool


@lru_cache(maxsize=1024)
def load_zone(name: str) -> ZoneInfo:
    """Return the zone of the tz database called ``name``.

    Raises ``UnknownZoneError`` with the nearest name that exists, and ``InvalidTriggerError`` for a
    text that no release has as a name.
    """
    # The list of names keeps paths, directories and other files away from ZoneInfo. It also
    # rejects "asia/seoul" on file systems that ignore case.
    if not _NAME.fullmatch(name):
        raise InvalidTriggerError(_unknown(name), field="timezone")
    if name not in zone_names():
        raise UnknownZoneError(_unknown(name), field="timezone")
    return ZoneInfo(name)


def zone_name(zone: str | ZoneInfo) -> str:
    """Return the name of ``zone``, which may be a name already.

    Raises ``InvalidTriggerError``, also for a name that does not exist.
    """
    name = require_text(zone, field="timezone", example="Asia/Seoul")
    load_zone(name)
    return name


def describe_instant(instant: datetime, timezone: str | None = None) -> str:
    """Return ``2026-12-24 18:00 (Asia/Seoul)``, by default in UTC; seconds only if there are any.

    An instant at the ends of the calendar that has no wall time in the zone is shown in UTC.
    """
    try:
        wall = wall_at(load_zone(timezone or "UTC"), instant)
    except OverflowError:
        wall, timezone = instant.replace(tzinfo=None), None
    shown = f"{wall:%Y-%m-%d %H:%M:%S}".removesuffix(":00")
    return f"{shown} UTC" if timezone in {None, "UTC"} else f"{shown} ({timezone})"


def fixed_offset(zone: tzinfo) -> timedelta | None:
    """Return the offset of a zone whose clock has never changed, or None for any other."""
    # If there is no instant, a zone returns an offset only if it has a single offset.
    return zone.utcoffset(None)


def same_clock(one: tzinfo, other: tzinfo) -> bool:
    """Whether two zones have one name, or one fixed offset like ``UTC`` and ``Etc/UTC``."""
    fixed = fixed_offset(one)
    return str(one) == str(other) or (fixed is not None and fixed == fixed_offset(other))


def wall_at(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the wall time that ``zone`` shows at ``instant``."""
    return instant.astimezone(zone).replace(tzinfo=None)


def offset_at(zone: ZoneInfo, instant: datetime) -> timedelta:
    """Return how far the clock of ``zone`` is ahead of UTC at ``instant``."""
    return instant.astimezone(zone).utcoffset() or timedelta()


def end_of_offset(zone: ZoneInfo, start: datetime, stop: datetime) -> datetime:
    """Return the first instant after ``start`` with another offset, at most ``stop``.

    Both are whole seconds in UTC.
    """
    if fixed_offset(zone) is not None:
        return stop
    offset, same = offset_at(zone, start), start
    other = min(same + _STRIDE, stop)
    while other < stop and offset_at(zone, other) == offset:
        same, other = other, min(other + _STRIDE, stop)
    if offset_at(zone, other) == offset:
        return stop
    return _bisect_change(zone, same, other)


def fold_at(zone: ZoneInfo, instant: datetime) -> Fold | None:
    """Return the fold whose wall times ``zone`` shows at ``instant``, or None outside a fold."""
    local = instant.astimezone(zone)
    before, after = _offsets(local)
    if before <= after:
        return None
    wall = local.replace(tzinfo=None)
    change = _change_between(zone, wall - before, wall - after).replace(tzinfo=None)
    return Fold(change + after, change + before, after, second_pass=local.fold == 1)


def gap_before(zone: ZoneInfo, instant: datetime) -> Gap | None:
    """Return the gap that ended at most its own length before ``instant``, or None."""
    before = offset_at(zone, instant - _LONGEST_GAP)
    length = offset_at(zone, instant) - before
    if length <= timedelta() or offset_at(zone, instant - length) != before:
        return None
    last = instant.replace(microsecond=0)
    end = wall_at(zone, _bisect_change(zone, last - length, last))
    return Gap(end - length, end)


def next_wall(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the first wall time, in whole seconds, that ``zone`` has not shown up to ``instant``.

    In the second pass of a fold it is the end of the fold. ``instant`` is a whole second. The
    result can lie in a gap, which means that the clock skips it.
    """
    local = instant.astimezone(zone)
    fold = fold_at(zone, instant) if local.fold else None
    return local.replace(tzinfo=None) + _SECOND if fold is None else fold.end


# Users choose whole minutes, and a plan needs the same instant several times.
@lru_cache(maxsize=8192)
def first_instant(zone: ZoneInfo, wall: datetime) -> tuple[datetime, bool]:
    """Return the first instant at which ``zone`` shows ``wall``, and True.

    For a wall time inside a gap, the result is the first instant after the gap, and False.
    """
    before, after = _offsets(wall.replace(tzinfo=zone))
    if before >= after:
        return (wall - before).replace(tzinfo=UTC), True
    return _change_between(zone, wall - after, wall - before), False


def _offsets(local: datetime) -> tuple[timedelta, timedelta]:
    """Return the offsets of the first and second reading of a wall time."""
    shown = local.utcoffset() or timedelta()
    other = local.replace(fold=1 - local.fold).utcoffset() or timedelta()
    return (other, shown) if local.fold else (shown, other)


def _change_between(zone: ZoneInfo, start: datetime, stop: datetime) -> datetime:
    """Return the instant in ``(start, stop]``, both naive UTC, at which the offset changes."""
    start, stop = start.replace(microsecond=0, tzinfo=UTC), stop.replace(microsecond=0, tzinfo=UTC)
    return _bisect_change(zone, start, stop)


def _bisect_change(zone: ZoneInfo, start: datetime, stop: datetime) -> datetime:
    """Return the first instant in ``(start, stop]`` whose offset differs from the one at ``start``.

    Returns ``stop`` if there is none. The span holds at most one change, on a whole second.
    """
    offset = offset_at(zone, start)
    while stop - start > _SECOND:
        middle = start + (stop - start) // _SECOND // 2 * _SECOND
        if offset_at(zone, middle) == offset:
            start = middle
        else:
            stop = middle
    return stop


def _unknown(name: str) -> str:
    rule = "it must be a name of the tz database, such as 'Asia/Seoul' or 'UTC'"
    nearest = nearest_zone(name)
    hint = f"did you mean {nearest!r}?" if nearest else rule
    return f"unknown time zone {shorten(name)}: {hint}"


_DAY = timedelta(days=1)
# Longer than any change of summer time, shorter than a move across the date line.
_DATE_LINE = timedelta(hours=12)


class LocalDay(NamedTuple):
    """A date of a zone, the instant at which it begins, and the instant at which it ends."""

    date: date
    start: datetime
    end: datetime


def day_around(zone: ZoneInfo, instant: datetime) -> LocalDay:
    """Return the day of ``zone`` in which ``instant`` lies.

    This is the last day whose midnight has passed. A clock that goes back over midnight shows the
    old date once more, but the new day has begun.
    """
    day = wall_at(zone, instant).date()
    end = _midnight(zone, day + _DAY)
    if instant >= end:
        day, end = day + _DAY, _midnight(zone, day + 2 * _DAY)
    return LocalDay(day, _midnight(zone, day), end)


def local_day(zone: ZoneInfo, day: date) -> LocalDay:
    """Return the day of ``zone`` with this date. A day that the zone skipped ends as it begins."""
    return LocalDay(day, _midnight(zone, day), _midnight(zone, day + _DAY))


@lru_cache(maxsize=1024)
def skipped_days(zone: ZoneInfo) -> tuple[date, ...]:
    """Return the dates that ``zone`` skipped, as Apia skipped 30 December 2011."""
    years = range(1900, 2101)
    offsets = [offset_at(zone, datetime(year, 1, 1, tzinfo=UTC)) for year in years]
    changes = zip(years, offsets, offsets[1:], strict=False)
    moved = [year for year, before, after in changes if after - before > _DATE_LINE]
    days = [date(year, 1, 1) + n * _DAY for year in moved for n in range(-1, 368)]
    return tuple(day for day in days if _midnight(zone, day) == _midnight(zone, day + _DAY))


def _midnight(zone: ZoneInfo, day: date) -> datetime:
    return first_instant(zone, datetime.combine(day, time()))[0]
