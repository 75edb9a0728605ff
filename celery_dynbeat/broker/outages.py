"""Which queues, exchanges and tasks cannot be published to now, and when beat tries each again.

    unknown --refused--> open: its runs stay pending --taken, or no refusal for FORGET--> unknown
                          |  retry_at: after 1, 2, 4 ... seconds, at most every LONGEST

Two kinds of refusal lead here:

- The broker names the queue or exchange (AMQP 403, 404, 406; Redis NOPERM, WRONGTYPE). No message
  of it is tried before ``retry_at``. The first message that the broker takes ends the outage.
- An error that may concern one message only (an exception of a router or of the task's own
  ``apply_async``, another error of a driver). Each run is tried again by itself, and other runs are
  not held back once one of them was taken, but for those of the schedules that were refused lately:
  these would pile up. The outage ends when no run was refused for FORGET.

Kept in the memory of one beat: another beat learns of an outage by its own first refusal. At most
MOST outages are kept, so that memory is bounded: rows may name any queue.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from celery_dynbeat.common.events import Event

logger = logging.getLogger(__name__)

FIRST = timedelta(seconds=1)
LONGEST = timedelta(seconds=30)
#: An outage without a refusal for so long after ``retry_at`` has ended: its runs were taken,
#: revoked or expired.
FORGET = timedelta(seconds=60)
#: A run is refused for good after so many tries, where its own row is at fault: 91 s.
LAST_TRY = 8
MOST = 200
#: Schedules that an outage remembers as refused.
MOST_SCHEDULES = 10_000
#: New runs that are let through between two tries of an inexact outage: the runs that wait may all
#: be at fault themselves, and a new one is then the only evidence that others pass.
TRIALS = 10
#: Outages that a beat reports, and characters of each error.
MOST_REPORTED = 10
LONGEST_ERROR = 300


class Kind(StrEnum):
    """What an outage concerns."""

    QUEUE = "queue"
    EXCHANGE = "exchange"
    #: Celery's or the application's code raises when this task is published.
    TASK = "task"


class Scope(NamedTuple):
    """The queue, exchange or task of an outage. ``detail`` tells apart two scopes of one name."""

    kind: Kind
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(slots=True)
class Outage:
    """What is refused since ``since``, and not tried before ``retry_at``.

    ``tries`` counts the times that it was tried, not the runs. ``exact``: the broker named the
    queue or exchange. ``passed_at`` is when another run of an inexact outage was taken,
    ``schedules`` when a run of each schedule was last refused. ``trials`` new runs were let through
    behind the try that set ``trial_of``.
    """

    scope: Scope
    error: str
    since: datetime
    retry_at: datetime
    exact: bool
    tries: int = 1
    passed_at: datetime | None = None
    trial_of: datetime | None = None
    trials: int = 0
    schedules: dict[int, datetime] = field(default_factory=dict)

    def waits(self, now: datetime) -> bool:
        """Return whether it is too early for another try."""
        # Further away than any pause: the clock was set back.
        return now < self.retry_at <= now + LONGEST

    def others_pass(self, now: datetime) -> bool:
        """Return whether other runs were taken while this outage lasted, and lately."""
        return self.passed_at is not None and now - self.passed_at < 2 * LONGEST

    def takes_trial(self, now: datetime) -> bool:
        """Return whether a new run is let through as a trial, and count it."""
        if self.exact and self.waits(now):
            return False
        if self.trial_of != self.retry_at:
            self.trial_of, self.trials = self.retry_at, 0
        self.trials += 1
        return self.trials <= (1 if self.exact else TRIALS)

    def refused(self, schedule_id: int, now: datetime) -> None:
        """Note that a run of a schedule was refused."""
        if schedule_id in self.schedules or len(self.schedules) < MOST_SCHEDULES:
            self.schedules[schedule_id] = now

    def refused_lately(self, schedule_id: int, now: datetime) -> bool:
        """Return whether a run of the schedule waits: each is tried every LONGEST."""
        refused_at = self.schedules.get(schedule_id)
        return refused_at is not None and abs(now - refused_at) < 2 * LONGEST

    def forget_schedules(self, now: datetime) -> None:
        """Forget the schedules that were not refused lately."""
        ids = [key for key in self.schedules if not self.refused_lately(key, now)]
        for schedule_id in ids:
            del self.schedules[schedule_id]


class Outages:
    """The outages that one beat knows of. ``now`` is the database's clock."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._open: dict[Scope, Outage] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def note(self, scope: Scope, error: str, *, schedule_id: int, exact: bool) -> Outage:
        """Note that a run was refused, and return the outage, which says when to try again."""
        now = self._now()
        outage = self._open.get(scope)
        if outage is None:
            outage = self._begin(scope, error[:LONGEST_ERROR], now, exact=exact)
        # The other runs of the same try say nothing new.
        elif not outage.waits(now):
            outage.tries += 1
            outage.retry_at = now + min(FIRST * 2 ** min(outage.tries - 1, 10), LONGEST)
            outage.error = error[:LONGEST_ERROR]
            outage.exact = outage.exact or exact
            outage.forget_schedules(now)
        if not outage.exact:
            outage.refused(schedule_id, now)
        return outage

    def _begin(self, scope: Scope, error: str, now: datetime, *, exact: bool) -> Outage:
        outage = Outage(scope, error, since=now, retry_at=now + FIRST, exact=exact)
        if len(self._open) >= MOST:
            outage.retry_at = now + LONGEST
            return outage
        self._open[scope] = outage
        logger.error(
            "publishing fails for %s: %s; its runs stay pending, and are tried again each %s s or"
            " sooner",
            scope,
            outage.error,
            LONGEST.seconds,
            extra={"event": Event.OUTAGE_STARTED, "scope": str(scope)},
        )
        return outage

    def took(self, scope: Scope) -> None:
        """Note that the broker took a run of ``scope`` behind what it refused: an outage ends."""
        outage = self._open.get(scope)
        if outage is not None and outage.exact:
            self._end(outage)

    def passed(self, scope: Scope, schedule_id: int) -> None:
        """Note that a run of ``scope`` was taken, where the outage may concern others alone."""
        outage = self._open.get(scope)
        if outage is not None and not outage.exact:
            outage.passed_at = self._now()
            outage.schedules.pop(schedule_id, None)

    def retry_at(self, scope: Scope, *, at_once: bool) -> datetime | None:
        """Return when a run of ``scope`` is to be tried; None: now.

        Where the broker named no queue each run is tried by itself, ``at_once``.
        """
        outage = self._open.get(scope)
        if outage is None or (at_once and not outage.exact) or not outage.waits(self._now()):
            return None
        return outage.retry_at

    def is_exact(self, scope: Scope) -> bool:
        """Return whether the broker refused ``scope`` by its name."""
        outage = self._open.get(scope)
        return outage is not None and outage.exact

    def hold(self, scope: Scope, schedule_id: int, *, certain: bool = False) -> datetime | None:
        """Return until when no new run of a schedule is to be recorded; None: record it.

        Where the broker named the queue, one run is let through after each ``retry_at`` as a trial,
        so that an outage ends although every run that waited for it was revoked. Else TRIALS are,
        at once: the runs that wait are tried first each time, and if they alone are at fault, all
        others would be held for as long as they wait. ``certain``: a trial would fail.
        """
        outage = self._open.get(scope)
        if outage is None:
            return None
        now = self._now()
        # A run that waits is trial enough for its schedule.
        if certain or outage.refused_lately(schedule_id, now):
            return _behind(outage, now)
        if outage.others_pass(now) or outage.takes_trial(now):
            return None
        return _behind(outage, now)

    def report(self) -> str | None:
        """Return the open outages as JSON, the oldest first; None: there are none."""
        if not self._open:
            return None
        self.expire()
        oldest = sorted(self._open.values(), key=lambda outage: outage.since)[:MOST_REPORTED]
        return json.dumps([_entry_of(outage) for outage in oldest]) if oldest else None

    def expire(self) -> None:
        """End the outages of which no run was refused for FORGET."""
        if not self._open:
            return
        now = self._now()
        for outage in list(self._open.values()):
            if now - outage.retry_at > FORGET:
                self._end(outage)

    def _end(self, outage: Outage) -> None:
        del self._open[outage.scope]
        logger.info(
            "publishing works again for %s; it had failed since %s",
            outage.scope,
            outage.since.isoformat(timespec="seconds"),
            extra={"event": Event.OUTAGE_ENDED, "scope": str(outage.scope)},
        )


def _behind(outage: Outage, now: datetime) -> datetime:
    """Return the instant behind the sweep that tries again what is pending."""
    return (outage.retry_at if outage.waits(now) else now) + FIRST


class Reported(NamedTuple):
    """An outage as a beat reported it."""

    kind: str
    name: str
    since: str
    error: str


def _entry_of(outage: Outage) -> dict[str, str]:
    scope = outage.scope
    since = outage.since.isoformat(timespec="seconds")
    return Reported(str(scope.kind), scope.name, since, outage.error)._asdict()


def read(report: str | None) -> Sequence[Reported]:
    """Return the outages of a report; none of one that cannot be read."""
    try:
        entries = json.loads(report or "[]")
        return [Reported(*(str(entry[key]) for key in Reported._fields)) for entry in entries]
    except (LookupError, TypeError, ValueError, RecursionError):
        return []
