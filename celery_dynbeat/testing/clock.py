"""A clock for tests."""

from datetime import UTC, datetime, timedelta


class FrozenClock:
    """A clock that only the test can move. Raises ValueError for naive datetimes."""

    def __init__(self, start: datetime) -> None:
        self._instant = _utc(start)

    def now(self) -> datetime:
        """Return the instant that the clock shows, in UTC."""
        return self._instant

    def steady_for(self) -> timedelta:
        """Return timedelta.max, because moving the clock counts as elapsed time, not as a step."""
        return timedelta.max

    def advance(self, duration: timedelta | float) -> datetime:
        """Move the clock by ``duration`` (a timedelta or seconds), and return the new instant.

        A negative duration sets the clock back.
        """
        seconds = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
        self._instant += seconds
        return self._instant

    def move_to(self, instant: datetime) -> datetime:
        """Set the clock to ``instant``, which may be in the past, and return it in UTC."""
        self._instant = _utc(instant)
        return self._instant


def _utc(instant: datetime) -> datetime:
    if instant.utcoffset() is None:
        msg = f"naive datetime {instant!r} rejected: use an aware one, such as datetime.now(UTC)"
        raise ValueError(msg)
    return instant.astimezone(UTC)
