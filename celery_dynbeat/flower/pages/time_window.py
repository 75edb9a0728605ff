"""The window of the timeline, from the arguments of its URL. PURE: it takes ``now``.

?window=1h                 this long, with now in the middle; it moves with the time
?since=...&until=...       fixed; ISO 8601, without an offset in the zone of the page
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.flower.base.instants import given_instant

#: The buttons of the page.
LENGTHS = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "1w": timedelta(weeks=1),
    "4w": timedelta(weeks=4),
}
DEFAULT = "1h"
MAX_LENGTH = timedelta(weeks=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A window of time. ``name`` is the name of its button, "" for a fixed window."""

    name: str
    since: datetime
    until: datetime

    def shifted(self, parts: float) -> "TimeWindow":
        """Return a fixed window that begins later by ``parts`` of the length."""
        distance = (self.until - self.since) * parts
        return TimeWindow(name="", since=self.since + distance, until=self.until + distance)


def time_window(*, name: str, since: str, until: str, zone: ZoneInfo, now: datetime) -> TimeWindow:
    """Return the window. Raises InvalidScheduleError with the argument, its rule and the fix."""
    if since or until:
        return _fixed(
            given_instant("since", since, zone=zone, now=now),
            given_instant("until", until, zone=zone, now=now),
        )
    length = LENGTHS.get(name or DEFAULT)
    if length is None:
        rule = f"must be one of {', '.join(LENGTHS)}"
        raise InvalidScheduleError(f"window = {shorten(name)}: {rule}", field="window")
    return TimeWindow(name=name or DEFAULT, since=now - length / 2, until=now + length / 2)


def _fixed(since: datetime, until: datetime) -> TimeWindow:
    if not timedelta(0) < until - since <= MAX_LENGTH:
        rule = f"must be after since = {since.isoformat()}, by at most {MAX_LENGTH.days} days"
        raise InvalidScheduleError(f"until = {until.isoformat()}: {rule}", field="until")
    return TimeWindow(name="", since=since, until=until)
