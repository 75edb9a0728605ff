"""What time it is, by the database's clock.

Every process that decides anything asks the same clock, so hosts whose own clocks are wrong
still agree on what is due.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

RESYNC_INTERVAL = timedelta(minutes=1)
#: A reading that differs by more from what was expected is a step, and no drift.
STEP = timedelta(seconds=1)


class Clock(Protocol):
    """Tells the present instant, aware and in UTC."""

    def now(self) -> datetime:
        """Return the present instant."""

    def steady_for(self) -> timedelta:
        """Return how long ago the clock was last set; timedelta.max: never, as far as it knows."""


class DatabaseClock:
    """The database's clock, read now and then and carried on by the monotonic clock.

    ``read`` asks the database. It is called at the first use and then once a minute; between
    two calls the own monotonic clock counts, so a step of the system clock changes nothing. When a
    later reading fails the clock runs on from the last one.
    """

    def __init__(
        self,
        read: Callable[[], datetime],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._base: datetime | None = None
        self._base_at = 0.0
        self._tried_at = 0.0
        self._stepped_at: float | None = None

    def now(self) -> datetime:
        """Return the present instant by the database's clock.

        Raises what ``read`` raises, but only while there has been no reading at all.
        """
        if self._base is None:
            self._synchronise()
        elif self._monotonic() - self._tried_at > RESYNC_INTERVAL.total_seconds():
            self._resynchronise()
        assert self._base is not None  # noqa: S101 - narrows the type: _synchronise set it
        return self._base + timedelta(seconds=self._monotonic() - self._base_at)

    def steady_for(self) -> timedelta:
        """Return for how long no reading has differed from what was expected."""
        if self._stepped_at is None:
            return timedelta.max
        return timedelta(seconds=self._monotonic() - self._stepped_at)

    def _resynchronise(self) -> None:
        try:
            self._synchronise()
        # Whatever the driver raises, a database that is away must not stop the clock.
        except Exception:  # noqa: BLE001
            self._tried_at = self._monotonic()

    def _synchronise(self) -> None:
        before = self._monotonic()
        instant = self._read()
        after = self._monotonic()
        self._look_for_step(instant, before, after)
        # The reading was taken somewhere within the round trip: assume the middle.
        self._base, self._base_at, self._tried_at = instant, (before + after) / 2, after

    def _look_for_step(self, instant: datetime, before: float, after: float) -> None:
        if self._base is None:
            return
        earliest = self._base + timedelta(seconds=before - self._base_at)
        latest = self._base + timedelta(seconds=after - self._base_at)
        if not earliest - STEP <= instant <= latest + STEP:
            self._stepped_at = after
