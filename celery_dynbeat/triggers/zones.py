"""Time zones by name, and the instants that correspond to wall times around a change of clocks.

Wall times are naive. Where the clock goes forward, a *gap* of wall times never happens; where it
goes back, a *fold* of wall times happens twice. Offsets come from PEP 495: the two readings of a
wall time (fold 0 and 1) differ only inside a gap or a fold.
"""

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten

_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}", re.ASCII)
# In the database's folder, but no place on earth: what they mean differs between machines.
_NOT_ZONES = {"localtime", "posixrules", "Factory"}
_ONE_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Fold:
    """The wall times ``[first, end)`` that happen twice, and which pass an instant lies in."""

    first: datetime
    end: datetime
    offset_in_second_pass: timedelta
    second_pass: bool


@lru_cache(maxsize=1024)
def lookup(name: str) -> ZoneInfo:
    """Return the zone of the tz database called ``name``.

    Raises ``InvalidTriggerError`` with the nearest name that exists.
    """
    # Membership first: it is what keeps paths, directories and other files away from the loader,
    # and it tells "asia/seoul" apart on file systems that do not.
    if not _NAME.fullmatch(name) or name not in _names():
        raise _unknown(name)
    return ZoneInfo(name)


def fixed_offset(zone: tzinfo) -> timedelta | None:
    """Return the offset of a zone whose clock has never changed, None for any other."""
    # Without an instant a zone can tell its offset only if it has a single one.
    return zone.utcoffset(None)


def same_clock(one: tzinfo, other: tzinfo) -> bool:
    """Whether two zones are one by name, or are fixed at one offset: ``UTC`` and ``Etc/UTC``."""
    fixed = fixed_offset(one)
    return str(one) == str(other) or (fixed is not None and fixed == fixed_offset(other))


def wall_at(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the wall time that ``zone`` shows at ``instant``."""
    return instant.astimezone(zone).replace(tzinfo=None)


def offset_at(zone: ZoneInfo, instant: datetime) -> timedelta:
    """Return how far the clocks of ``zone`` are ahead of UTC at ``instant``."""
    return instant.astimezone(zone).utcoffset() or timedelta()


def fold_at(zone: ZoneInfo, instant: datetime) -> Fold | None:
    """Return the fold whose wall times ``zone`` shows at ``instant``, None outside of any."""
    local = instant.astimezone(zone)
    before, after = _offsets(local)
    if before <= after:
        return None
    wall = local.replace(tzinfo=None)
    change = _change(zone, start=wall - before, stop=wall - after)
    return Fold(change + after, change + before, after, second_pass=local.fold == 1)


# Users choose whole minutes, and a plan asks for the same one several times.
@lru_cache(maxsize=8192)
def first_instant(zone: ZoneInfo, wall: datetime) -> tuple[datetime, bool]:
    """Return the first instant at which ``zone`` shows ``wall``, and True.

    For a wall time inside a gap: the first instant after the gap, and False.
    """
    before, after = _offsets(wall.replace(tzinfo=zone))
    if before >= after:
        return (wall - before).replace(tzinfo=UTC), True
    change = _change(zone, start=wall - after, stop=wall - before)
    return change.replace(tzinfo=UTC), False


def _offsets(local: datetime) -> tuple[timedelta, timedelta]:
    """Return the offsets of the first and second reading of a wall time."""
    first, second = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    return first or timedelta(), second or timedelta()


def _change(zone: ZoneInfo, *, start: datetime, stop: datetime) -> datetime:
    """Return the instant in ``(start, stop]`` at which the offset changes; all are naive UTC.

    Changes fall on whole seconds, and there is one: in the tz database since 1970 they lie at
    least six days apart, while gaps and folds last a day at most.
    """
    start, stop = start.replace(microsecond=0), stop.replace(microsecond=0)
    old = offset_at(zone, start.replace(tzinfo=UTC))
    while stop - start > _ONE_SECOND:
        middle = start + (stop - start) // _ONE_SECOND // 2 * _ONE_SECOND
        if offset_at(zone, middle.replace(tzinfo=UTC)) == old:
            start = middle
        else:
            stop = middle
    return stop


@cache
def _names() -> frozenset[str]:
    return frozenset(available_timezones() - _NOT_ZONES)


def _unknown(name: str) -> InvalidTriggerError:
    rule = "it must be a name of the tz database, such as 'Asia/Seoul' or 'UTC'"
    nearest = _nearest(name)
    cure = f"did you mean {nearest!r}?" if nearest else rule
    return InvalidTriggerError(f"unknown time zone {shorten(name)}: {cure}", field="timezone")


def _nearest(name: str) -> str | None:
    folded = {known.lower(): known for known in _names()}
    wanted = name.strip()[:40].lower().replace(" ", "_")
    if wanted in folded:
        return folded[wanted]
    # Of places only: what is near to "KST" or "UTC+9" in letters is hours away in time.
    places = [known for known in folded if "/" in known and not known.startswith("etc/")]
    matches = difflib.get_close_matches(wanted, places, n=1)
    return folded[matches[0]] if matches else None
