"""Outages of queues, exchanges and tasks, and when beat retries them.

    closed --refusal--> open: runs stay pending --accepted, or FORGET_AFTER passed--> closed
                        |  retry_at: after 1, 2, 4 ... seconds, at most MAX_PAUSE apart

Two kinds of refusal open an outage:

- Exact: the broker names the queue or exchange (AMQP 403, 404, 406; Redis NOPERM, WRONGTYPE). Beat
  publishes no message to it before ``retry_at``. The first message that the broker accepts closes
  the outage.
- Inexact: an error that may concern one message only (an exception of a router or of the task's
  own ``apply_async``, another error of a driver). Beat retries each run separately. Once another
  run is accepted, new runs are recorded again, except runs of recently refused schedules, which
  would accumulate.

Either outage closes when FORGET_AFTER has passed after ``retry_at`` without a refusal.

Outages live in the memory of one beat. Another beat detects an outage by its own first refusal.
Rows may name any queue, so MAX_OUTAGES bounds the memory.
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

FIRST_PAUSE = timedelta(seconds=1)
MAX_PAUSE = timedelta(seconds=30)
#: An outage closes when this time has passed after ``retry_at`` without a refusal: its runs were
#: accepted, revoked or expired.
FORGET_AFTER = timedelta(seconds=60)
#: A run whose own row is at fault is refused permanently after this number of tries: 91 s.
MAX_TRIES = 8
MAX_OUTAGES = 200
#: Refused schedules that one outage remembers.
MAX_SCHEDULES = 10_000
#: New runs that beat publishes between two tries of an inexact outage. If all pending runs are at
#: fault, only a new run can show that the others are accepted.
MAX_TRIALS = 10
#: Outages in the report of a beat.
MAX_REPORTED = 10
#: Characters of the error of an outage.
ERROR_LENGTH = 300


class Kind(StrEnum):
    """The kind of object that an outage concerns."""

    QUEUE = "queue"
    EXCHANGE = "exchange"
    #: Code of Celery or of the application raises when it publishes this task.
    TASK = "task"
    #: A duty that fails, and a row that beat leaves out. Both are only in reports.
    DUTY = "duty"
    ROW = "row"


#: The kinds of what cannot be published.
PUBLISHING = (Kind.QUEUE, Kind.EXCHANGE, Kind.TASK)


class Scope(NamedTuple):
    """The queue, exchange or task of an outage. ``detail`` separates two scopes of one name."""

    kind: Kind
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(slots=True)
class Outage:
    """A scope that is refused since ``since`` and not retried before ``retry_at``.

    ``tries`` counts the tries, not the runs. ``exact`` is true if the broker named the queue or
    exchange. ``accepted_at`` is the last time another run of an inexact outage was accepted.
    ``schedules`` holds the last refusal of each schedule id. ``trials`` new runs were published
    since the try whose ``retry_at`` is ``trials_since``.
    """

    scope: Scope
    error: str
    since: datetime
    retry_at: datetime
    exact: bool
    tries: int = 1
    accepted_at: datetime | None = None
    trials_since: datetime | None = None
    trials: int = 0
    schedules: dict[int, datetime] = field(default_factory=dict)

    def is_waiting(self, now: datetime) -> bool:
        """Return whether it is too early for another try."""
        # An instant beyond the longest pause means that the clock was set back.
        return now < self.retry_at <= now + MAX_PAUSE

    def are_others_accepted(self, now: datetime) -> bool:
        """Return whether another run of this scope was accepted recently."""
        return self.accepted_at is not None and now - self.accepted_at < 2 * MAX_PAUSE

    def use_trial(self, now: datetime) -> bool:
        """Count a trial and return whether beat may publish a new run as that trial."""
        if self.exact and self.is_waiting(now):
            return False
        if self.trials_since != self.retry_at:
            self.trials_since, self.trials = self.retry_at, 0
        self.trials += 1
        return self.trials <= (1 if self.exact else MAX_TRIALS)

    def record_refusal(self, schedule_id: int, now: datetime) -> None:
        """Record that a run of the schedule was refused."""
        if schedule_id in self.schedules or len(self.schedules) < MAX_SCHEDULES:
            self.schedules[schedule_id] = now

    def is_recently_refused(self, schedule_id: int, now: datetime) -> bool:
        """Return whether a run of the schedule is pending, which beat retries every MAX_PAUSE."""
        refused_at = self.schedules.get(schedule_id)
        return refused_at is not None and abs(now - refused_at) < 2 * MAX_PAUSE

    def forget_old_refusals(self, now: datetime) -> None:
        """Forget the schedules without a recent refusal."""
        ids = [key for key in self.schedules if not self.is_recently_refused(key, now)]
        for schedule_id in ids:
            del self.schedules[schedule_id]


class Outages:
    """The open outages of one beat. ``now`` is the database's clock."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._open: dict[Scope, Outage] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def record(self, scope: Scope, error: str, *, schedule_id: int, exact: bool) -> Outage:
        """Record that a run was refused. Return the outage, whose ``retry_at`` is the next try."""
        now = self._now()
        outage = self._open.get(scope)
        if outage is None:
            outage = self._open_outage(scope, error[:ERROR_LENGTH], now, exact=exact)
        # Other runs of the same try add no information.
        elif not outage.is_waiting(now):
            outage.tries += 1
            outage.retry_at = now + min(FIRST_PAUSE * 2 ** min(outage.tries - 1, 10), MAX_PAUSE)
            outage.error = error[:ERROR_LENGTH]
            outage.exact = outage.exact or exact
            outage.forget_old_refusals(now)
        if not outage.exact:
            outage.record_refusal(schedule_id, now)
        return outage

    def _open_outage(self, scope: Scope, error: str, now: datetime, *, exact: bool) -> Outage:
        outage = Outage(scope, error, since=now, retry_at=now + FIRST_PAUSE, exact=exact)
        if len(self._open) >= MAX_OUTAGES:
            outage.retry_at = now + MAX_PAUSE
            return outage
        self._open[scope] = outage
        logger.error(
            "publishing fails for %s: %s; its runs stay pending and are retried at least every "
            "%s s",
            scope,
            outage.error,
            MAX_PAUSE.seconds,
            extra={"event": Event.OUTAGE_STARTED, "scope": str(scope)},
        )
        return outage

    def record_accepted(self, scope: Scope) -> None:
        """Record that the broker accepted a retried run of ``scope``. Close its exact outage."""
        outage = self._open.get(scope)
        if outage is not None and outage.exact:
            self._close(outage)

    def record_other_accepted(self, scope: Scope, schedule_id: int) -> None:
        """Record that a run of ``scope`` was accepted during an inexact outage."""
        outage = self._open.get(scope)
        if outage is not None and not outage.exact:
            outage.accepted_at = self._now()
            outage.schedules.pop(schedule_id, None)

    def retry_at(self, scope: Scope, *, immediately: bool) -> datetime | None:
        """Return the instant of the next try of a run of ``scope``; None means now.

        With ``immediately``, an inexact outage delays no run: beat retries each run separately.
        """
        outage = self._open.get(scope)
        if (
            outage is None
            or (immediately and not outage.exact)
            or not outage.is_waiting(self._now())
        ):
            return None
        return outage.retry_at

    def is_exact(self, scope: Scope) -> bool:
        """Return whether ``scope`` has an exact outage."""
        outage = self._open.get(scope)
        return outage is not None and outage.exact

    def delay_new_run(
        self, scope: Scope, schedule_id: int, *, certain: bool = False
    ) -> datetime | None:
        """Return the instant until which beat must not record a new run, None to record it.

        An exact outage permits one new run after each ``retry_at`` as a trial, so that it closes
        although all its pending runs were revoked. An inexact outage permits MAX_TRIALS runs
        without delay. Beat retries the pending runs first. If only they are at fault, all other
        runs would otherwise wait as long as they do. ``certain`` is true if a trial would fail.
        """
        outage = self._open.get(scope)
        if outage is None:
            return None
        now = self._now()
        # The pending run is the trial of its schedule.
        if certain or outage.is_recently_refused(schedule_id, now):
            return _after_retry(outage, now)
        if outage.are_others_accepted(now) or outage.use_trial(now):
            return None
        return _after_retry(outage, now)

    def report(self, others: "Sequence[ReportedOutage]" = ()) -> str | None:
        """Return ``others`` and the open outages as JSON, oldest first, or None without any."""
        if not self._open and not others:
            return None
        self.expire()
        oldest = sorted(self._open.values(), key=lambda outage: outage.since)
        entries = [*others, *map(_entry_of, oldest)][:MAX_REPORTED]
        return json.dumps([each._asdict() for each in entries]) if entries else None

    def expire(self) -> None:
        """Close the outages without a refusal for FORGET_AFTER after their ``retry_at``."""
        if not self._open:
            return
        now = self._now()
        for outage in list(self._open.values()):
            if now - outage.retry_at > FORGET_AFTER:
                self._close(outage)

    def _close(self, outage: Outage) -> None:
        del self._open[outage.scope]
        logger.info(
            "publishing works again for %s; it had failed since %s",
            outage.scope,
            outage.since.isoformat(timespec="seconds"),
            extra={"event": Event.OUTAGE_ENDED, "scope": str(outage.scope)},
        )


def _after_retry(outage: Outage, now: datetime) -> datetime:
    """Return an instant after the sweep that retries the pending runs."""
    return (outage.retry_at if outage.is_waiting(now) else now) + FIRST_PAUSE


class ReportedOutage(NamedTuple):
    """An outage in the report of a beat."""

    kind: str
    name: str
    since: str
    error: str


def _entry_of(outage: Outage) -> ReportedOutage:
    scope = outage.scope
    since = outage.since.isoformat(timespec="seconds")
    return ReportedOutage(str(scope.kind), scope.name, since, outage.error)


def parse_report(report: str | None) -> Sequence[ReportedOutage]:
    """Return the outages in a report, or none when the report is not valid."""
    try:
        entries = json.loads(report or "[]")
        return [
            ReportedOutage(*(str(entry[key]) for key in ReportedOutage._fields))
            for entry in entries
        ]
    except (LookupError, TypeError, ValueError, RecursionError):
        return []
