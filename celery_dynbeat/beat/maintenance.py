"""Run the periodic duties of beat that do not send due schedules.

- When a poll finds them: correct the schedules of ended runs (``settle_recent``).
- Four times in each dynbeat_node_timeout: rescue runs whose worker died, correct and pause the
  schedules of lost runs, resend retries that the broker lost, terminate replaced runs again, review
  holds, and warn of unsupported triggers.
- Whenever there is no backlog: prune a batch of old history, one of old changes, and one of slots
  whose runs have ended.
- After the start of beat: plan schedules again if the tz database is newer (``beat.tz_release``).

Rescue:

running, its worker is dead                                     -> ``transitions.end_attempts``
retrying, replaced by a canvas, begun max_run_time ago          -> lost
retrying, not started dynbeat_resend_after past its retry time  -> pending, sent again

Termination: ask the workers to end the runs that newer runs replace.

a worker ends the run                      -> the worker records ``revoked``
the broker is unreachable                  -> the next rescue sends the request again
the broker refuses the request             -> the reason is noted on the run
the run continues after MAX_RETRIES        -> that is noted on the run

No request is sent for a run with a note. Such a run ends without a request. Its successor was sent
long before.

Pruning: runs go after dynbeat_history_retention, changes after dynbeat_audit_retention. Run ids are
ordered by time. A scan of the primary key therefore meets the oldest runs first and needs no
additional index. A scan starts every SCAN_INTERVAL. Each batch reads and deletes at most BATCH_SIZE
rows in a separate transaction, followed by a pause. A batch therefore delays due schedules only
briefly. These rows stay, at any age:

- runs that have not ended;
- while the schedule is not finished, the run of its last fire time and newer ones: after the clock
  is set back, beat must find the fire times that already had their run.

A batch of changes reads the start of the index on ``changed_at``. A scan of the slots reads all of
them by their ids: those of unfinished runs, and of runs that ended since the last scan.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat import store
from celery_dynbeat.beat.claim import warn_unsupported
from celery_dynbeat.beat.holding import HeldKey, review
from celery_dynbeat.broker.publisher import RunPublisher
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.settings import Settings, tz_release
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import REQUESTED_ORIGINS
from celery_dynbeat.process.heartbeat import NEVER, effective_node_timeout
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.store.schedules import changes
from celery_dynbeat.store.schedules.failing import RECENT
from celery_dynbeat.telemetry import emit, emit_on_commit, events, has_listeners
from celery_dynbeat.transitions import EndedAttempts, end_attempts, settle_deferred

BATCH_SIZE = 500
#: A scope of a group takes two more queries.
SCOPE_BATCH_SIZE = 100
#: After a scan, the next one waits for at least this multiple of the scan's duration, but at most
#: MAX_IDLE: the clock may have been set forward during the scan.
IDLE_FACTOR, MAX_IDLE = 20, timedelta(days=1)
BATCH_PAUSE = timedelta(milliseconds=100)
SCAN_INTERVAL = timedelta(minutes=10)
#: After the start of beat, the first scan waits this long, because due schedules come first.
FIRST_DELAY = timedelta(minutes=1)
#: This is less than every run id.
LOWEST_ID = "00000000-0000-0000-0000-000000000000"
Position = TypeVar("Position")


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of one batch. The next one starts after ``last_id``, or None at the end."""

    deleted: int
    last_id: str | None


def prune(
    session: Session, *, now: datetime, older_than: timedelta, after: str = LOWEST_ID
) -> Pruned:
    """Delete the prunable runs among the next BATCH_SIZE runs after the id ``after``."""
    limit = now - older_than
    # A late import: beat prunes minutes after its start.
    from celery_dynbeat.store.runs import retention  # noqa: PLC0415

    rows = retention.read_page(session, after=after, before=first_run_id(limit), limit=BATCH_SIZE)
    prunable_ids = [row.id for row in rows if _is_prunable(row, limit)]
    deleted = retention.delete_finished(session, prunable_ids)
    return Pruned(deleted, rows[-1].id if len(rows) == BATCH_SIZE else None)


def _is_prunable(row: Row[Any], limit: datetime) -> bool:
    if row.finished_at is None or row.finished_at >= limit:
        return False
    if row.schedule_id is None or row.over_at is not None or row.origin in REQUESTED_ORIGINS:
        # No trigger yields the instant of such a run. A finished schedule yields no instants at
        # all.
        return True
    last = row.last_run_at or row.next_fire_at
    return last is not None and row.scheduled_for < last


def prune_changes(session: Session, *, now: datetime, older_than: timedelta) -> int:
    """Delete up to BATCH_SIZE old changes and return their number."""
    return changes.delete_before(session, before=now - older_than, limit=BATCH_SIZE)


class SlotPosition(NamedTuple):
    """The slot and the scope after which the next batch starts. None: all of them were read."""

    slot_id: int | None
    scope: str | None


def prune_slots(session: Session, *, now: datetime, after: SlotPosition) -> SlotPosition | None:
    """Delete the slots that no limit counts any more, and unused scopes, in one batch.

    Return the new position, or None at the end.
    """
    # Late imports: few installations have slots.
    from celery_dynbeat.planning.admission import is_prunable  # noqa: PLC0415
    from celery_dynbeat.store import slots  # noqa: PLC0415

    slot_id, scope = after
    if slot_id is not None:
        rows = slots.read_page(session, after=slot_id, limit=BATCH_SIZE)
        old = [
            row.id
            for row in rows
            if is_prunable(row.admitted_at, has_ended=row.has_ended, lost_at=row.lost_at, now=now)
        ]
        slots.delete_slots(session, old)
        slot_id = rows[-1].id if len(rows) == BATCH_SIZE else None
    if scope is not None:
        scope = slots.delete_unused_scopes(session, after=scope, limit=SCOPE_BATCH_SIZE)
    return None if slot_id is None and scope is None else SlotPosition(slot_id, scope)


class PruneTimer:
    """When the next batch of a prune is due."""

    def __init__(self) -> None:
        self._checked_at: datetime | None = None
        self.next_at: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        """Return whether to prune a batch now."""
        if self.next_at is None:
            self.next_at = now + FIRST_DELAY
        if self._checked_at is not None and now < self._checked_at:
            # The clock was set back.
            self.next_at = min(self.next_at, now + SCAN_INTERVAL)
        self._checked_at = now
        return self.next_at <= now


class PruneCursor(PruneTimer, Generic[Position]):
    """The position of one beat's scan, and when its next batch is due.

    ``after`` is the position after the last batch, or None if a scan begins.
    """

    def __init__(self) -> None:
        super().__init__()
        self.after: Position | None = None
        self._scan_started_at: datetime | None = None

    def advance(self, after: Position | None, *, now: datetime) -> None:
        """Move the cursor after a batch was committed. None is the end of the scan."""
        self.after = after
        started_at = self._scan_started_at or now
        if after is not None:
            self._scan_started_at, self.next_at = started_at, now + BATCH_PAUSE
            return
        # A scan also reads the rows that stay, so after a long scan, the next one starts later.
        self._scan_started_at = None
        idle = min(IDLE_FACTOR * (now - started_at), MAX_IDLE)
        self.next_at = now + max(SCAN_INTERVAL, idle)


class ChangeTimer(PruneTimer):
    """When one beat prunes its next batch of changes."""

    def advance(self, deleted: int, *, now: datetime) -> None:
        """Set when the next batch is due, after one was committed."""
        self.next_at = now + (BATCH_PAUSE if deleted == BATCH_SIZE else SCAN_INTERVAL)


#: The maximum number of requests for one run after the first request, which follows the claim.
MAX_RETRIES = 2
#: After this many refusals in a row, beat sends one request every REFUSAL_PAUSE seconds.
MAX_REFUSALS = 3
REFUSAL_PAUSE = 300.0
NOT_ENDED = (
    "overlap: a newer run was sent, and no worker ended this one: cancel_previous needs a prefork"
    " or gevent pool with remote control"
)


class _Response(Enum):
    SENT = auto()
    UNREACHABLE = auto()
    REFUSED = auto()


class Termination:
    """Sends the requests of one beat to end runs, and gives up if they have no effect."""

    def __init__(self, publisher: RunPublisher) -> None:
        self._publisher = publisher
        self._retries: Mapping[str, int] = {}
        self._refusal = ""
        self._refusals = 0
        self._refused_until = 0.0
        self._reported: set[str] = set()

    def request(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to end these runs. Raises nothing: beat must send their successors."""
        if run_ids:
            self._request(run_ids)

    def retry(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Send the request again for all replaced runs that continue.

        Returns the runs that need no further request, by the reason.
        """
        exhausted = {run_id for run_id in run_ids if self._retries.get(run_id, 0) >= MAX_RETRIES}
        others = [run_id for run_id in run_ids if run_id not in exhausted]
        response = self._request(others) if others else None
        sent = int(response is _Response.SENT)
        self._retries = {run_id: self._retries.get(run_id, 0) + sent for run_id in others}
        reasons: defaultdict[str, list[str]] = defaultdict(list)
        if exhausted:
            reasons[NOT_ENDED] += exhausted
        if response is _Response.REFUSED:
            reasons[self._refusal] += others
        for reason, ids in reasons.items():
            self._emit_failed(reason, reason, len(ids))
        return reasons

    def _request(self, run_ids: Sequence[str]) -> _Response:
        if self._refusals >= MAX_REFUSALS and time.monotonic() < self._refused_until:
            return _Response.REFUSED
        try:
            self._publisher.terminate(run_ids)
        except DispatchError as error:
            self._refusal = str(error)
            self._refusals += 1
            self._refused_until = time.monotonic() + REFUSAL_PAUSE
            self._emit_failed(self._refusal, str(error), len(run_ids))
            return _Response.REFUSED
        # Any other error: the broker is unreachable. Maintenance sends the request again.
        except Exception as error:  # noqa: BLE001
            self._emit_failed(type(error).__name__, str(error), len(run_ids))
            return _Response.UNREACHABLE
        self._refusals = 0
        return _Response.SENT

    def _emit_failed(self, kind: str, reason: str, count: int) -> None:
        repeated = kind in self._reported
        self._reported.add(kind)
        if has_listeners(events.TerminationFailed):
            emit(events.TerminationFailed(count=count, reason=reason, repeated=repeated))


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
    lost = unfinished.lock_lost(
        session,
        now=now,
        silent_since=now - node_timeout,
        max_run_time=settings.max_run_time,
        limit=settings.batch_size,
    )
    end = partial(end_attempts, session, now=now, settings=settings)
    waiting = [row for row in lost if row.status == Status.RETRYING]
    running = [row for row in lost if row.status != Status.RETRYING]
    canvases = end(waiting, reason=CANVAS_LOST)
    attempts = end(running, reason=WORKER_GONE)
    return EndedAttempts(canvases.count + attempts.count, attempts.rerun_count)


def resend_retries(session: Session, *, now: datetime, settings: Settings) -> int:
    """Make runs pending whose retry the broker has lost, in one batch; return their number."""
    before = now - settings.resend_after
    resent = unfinished.resend_retries(session, before=before, now=now, limit=settings.batch_size)
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
        self._terminated_at: datetime | None = None
        self._already_warned: frozenset[int] = frozenset()
        #: The database was unreachable, so the heartbeats of other nodes failed as well.
        self.had_outage = False
        self._outage_ended_at: datetime | None = None
        self._cursor = PruneCursor[str]()
        self._reviewed: HeldKey | None = None
        self._changes = ChangeTimer()
        self._slots = PruneCursor[SlotPosition]()
        self._zones = PruneTimer()
        self._has_zones = True

    def settle_recent(self, now: datetime) -> int:
        """Correct the schedules of runs that ended recently; return the number of these runs."""
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
        if self._is_within_interval(self._rescued_at, now):
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

    def _is_within_interval(self, last: datetime | None, now: datetime) -> bool:
        # A ``now`` before the last time means that the clock was set back.
        return last is not None and timedelta(0) <= now - last < self._interval

    def _terminate_again(self, now: datetime) -> None:
        # A rescue that has more to do is repeated at once, but workers need time to end runs.
        if self._is_within_interval(self._terminated_at, now):
            return
        self._terminated_at = now
        # Workers may have missed the first request, or beat may have died before it sent the
        # request.
        before, limit = now - self._interval, self._settings.batch_size
        run_ids = self._database.read_in_transaction(
            partial(unfinished.cancelled_before, before=before, limit=limit)
        )
        for reason, ids in self._termination.retry(run_ids).items():
            self._database.run(
                partial(unfinished.note_termination_failure, run_ids=ids, reason=reason)
            )

    @property
    def next_at(self) -> datetime | None:
        """When the next rescue or prune is due; None before the first pass."""
        rescue_at = None if self._rescued_at is None else self._rescued_at + self._interval
        zones_at = self._zones.next_at if self._has_zones else None
        prunes = (each.next_at for each in (self._cursor, self._changes, self._slots))
        times = (rescue_at, zones_at, *prunes)
        return min((at for at in times if at is not None), default=None)

    def prune(self, now: datetime) -> None:
        """Delete a batch of old history, of old changes and of old slots if it is time."""
        self._prune_runs(now)
        self._prune_changes(now)
        self._prune_slots(now)

    def replan_zones(self, now: datetime) -> int:
        """Plan schedules again after a release of the tz database.

        Return the number of changed schedules. After the start of beat, one read shows whether
        there is a newer release.
        """
        if not self._has_zones or not self._zones.is_due(now):
            return 0
        release = tz_release()
        state = self._database.read(lambda session: store.tz_state(session.connection()))
        if release is None or state is None or state == store.TzState(release):
            self._has_zones = False
            return 0
        # A late import: beat needs it after an upgrade.
        from celery_dynbeat.beat.tz_release import replan_batch  # noqa: PLC0415

        settings = self._settings.for_pass()
        work = partial(replan_batch, now=now, settings=settings, release=release)
        done = self._database.run(work)
        self._has_zones = not done.is_done
        self._zones.next_at = now + (self._interval if done.is_waiting else BATCH_PAUSE)
        return done.changed

    def _prune_changes(self, now: datetime) -> None:
        if not self._changes.is_due(now):
            return
        older_than = self._settings.audit_retention
        deleted = self._database.run(partial(prune_changes, now=now, older_than=older_than))
        self._changes.advance(deleted, now=now)
        if deleted and has_listeners(events.HistoryPruned):
            emit(events.HistoryPruned(table="change", count=deleted, older_than=older_than))

    def _prune_slots(self, now: datetime) -> None:
        if not self._slots.is_due(now):
            return
        after = self._slots.after
        # An installation without limits on runs has no slots. It executes only this query.
        if after is None and self._database.read(runs.has_slots):
            after = SlotPosition(0, "")
        if after is not None:
            after = self._database.run(partial(prune_slots, now=now, after=after))
        self._slots.advance(after, now=now)

    def _prune_runs(self, now: datetime) -> None:
        if not self._cursor.is_due(now):
            return
        older_than = self._settings.history_retention
        after = self._cursor.after or LOWEST_ID
        pruned = self._database.run(partial(prune, now=now, older_than=older_than, after=after))
        self._cursor.advance(pruned.last_id, now=now)
        if pruned.deleted and has_listeners(events.HistoryPruned):
            count = pruned.deleted
            emit(events.HistoryPruned(table="run", count=count, older_than=older_than))
