"""The duties of beat: each is a unit, so an error of one delays neither the others nor a pass.

    done     -> it runs again after its interval, or when it says so
    failed   -> reported, and tried again after 1, 2, 4 ... seconds, at most MAX_PAUSE apart

A duty is one row in a table of ``beat.dispatcher``, ``beat.runtime`` or ``beat.alerting``. Only an
outage of the database concerns all duties, so its error is raised, and the pass fails.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from celery_dynbeat.broker.outages import ERROR_LENGTH, Kind, ReportedOutage
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db.engine import Database, reason_of
from celery_dynbeat.telemetry import emit, events, has_listeners

FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=1), timedelta(minutes=5)
_MAX_DOUBLINGS = 10
#: The longest pause after the error of an outage.
AFTER_OUTAGE = timedelta(seconds=20)
NOW = timedelta(0)


class Done(NamedTuple):
    """What a duty has done: the number of changed rows, and when it runs again.

    ``again_after=None`` means after its interval. ``error`` is the error of a part.
    """

    changed: int = 0
    again_after: timedelta | None = None
    error: Exception | None = None


#: None means a Done without changes.
Work = Callable[[datetime], Done | None]


@dataclass(frozen=True, slots=True)
class _Failing:
    """The error of a duty that fails since ``since``."""

    error: str
    since: datetime
    failures: int


class Duty:
    """One duty. ``name`` is what the status of beat calls it, if it fails.

    ``work`` makes its transactions. It runs after ``delay``, then at intervals of ``every``; zero
    means in each pass that has work for it.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        work: Work,
        *,
        every: timedelta = NOW,
        delay: timedelta = NOW,
    ) -> None:
        self.name, self.every, self.delay = name, every, delay
        self._database, self._work = database, work
        self._failing: _Failing | None = None
        #: When the last pause of the duty began, and its end.
        self._pause: tuple[datetime, datetime] | None = None

    def run(self, now: datetime) -> int:
        """Do the work if it is time; return the number of changed rows.

        Raises the error of an outage of the database, and an error that ends beat.
        """
        if self.delay and self._pause is None:
            self._pause = (now, now + self.delay)
        return 0 if self.wait(now) else self.attempt(now)

    def attempt(self, now: datetime) -> int:
        """Do the work in any case. Returns and raises the same as ``run``."""
        try:
            done = self._work(now) or Done()
        except ConfigurationError:
            raise
        # Any other error: this duty alone waits.
        except Exception as error:
            if self._database.is_outage(error):
                # The error fails a pass. The next passes do the rest of their work.
                self._pause = (now, now + min(self.every, AFTER_OUTAGE))
                raise
            done = Done(again_after=NOW, error=error)
        pause = self.every if done.again_after is None else done.again_after
        if done.error is None:
            self._failing = None
        else:
            pause = max(pause, self._note(done.error, now))
        self._pause = (now, now + pause)
        return done.changed

    def wait(self, now: datetime) -> timedelta:
        """Return how long beat may sleep before the duty."""
        if self._pause is None:
            return NOW
        began_at, end_at = self._pause
        # A pause that begins after ``now`` means that the clock was set back.
        return end_at - now if began_at <= now < end_at else NOW

    def expect(self) -> None:
        """Make the duty due at once, unless it waits after a failure."""
        if self._failing is None:
            self._pause = None

    def _note(self, error: Exception, now: datetime) -> timedelta:
        """Report a failure, and return the pause after it."""
        before = self._failing
        failures = 1 if before is None else before.failures + 1
        pause: timedelta = min(FIRST_PAUSE * 2 ** min(failures - 1, _MAX_DOUBLINGS), MAX_PAUSE)
        since = now if before is None else before.since
        self._failing = _Failing(reason_of(error), since, failures)
        if has_listeners(events.DutyFailed):
            event = events.DutyFailed(
                duty=self.name,
                reason=reason_of(error),
                failures=failures,
                retry_seconds=pause.total_seconds(),
                exception=error,
            )
            emit(event)
        return pause

    def report(self) -> ReportedOutage | None:
        """Return the failure, for the row of this node, or None if the duty does not fail."""
        failing = self._failing
        if failing is None:
            return None
        since = failing.since.isoformat(timespec="seconds")
        return ReportedOutage(str(Kind.DUTY), self.name, since, failing.error[:ERROR_LENGTH])


def failing(duties: Sequence[Duty]) -> list[ReportedOutage]:
    """Return the failures of the duties, for the row of this node."""
    return [found for each in duties if (found := each.report()) is not None]


#: ``close`` waits this many seconds in total. Any beat can repeat what was running.
CLOSE_TIMEOUT = 2.0


class DutyThreads:
    """Duties that each have a daemon thread, so that no pass of beat waits for them."""

    def __init__(self, clock: Clock, duties: Sequence[Duty]) -> None:
        self.duties = duties
        self._clock = clock
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._repeat, args=(each,), name=f"dynbeat-{each.name}", daemon=True
            )
            for each in duties
        ]

    def start(self) -> None:
        """Start the threads."""
        for each in self._threads:
            each.start()

    def close(self) -> None:
        """Ask the threads to end, and wait for up to CLOSE_TIMEOUT. May be called twice."""
        self._closing.set()
        for each in self._threads:
            if each.is_alive():
                each.join(CLOSE_TIMEOUT / len(self._threads))

    def _repeat(self, duty: Duty) -> None:
        pause = duty.delay
        while not self._closing.wait(pause.total_seconds()):
            pause = duty.every
            try:
                now = self._clock.now()
                duty.attempt(now)
                pause = max(duty.every, duty.wait(now))
            # The database is unreachable. The passes of beat report it.
            except Exception:  # noqa: BLE001, S112
                continue
