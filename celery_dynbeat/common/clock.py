"""The present instant by the database's clock, and the delays between attempts.

All processes that decide what is due read the same clock, so they agree even if the clocks of their
hosts are wrong.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import NamedTuple, Protocol

RESYNC_INTERVAL = timedelta(minutes=1)
#: A reading is a step of the clock if it differs by more from the expected instant. A smaller
#: difference is drift.
STEP_THRESHOLD = timedelta(seconds=1)
#: In seconds. A reading is wrong by up to half of its round trip. The first one of a process also
#: waits for its connection. A longer reading is therefore repeated, and the shortest of READINGS
#: readings counts.
GOOD_ROUND_TRIP = 0.005
READINGS = 3
#: Not the functions of the module, whose sequence an application may have seeded: threads of this
#: package would change it.
RANDOM = random.SystemRandom()


class Clock(Protocol):
    """Returns the present instant, aware and in UTC."""

    def now(self) -> datetime:
        """Return the present instant."""

    def steady_for(self) -> timedelta:
        """Return the time since the last known step of the clock; timedelta.max without a step."""


class _Reading(NamedTuple):
    """The database's time, and the monotonic instants before and after it was read."""

    instant: datetime
    before: float
    after: float

    @property
    def round_trip(self) -> float:
        """The seconds that the reading took."""
        return self.after - self.before


class DatabaseClock:
    """The database's clock.

    It is read once a minute. Between two readings, the monotonic clock measures the time.

    ``read`` returns the database's time. ``DatabaseClock`` calls it at the first use and then once
    a minute, up to READINGS times. A step of the host's system clock has no effect. If a later call
    of ``read`` fails, the clock continues from the last reading.
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
        """Return this host's clock minus the database's, based on the last reading.

        The result is None before the first reading. It includes a step of the host's clock since
        the last reading.
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
        # Before the reading, so that no other thread or asyncio task reads the clock at the same
        # time.
        self._sync_tried = self._monotonic()
        try:
            return self._synchronise()
        # Drivers raise errors of many classes. The clock continues without the database.
        except Exception:  # noqa: BLE001
            self._sync_tried = self._monotonic()
            return base

    def _synchronise(self) -> tuple[datetime, float]:
        reading = self._timed_reading()
        for _ in range(READINGS - 1):
            if reading.round_trip <= GOOD_ROUND_TRIP:
                break
            try:
                reading = min(reading, self._timed_reading(), key=attrgetter("round_trip"))
            # Drivers raise errors of many classes. The clock has a reading already.
            except Exception:  # noqa: BLE001
                break
        self._detect_step(reading)
        # The database read its clock at an unknown point of the round trip. Assume the middle.
        base = self._base = reading.instant, (reading.before + reading.after) / 2
        self._sync_tried = self._monotonic()
        return base

    def _timed_reading(self) -> _Reading:
        before = self._monotonic()
        return _Reading(instant=self._read(), before=before, after=self._monotonic())

    def _detect_step(self, reading: _Reading) -> None:
        if self._base is None:
            return
        earliest = self._counted_on(self._base, reading.before)
        latest = self._counted_on(self._base, reading.after)
        if not earliest - STEP_THRESHOLD <= reading.instant <= latest + STEP_THRESHOLD:
            self._stepped = reading.after


#: 2 to this power exceeds the ratio of any two delays in use, and the product stays a float.
_MAX_DOUBLINGS = 16


class BackOff:
    """Delays in seconds, which begin with ``first`` and double up to ``maximum``.

    ``jitter`` is the largest share that is subtracted from a delay at random, from 0 to 1. It keeps
    processes that lost the same server from reconnecting at the same instant.
    """

    def __init__(self, *, first: float, maximum: float, jitter: float = 0.0) -> None:
        self._first, self._maximum, self._jitter = first, maximum, jitter
        self._failures = 0

    @property
    def failures(self) -> int:
        """The number of delays since the last ``reset``."""
        return self._failures

    def next_delay(self) -> float:
        """Return the seconds to wait after one more failure."""
        doublings = min(self._failures, _MAX_DOUBLINGS)
        delay: float = min(self._first * 2**doublings, self._maximum)
        self._failures += 1
        return delay * RANDOM.uniform(1 - self._jitter, 1)

    def reset(self) -> None:
        """Start again with ``first``, because an attempt succeeded."""
        self._failures = 0
