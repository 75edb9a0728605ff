"""The duties of beat: each is a unit, so an error of one delays neither the others nor a pass.

    ok       -> the duty decides when it runs again
    failed   -> reported, and tried again after 1, 2, 4 ... seconds, at most MAX_PAUSE apart

Only an outage of the database concerns all duties, so its error is raised, and the pass fails.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from celery_dynbeat.broker.outages import ERROR_LENGTH, Kind, ReportedOutage
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import ConfigurationError, SchemaError
from celery_dynbeat.db.engine import Database, reason_of
from celery_dynbeat.telemetry import emit, events, has_listeners

FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=1), timedelta(minutes=5)
_MAX_DOUBLINGS = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Failing:
    """A duty that fails since ``since``. It is tried again at ``retry_at``."""

    error: str
    since: datetime
    failures: int
    retry_at: datetime


class Duties:
    """The duties of one beat."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._failing: dict[str, _Failing] = {}

    def run(self, name: str, work: Callable[[datetime], T], *, now: datetime, default: T) -> T:
        """Return ``work(now)``, or ``default`` if the duty fails or waits after a failure.

        Raises the error of an outage of the database, and an error that ends beat.
        """
        if self.wait(name, now):
            return default
        try:
            result = work(now)
        except (ConfigurationError, SchemaError):
            raise
        # Any other error: this duty alone waits.
        except Exception as error:
            if self._database.is_outage(error):
                raise
            self._note(name, error, now)
            return default
        self._failing.pop(name, None)
        return result

    def _note(self, name: str, error: Exception, now: datetime) -> None:
        before = self._failing.get(name)
        failures = 1 if before is None else before.failures + 1
        pause = min(FIRST_PAUSE * 2 ** min(failures - 1, _MAX_DOUBLINGS), MAX_PAUSE)
        since = now if before is None else before.since
        self._failing[name] = _Failing(reason_of(error), since, failures, now + pause)
        if has_listeners(events.DutyFailed):
            event = events.DutyFailed(
                duty=name,
                reason=reason_of(error),
                failures=failures,
                retry_seconds=pause.total_seconds(),
                exception=error,
            )
            emit(event)

    def wait(self, name: str, now: datetime) -> timedelta:
        """Return how long a duty is not tried because it has failed; else zero."""
        failing = self._failing.get(name)
        # An instant beyond the longest pause means that the clock was set back.
        if failing is None or not now < failing.retry_at <= now + MAX_PAUSE:
            return timedelta(0)
        return failing.retry_at - now

    def report(self) -> list[ReportedOutage]:
        """Return the duties that fail, for the row of this node."""
        return [
            ReportedOutage(
                str(Kind.DUTY),
                name,
                each.since.isoformat(timespec="seconds"),
                each.error[:ERROR_LENGTH],
            )
            # A copy: another thread may run one of the duties.
            for name, each in list(self._failing.items())
        ]


#: ``close`` waits this many seconds in total. Any beat can repeat what was running.
CLOSE_TIMEOUT = 2.0


class Repeated(NamedTuple):
    """A duty that is repeated, with a pause of ``every``. It first runs after ``delay``."""

    name: str
    work: Callable[[datetime], None]
    every: timedelta
    delay: timedelta = timedelta(0)


class DutyThreads:
    """Duties that each have a daemon thread, so that no pass of beat waits for them."""

    def __init__(self, duties: Duties, clock: Clock, repeated: Sequence[Repeated]) -> None:
        self._duties = duties
        self._clock = clock
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._repeat, args=(each,), name=f"dynbeat-{each.name}", daemon=True
            )
            for each in repeated
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

    def _repeat(self, duty: Repeated) -> None:
        pause = duty.delay
        while not self._closing.wait(pause.total_seconds()):
            pause = duty.every
            try:
                now = self._clock.now()
                self._duties.run(duty.name, duty.work, now=now, default=None)
                pause = max(duty.every, self._duties.wait(duty.name, now))
            # The database is unreachable. The passes of beat report it.
            except Exception:  # noqa: BLE001, S112
                continue
