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
        # The last reading and its monotonic instant: one object, so that threads see both or none.
        self._base: tuple[datetime, float] | None = None
        self._sync_tried = 0.0
        self._stepped: float | None = None

    def now(self) -> datetime:
        """Return the present instant by the database's clock.

        Raises the error of ``read`` if no call of ``read`` has succeeded yet.
        """
        base = self._base
        if base is None or self._is_reading_due():
            base = self._synchronise() if base is None else self._resynchronise(base)
        return self._counted_on(base, self._monotonic())

    def steady_for(self) -> timedelta:
        """Return the time since a reading last showed a step; timedelta.max without a step."""
        if self._stepped is None:
            return timedelta.max
        return timedelta(seconds=self._monotonic() - self._stepped)

    def offset(self) -> timedelta | None:
        """Return this host's clock minus the database's, without a reading; None before the first.

        A step of the host's clock since the last reading is part of it.
        """
        base = self._base
        if base is None:
            return None
        return datetime.now(UTC) - self._counted_on(base, self._monotonic())

    @staticmethod
    def _counted_on(base: tuple[datetime, float], reading: float) -> datetime:
        instant, base_reading = base
        return instant + timedelta(seconds=reading - base_reading)

    def _is_reading_due(self) -> bool:
        return self._monotonic() - self._sync_tried > RESYNC_INTERVAL.total_seconds()

    def _resynchronise(self, base: tuple[datetime, float]) -> tuple[datetime, float]:
        # Before the reading, so that other threads and asyncio tasks continue without one.
        self._sync_tried = self._monotonic()
        try:
            return self._synchronise()
        # Drivers raise errors of many classes. The clock continues without the database.
        except Exception:  # noqa: BLE001
            self._sync_tried = self._monotonic()
            return base

    def _synchronise(self) -> tuple[datetime, float]:
        before = self._monotonic()
        instant = self._read()
        after = self._monotonic()
        self._detect_step(instant, before, after)
        # The database read its clock at some point of the round trip: assume the middle.
        base = self._base = instant, (before + after) / 2
        self._sync_tried = after
        return base

    def _detect_step(self, instant: datetime, before: float, after: float) -> None:
        if self._base is None:
            return
        earliest = self._counted_on(self._base, before)
        latest = self._counted_on(self._base, after)
        if not earliest - STEP_THRESHOLD <= instant <= latest + STEP_THRESHOLD:
            self._stepped = after
