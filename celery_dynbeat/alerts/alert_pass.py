"""One pass of the evaluation of alerts. Any number of beats can make passes at the same time.

    facts -> schedules whose check is due -> what is late or slow now, missing nodes
    -> open alerts: recovered?

Each step is one or more short transactions, on connections of the calling thread. Each step first
reads one row to learn whether there is work, so an idle pass writes nothing. A pass ends after
TIME_BUDGET, and the next pass continues. After each transaction it rests, because this thread and
the passes of beat share one interpreter: runs come before alerts.

After a crash: a step that has not committed has written nothing. Any beat evaluates the same facts
again. What a step has committed is done: no other beat sees its facts.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.alerts.checks import (
    RECHECK_AFTER,
    DelayCheck,
    add_missing_checks,
    check_due,
    check_open,
)
from celery_dynbeat.alerts.nodes import NodeCheck
from celery_dynbeat.alerts.opening import apply_facts, evaluate_facts
from celery_dynbeat.alerts.subjects import Subjects
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.process.heartbeat import NEVER, effective_node_timeout
from celery_dynbeat.store.alerts import alerts, checks, facts

logger = logging.getLogger(__name__)

#: Seconds after which a step starts no other transaction.
TIME_BUDGET = 5.0
#: The same for the check of open alerts, which is repeated as long as they are open.
RECOVERY_BUDGET = 1.0
#: The time for which the thread rests after a transaction, as a multiple of its duration.
REST = 3
#: The interval at which overdue schedules, unfinished runs and nodes are read.
DELAYS_EVERY = timedelta(seconds=10)

T = TypeVar("T")
#: Makes one transaction; returns the number of rows that it handled and of those that changed.
Step = Callable[[Session], tuple[int, int]]


def _no_failpoint(point: str) -> None:
    del point


def _no_rest(seconds: float) -> bool:
    del seconds
    return False


class AlertPass:
    """Makes passes. ``failpoint`` is called with the name of each point where a crash matters."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        settings: Settings,
        failpoint: Callable[[str], None] = _no_failpoint,
    ) -> None:
        self._database = database
        self._clock, self._settings = clock, settings
        self._failpoint = failpoint
        self._rest: Callable[[float], bool] = _no_rest
        self._subjects = Subjects(settings)
        self._delays = DelayCheck(self._subjects)
        self._nodes = NodeCheck(settings, every=DELAYS_EVERY)
        self._delays_at: datetime | None = None
        # Each beat searches once for schedules that are older than the setting. None means no more.
        self._unchecked_after = None if settings.alert_silent_after is None else 0

    def run(self, *, rest: Callable[[float], bool] = _no_rest) -> None:
        """Make a pass. Raises the error of the database if it is unreachable.

        ``rest`` waits for some seconds, and returns whether the pass must end.
        """
        self._rest = rest
        now = self._clock.now()
        deadline = time.monotonic() + TIME_BUDGET
        if self._database.read(facts.has_any):
            evaluate = partial(
                evaluate_facts, subjects=self._subjects, now=now, failpoint=self._failpoint
            )
            self._repeat(evaluate, deadline, _log_opened)
        if self._unchecked_after is not None:
            add = partial(add_missing_checks, after=self._unchecked_after, now=now)
            self._unchecked_after = self._database.run_after_conflicts(add)
        due_at = self._database.read_in_transaction(checks.next_due)
        if due_at is not None and due_at <= now:
            check = partial(check_due, subjects=self._subjects, now=now)
            self._repeat(check, deadline, _log_opened)
        self._check_delays(now)
        checked_at = self._database.read_in_transaction(alerts.oldest_check)
        if checked_at is not None and checked_at <= now - RECHECK_AFTER:
            recovery = partial(check_open, subjects=self._subjects, now=now)
            self._repeat(recovery, time.monotonic() + RECOVERY_BUDGET, _log_recovered)

    def _repeat(self, step: Step, deadline: float | None, log: Callable[[int], None]) -> None:
        """Make transactions of ``step`` until nothing is left; only one without a deadline."""
        handled = 1
        while handled:
            started = time.monotonic()
            handled, changed = self._database.run_after_conflicts(step)
            self._failpoint("committed")
            if changed:
                log(changed)
            must_end = handled and self._rest(REST * (time.monotonic() - started))
            if must_end or deadline is None or time.monotonic() > deadline:
                return

    def _check_delays(self, now: datetime) -> None:
        last = self._delays_at
        # A ``now`` before the last time means that the clock was set back.
        if last is not None and timedelta(0) <= now - last < DELAYS_EVERY:
            return
        self._check_nodes(now)
        delays = self._database.read_in_transaction(partial(self._delays.read, now=now))
        self._delays_at = now
        if delays.facts:

            def step(session: Session) -> tuple[int, int]:
                opened = apply_facts(
                    session, delays.facts, delays.schedules, subjects=self._subjects, now=now
                )
                return len(delays.facts), opened

            self._repeat(step, None, _log_opened)

    def _check_nodes(self, now: datetime) -> None:
        # After a step of the clock, all nodes seem to have been silent.
        if effective_node_timeout(self._clock, self._settings) == NEVER:
            return
        try:
            opened, ended = self._nodes.run(self._database, now=now)
        except IntegrityError:
            # Another beat has opened the same alert.
            return
        if opened:
            _log_opened(opened)
        if ended:
            _log_recovered(ended)


def _log_opened(count: int) -> None:
    logger.info("%s alerts opened", count, extra={"event": Event.ALERT_OPENED, "alerts": count})


def _log_recovered(count: int) -> None:
    logger.info(
        "%s alerts recovered", count, extra={"event": Event.ALERT_RECOVERED, "alerts": count}
    )
