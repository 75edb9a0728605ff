"""Steps of the calendar: one wall time, every so many days or months, as instants.

Each step is counted from the anchor, never from the step before: so the 31st comes back after a
short month. Instants increase with the index, but not strictly: where a zone leaves out a whole
day, the day's midnight and the next one fall on the same instant, and count as one.
"""

from calendar import monthrange
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.zones import first_instant, wall_at

#: Far enough from the ends of datetime that no zone can push an instant over them.
EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
LATEST = datetime(9900, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
# More than any change of summer time, less than a jump over the date line.
_JUMP = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Steps:
    """The instants of ``anchor``, and of its wall time in ``zone`` every ``days`` or ``months``.

    One of the two is 0. ``anchor`` lies from EARLIEST to LATEST, in UTC; no step lies later.
    """

    anchor: datetime
    zone: ZoneInfo
    days: int
    months: int
    wall: datetime = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wall", wall_at(self.zone, self.anchor))

    def at(self, index: int) -> datetime | None:
        """Return the instant of a step, the anchor itself for 0, None past LATEST."""
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
        # What the clock shows has been reached; in a fold, what it showed before has been too.
        while (following := self.at(index + 1)) is not None and following <= instant:
            index += 1
        return index

    def count(self, *, after: datetime, until: datetime) -> int:
        """Count the different instants in ``(after, until]``."""
        low, high = self.index_until(after), self.index_until(until)
        if self.days != 1 or high <= low:
            return max(high - low, 0)
        indices = ((day - self.wall.date()).days for day in skipped_days(self.zone))
        twins = sum(low < i < high and self.at(i) == self.at(i + 1) for i in indices)
        return high - low - twins

    def _wall(self, index: int) -> datetime:
        """Return the wall time of a step; the last day of a month that is too short."""
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


def midnight(zone: ZoneInfo, day: date) -> datetime:
    """Return the instant at which ``day`` begins in ``zone``."""
    return first_instant(zone, datetime.combine(day, time()))[0]


def day_around(zone: ZoneInfo, instant: datetime) -> tuple[date, datetime, datetime]:
    """Return the day of ``instant`` in ``zone``, its start and its end.

    It is the last day whose midnight has been reached: a clock that goes back over midnight shows
    the old date once more.
    """
    day = wall_at(zone, instant).date()
    end = midnight(zone, day + _DAY)
    if instant >= end:
        day, end = day + _DAY, midnight(zone, day + 2 * _DAY)
    return day, midnight(zone, day), end


@lru_cache(maxsize=1024)
def skipped_days(zone: ZoneInfo) -> tuple[date, ...]:
    """Return the dates that ``zone`` left out, as Apia did 30 December 2011."""
    years = range(1900, 2101)
    starts = [datetime(year, 1, 1, tzinfo=UTC).astimezone(zone) for year in years]
    offsets = [start.utcoffset() or timedelta() for start in starts]
    changes = zip(years, offsets, offsets[1:], strict=False)
    jumps = [year for year, before, after in changes if after - before > _JUMP]
    days = [date(year, 1, 1) + n * _DAY for year in jumps for n in range(-1, 368)]
    return tuple(day for day in days if midnight(zone, day) == midnight(zone, day + _DAY))
