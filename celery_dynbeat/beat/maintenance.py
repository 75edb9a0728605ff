"""Run the periodic duties of beat that do not send due schedules.

- When a poll finds them: correct the schedules of runs that ended (``settle_recent``).
- Four times in each dynbeat_node_timeout: rescue runs whose worker died, correct and pause the
  schedules of lost runs, resend retries that the broker lost, terminate replaced runs again, review
  holds, and warn of unsupported triggers.
- Whenever there is no backlog: prune a batch of old history, and one of old changes.

Rescue:

running, its worker is dead                                     -> ``transitions.dead_attempts``
retrying, replaced by a canvas, begun max_run_time ago          -> lost
retrying, not started dynbeat_resend_after past its retry time  -> pending, sent again
"""

from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.beat.claim import warn_unsupported
from celery_dynbeat.beat.holding import HeldKey, review
from celery_dynbeat.beat.pruner import ChangeTimer, PruneCursor, prune_changes
from celery_dynbeat.beat.termination import Termination
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.process.node_timeout import NEVER, effective_node_timeout
from celery_dynbeat.store import overlaps, stuck_runs
from celery_dynbeat.store.failing import RECENT
from celery_dynbeat.store.rows import LockedRows
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit, emit_on_commit, has_listeners
from celery_dynbeat.transitions.dead_attempts import EndedAttempts, end_attempts
from celery_dynbeat.transitions.failing import settle_deferred

#: Rescues in one dynbeat_node_timeout.
RESCUES_PER_NODE_TIMEOUT = 4


WORKER_GONE = "its worker is gone"
CANVAS_LOST = "the canvas that replaced its task did not end within max_run_time"


def rescue_runs(
    session: Session, *, now: datetime, node_timeout: timedelta, settings: Settings
) -> EndedAttempts:
    """End the attempts of a batch of runs whose worker is dead, or whose canvas was lost.

    A worker is dead if it was replaced or its row is missing, or if it has been stopped or silent
    for ``node_timeout``.
    """
    lost = stuck_runs.lock_lost(
        session,
        now=now,
        silent_since=now - node_timeout,
        max_run_time=settings.max_run_time,
        limit=settings.batch_size,
    )
    end = partial(end_attempts, session, now=now, settings=settings)
    waiting = [row for row in lost.rows if row.status == Status.RETRYING]
    running = [row for row in lost.rows if row.status != Status.RETRYING]
    canvases = end(LockedRows(waiting, []), reason=CANVAS_LOST)
    attempts = end(LockedRows(running, lost.unreadable), reason=WORKER_GONE)
    return EndedAttempts(canvases.count + attempts.count, attempts.rerun_count)


def resend_retries(session: Session, *, now: datetime, settings: Settings) -> int:
    """Make a batch of runs pending whose retry the broker has lost; return how many."""
    before = now - settings.resend_after
    resent = stuck_runs.resend_retries(session, before=before, now=now, limit=settings.batch_size)
    if resent and has_listeners(events.RetriesResent):
        event = events.RetriesResent(count=resent, resend_after=settings.resend_after)
        emit_on_commit(session, event)
    return resent


class Maintenance:
    """The periodic duties of one beat."""

    def __init__(
        self, *, database: Database, termination: Termination, clock: Clock, settings: Settings
    ) -> None:
        self._database = database
        self._termination = termination
        self._clock = clock
        self._settings = settings
        self._interval = settings.node_timeout / RESCUES_PER_NODE_TIMEOUT
        self._rescued_at: datetime | None = None
        self._already_warned: frozenset[int] = frozenset()
        #: The database was unreachable, so the heartbeats of other nodes failed as well.
        self.had_outage = False
        self._outage_ended_at: datetime | None = None
        self._cursor = PruneCursor()
        self._reviewed: HeldKey | None = None
        self._changes = ChangeTimer()

    def settle_recent(self, now: datetime) -> int:
        """Correct the schedules of runs that ended lately; return the number of these runs."""
        return self._settle(now, since=now - RECENT)

    def _settle(self, now: datetime, *, since: datetime | None = None) -> int:
        return settle_deferred(
            self._database,
            now=now,
            settings=self._settings,
            retry_after=self._interval,
            since=since,
        )

    def rescue(self, now: datetime) -> int:
        """Rescue and resend runs if it is time; return how many runs were changed."""
        # A ``now`` before the last time: the clock was set back.
        if self._rescued_at is not None and timedelta(0) <= now - self._rescued_at < self._interval:
            return 0
        rescued = self._rescue_runs(now)
        settled = self._settle(now)
        resent = self._database.run(partial(resend_retries, now=now, settings=self._settings))
        self._terminate_again(now)
        self._reviewed = self._database.run(partial(review, now=now, after=self._reviewed))
        self._already_warned = self._database.read_in_transaction(
            partial(warn_unsupported, now=now, already_warned=self._already_warned)
        )
        if max(rescued, resent) < self._settings.batch_size and not settled:
            self._rescued_at = now
        return rescued + settled + resent

    def _node_timeout(self, now: datetime) -> timedelta:
        if self.had_outage:
            self.had_outage, self._outage_ended_at = False, now
        timeout, ended_at = self._settings.node_timeout, self._outage_ended_at
        if ended_at is not None and timedelta(0) <= now - ended_at < timeout:
            return NEVER
        return effective_node_timeout(self._clock, self._settings)

    def _rescue_runs(self, now: datetime) -> int:
        node_timeout = self._node_timeout(now)
        ended = self._database.run(
            partial(rescue_runs, now=now, node_timeout=node_timeout, settings=self._settings),
        )
        return ended.count

    def _terminate_again(self, now: datetime) -> None:
        # Workers may have missed the first request, or beat died before it sent the request.
        before, limit = now - self._interval, self._settings.batch_size
        run_ids = self._database.read_in_transaction(
            partial(overlaps.cancelled_before, before=before, limit=limit)
        )
        for reason, ids in self._termination.retry(run_ids).items():
            self._database.run(
                partial(overlaps.note_termination_failure, run_ids=ids, reason=reason)
            )

    @property
    def next_at(self) -> datetime | None:
        """When the next rescue or prune is due; None before the first pass."""
        rescue_at = None if self._rescued_at is None else self._rescued_at + self._interval
        times = (rescue_at, self._cursor.next_at, self._changes.next_at)
        return min((at for at in times if at is not None), default=None)

    def prune(self, now: datetime) -> None:
        """Delete a batch of old history and of old changes if it is time."""
        self._prune_runs(now)
        self._prune_changes(now)

    def _prune_changes(self, now: datetime) -> None:
        if not self._changes.is_due(now):
            return
        older_than = self._settings.audit_retention
        deleted = self._database.run(partial(prune_changes, now=now, older_than=older_than))
        self._changes.advance(deleted, now=now)
        if deleted and has_listeners(events.HistoryPruned):
            emit(events.HistoryPruned(table="change", count=deleted, older_than=older_than))

    def _prune_runs(self, now: datetime) -> None:
        if not self._cursor.is_due(now):
            return
        older_than = self._settings.history_retention
        pruned = self._database.run(partial(self._cursor.prune, now=now, older_than=older_than))
        self._cursor.advance(pruned, now=now)
        if pruned.deleted and has_listeners(events.HistoryPruned):
            count = pruned.deleted
            emit(events.HistoryPruned(table="run", count=count, older_than=older_than))
