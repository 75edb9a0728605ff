"""What beat looks after now and then, beside what is due.

- Every quarter of dynbeat_node_timeout: runs that nobody would end, runs that were to end and have
  not, schedules that only a newer version could plan.
- Whenever no backlog waits: a batch of the history that is old enough to go.
"""

import logging
from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat.beat.claim import tell_passed_over
from celery_dynbeat.beat.pruner import Walk
from celery_dynbeat.beat.rescue import rescue_runs, resend_retries
from celery_dynbeat.beat.termination import Termination
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.runtime.node_timeout import NEVER, effective_node_timeout
from celery_dynbeat.runtime.pausing import pause_all_failing
from celery_dynbeat.store import overlaps

logger = logging.getLogger(__name__)

#: Rounds within one dynbeat_node_timeout.
LOOKS = 4


class Maintenance:
    """The rounds of one beat."""

    def __init__(
        self, *, database: Database, termination: Termination, clock: Clock, settings: Settings
    ) -> None:
        self._database = database
        self._termination = termination
        self._clock = clock
        self._settings = settings
        self._interval = settings.node_timeout / LOOKS
        self._looked_at: datetime | None = None
        self._told: frozenset[int] = frozenset()
        self._cut_off = False
        self._back_at: datetime | None = None
        self._walk = Walk()

    def note_outage(self) -> None:
        """Note that the database was away: what kept beat from it kept the nodes from it, too."""
        self._cut_off = True

    def look_after_running(self, now: datetime) -> int:
        """Make a round, if it is time; return how many runs were moved."""
        # A clock that went back does not count.
        if self._looked_at is not None and timedelta(0) <= now - self._looked_at < self._interval:
            return 0
        lost = self._rescue_runs(now)
        recalled = self._database.run(partial(resend_retries, now=now, settings=self._settings))
        self._ask_again(now)
        told = self._told
        self._told = self._database.read_in_transaction(
            partial(tell_passed_over, now=now, told=told)
        )
        if max(lost, recalled) < self._settings.batch_size:
            self._looked_at = now
        return lost + recalled

    def _effective_node_timeout(self, now: datetime) -> timedelta:
        if self._cut_off:
            self._cut_off, self._back_at = False, now
        timeout, back_at = self._settings.node_timeout, self._back_at
        if back_at is not None and timedelta(0) <= now - back_at < timeout:
            return NEVER
        return effective_node_timeout(self._clock, self._settings)

    def _rescue_runs(self, now: datetime) -> int:
        silence = self._effective_node_timeout(now)
        lost = self._database.run(
            partial(rescue_runs, now=now, silence=silence, settings=self._settings),
        )
        pause_all_failing(self._database, lost.pause_limits, now=now)
        return lost.count

    def _ask_again(self, now: datetime) -> None:
        # The broadcast may have been missed, or never sent: beat may have died before it.
        before, limit = now - self._interval, self._settings.batch_size
        asked = self._database.read_in_transaction(
            partial(overlaps.cancelled_before, before=before, limit=limit)
        )
        for reason, ids in self._termination.ask_again(asked).items():
            self._database.run(
                partial(overlaps.note_termination_failure, run_ids=ids, reason=reason)
            )

    @property
    def next_at(self) -> datetime | None:
        """When the next round is to be made, or batch to be pruned; None: nobody has asked yet."""
        look_at = None if self._looked_at is None else self._looked_at + self._interval
        return min((at for at in (look_at, self._walk.next_at) if at is not None), default=None)

    def prune(self, now: datetime) -> None:
        """Delete a batch of old history, if it is time."""
        if not self._walk.is_due(now):
            return
        older_than = self._settings.history_retention
        pruned = self._database.run(partial(self._walk.step, now=now, older_than=older_than))
        self._walk.go_on(pruned, now=now)
        if pruned.deleted:
            extra = {"event": Event.HISTORY_PRUNED, "deleted": pruned.deleted}
            logger.debug("%s runs older than %s deleted", pruned.deleted, older_than, extra=extra)
