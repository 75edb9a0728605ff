"""Find the newest fire time of a span with nothing but ``next_after``.

The number of calls grows with the logarithm of the span.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

_Next = Callable[[datetime], datetime | None]


def latest_by(next_after: _Next, *, after: datetime, until: datetime) -> datetime | None:
    """Return the newest fire time in ``(after, until]``, or None when there is none."""
    window = _newest_window(next_after, after=after, until=until)
    if window is None:
        return None
    latest, empty_from = window
    # (empty_from, until] holds no fire time. Each round halves [latest, empty_from].
    while _at_most(next_after(latest), until) is not None:
        middle = latest + (empty_from - latest) / 2
        later = _at_most(next_after(middle), until)
        if later is None:
            empty_from = middle
        else:
            latest = later
    return latest


def _newest_window(
    next_after: _Next, *, after: datetime, until: datetime
) -> tuple[datetime, datetime] | None:
    """Return a fire time in ``(after, until]``, and an instant after which there are no more.

    The search looks back from ``until`` in growing steps: the newest fire time is usually near.
    """
    step, empty_from = timedelta(seconds=1), until
    while after < empty_from:
        start = until - step if until - after > step else after
        fire_time = _at_most(next_after(start), until)
        if fire_time is not None:
            return fire_time, empty_from
        empty_from, step = start, step * 8
    return None


def _at_most(fire_time: datetime | None, until: datetime) -> datetime | None:
    return fire_time if fire_time is not None and fire_time <= until else None
