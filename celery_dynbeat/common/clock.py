"""The present instant, by the database's clock.

All processes that decide read the same clock. So hosts with wrong clocks agree on what is due.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

RESYNC_INTERVAL = timedelta(minutes=1)
#: A reading is a step of the clock if it differs by more from the expected instant. A smaller
#: difference is drift.
STEP_THRESHOLD = timedelta(seconds=1)


class Clock(Protocol):
    """Returns the present instant, aware and in UTC."""

    def now(self) -> datetime:
        """Return the present instant."""

    def steady_for(self) -> timedelta:
        """Return the time since the last known step of the clock; timedelta.max without a step."""


class DatabaseClock:
    """The database's clock: read once a minute, and counted on by the monotonic clock in between.

    ``read`` returns the database's time. ``DatabaseClock`` calls it at the first use and then once
    a minute. A step of the system clock changes nothing. If a later call of ``read`` fails, the
    clock continues from the last reading.
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
        self._base_reading = 0.0
        self._sync_tried = 0.0
        self._stepped: float | None = None

    def now(self) -> datetime:
        """Return the present instant by the database's clock.

        Raises the error of ``read`` if no call of ``read`` has succeeded yet.
        """
        self.refresh(self._read)
        assert self._base is not None  # noqa: S101 - narrows the type: _synchronise set it
        return self._base + timedelta(seconds=self._monotonic() - self._base_reading)

    def steady_for(self) -> timedelta:
        """Return the time since a reading last showed a step; timedelta.max without a step."""
        if self._stepped is None:
            return timedelta.max
        return timedelta(seconds=self._monotonic() - self._stepped)

    def offset(self) -> timedelta | None:
        """Return this host's clock minus the database's, without a reading; None before the first.

        A step of the host's clock since the last reading is part of it.
        """
        if self._base is None:
            return None
        counted = timedelta(seconds=self._monotonic() - self._base_reading)
        return datetime.now(UTC) - self._base - counted

    def _resynchronise(self, read: Callable[[], datetime]) -> None:
        # Before the reading, so that other threads and asyncio tasks continue without one. Each of
        # them could hold a connection, and wait for another one of the same pool.
        self._sync_tried = self._monotonic()
        try:
            self._synchronise(read)
        # Drivers raise errors of many classes. The clock continues without the database.
        except Exception:  # noqa: BLE001
            self._sync_tried = self._monotonic()

    def refresh(self, read: Callable[[], datetime]) -> None:
        """Call ``read`` if this is the first use, or if the last reading was over a minute ago."""
        if self._base is None:
            self._synchronise(read)
        elif self._monotonic() - self._sync_tried > RESYNC_INTERVAL.total_seconds():
            self._resynchronise(read)

    def _synchronise(self, read: Callable[[], datetime]) -> None:
        before = self._monotonic()
        instant = read()
        after = self._monotonic()
        self._detect_step(instant, before, after)
        # The database read its clock at some point of the round trip: assume the middle.
        self._base, self._base_reading = instant, (before + after) / 2
        self._sync_tried = after

    def _detect_step(self, instant: datetime, before: float, after: float) -> None:
        if self._base is None:
            return
        earliest = self._base + timedelta(seconds=before - self._base_reading)
        latest = self._base + timedelta(seconds=after - self._base_reading)
        if not earliest - STEP_THRESHOLD <= instant <= latest + STEP_THRESHOLD:
            self._stepped = after
