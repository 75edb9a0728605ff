"""The instants of one wall time, every so many days or months.

Each step is counted from the anchor, not from the step before, so the 31st comes back after a
short month. Instants increase with the index, but not strictly. Where a zone skips a whole day,
that day's midnight and the next midnight are the same instant, and count once.
"""

from calendar import monthrange
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.limits import LATEST
from celery_dynbeat.triggers.local_days import skipped_days
from celery_dynbeat.triggers.zones import first_instant, wall_at


@dataclass(frozen=True, slots=True)
class CalendarSteps:
    """The instant ``anchor``, then its wall time in ``zone`` every ``days`` or every ``months``.

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
        """Return the instant of a step, None past LATEST. Step 0 is the anchor."""
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
        # The estimate is too low in a fold: the clock showed later wall times before.
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
