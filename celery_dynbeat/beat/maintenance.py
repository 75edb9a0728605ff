"""Run the periodic duties of beat that do not send due schedules.

- When a poll finds them: correct the schedules of ended runs (``settle_recent``).
- Four times in each dynbeat_node_timeout: rescue runs whose worker died, correct and pause the
  schedules of lost runs, resend retries that the broker lost, terminate replaced runs again, review
  holds, and warn of unsupported triggers.
- Whenever there is no backlog: prune a batch of old history, and one of old changes.

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
briefly. If the database refuses to delete a row, the others are deleted, and the duty fails at the
end of the scan. These rows stay, at any age:

- runs that have not ended, or that the rollup has not counted;
- while the schedule is not finished, the run of its last fire time and newer ones: after the clock
  is set back, beat must find the fire times that already had their run.

A batch of changes reads the start of the index on ``changed_at``.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.beat.claim import warn_unsupported
from celery_dynbeat.beat.duties import Duties
from celery_dynbeat.beat.holding import HeldKey, review
from celery_dynbeat.beat.refused import Batches, LeftOut, Part, changing
from celery_dynbeat.broker.publisher import RunPublisher
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import REQUESTED_ORIGINS
from celery_dynbeat.process.heartbeat import (
    HEARTBEATS_PER_TIMEOUT,
    NEVER,
    effective_node_timeout,
)
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.store.schedules import changes
from celery_dynbeat.store.schedules.failing import RECENT
from celery_dynbeat.telemetry import emit, emit_on_commit, events, has_listeners
from celery_dynbeat.transitions import EndedAttempts, end_attempts, settle_deferred

BATCH_SIZE = 500
#: After a scan, the next one waits for at least this multiple of the scan's duration, but at most
#: MAX_IDLE: the clock may have been set forward during the scan.
IDLE_FACTOR, MAX_IDLE = 20, timedelta(days=1)
BATCH_PAUSE = timedelta(milliseconds=100)
SCAN_INTERVAL = timedelta(minutes=10)
#: After the start of beat, the first scan waits this long, because due schedules come first.
FIRST_DELAY = timedelta(minutes=1)
#: This is less than every run id.
LOWEST_ID = "00000000-0000-0000-0000-000000000000"
#: The ``changed_at`` and the id of a change.
ChangeKey: TypeAlias = tuple[datetime, int]
Position = TypeVar("Position")


class Prunable(NamedTuple, Generic[Position]):
    """The old rows of one batch. The next one starts after ``last``, or None at the end."""

    ids: Sequence[Any]
    last: Position | None


class Pruned(NamedTuple, Generic[Position]):
    """The result of one batch. ``refused`` is the error if the database refuses to delete a row."""

    deleted: int
    last: Position | None
    refused: Exception | None


def prune_runs(
    database: Database, *, now: datetime, older_than: timedelta, after: str | None = None
) -> Pruned[str]:
    """Delete the prunable runs among the next BATCH_SIZE runs after the id ``after``."""
    # A late import: beat prunes minutes after its start.
    from celery_dynbeat.store.runs import retention  # noqa: PLC0415

    found = prunable_runs(database, now=now, older_than=older_than, after=after)
    return _prune(database, found, retention.delete_finished)


def prune_changes(
    database: Database, *, now: datetime, older_than: timedelta, after: ChangeKey | None = None
) -> Pruned[ChangeKey]:
    """Delete the next BATCH_SIZE old changes after the key ``after``."""
    read = partial(changes.keys_before, before=now - older_than, after=after, limit=BATCH_SIZE)
    keys = database.read_in_transaction(read)
    last = keys[-1] if len(keys) == BATCH_SIZE else None
    found = Prunable([change_id for _, change_id in keys], last)
    return _prune(database, found, changes.delete)


def _prune(
    database: Database,
    found: Prunable[Position],
    delete: Callable[[Session, Sequence[Any]], int],
) -> Pruned[Position]:
    counts, refused = database.run_in_parts(delete, found.ids, in_transaction=True)
    return Pruned(sum(counts), found.last, next(iter(refused.values()), None))


def prunable_runs(
    database: Database, *, now: datetime, older_than: timedelta, after: str | None = None
) -> Prunable[str]:
    """Return the prunable runs among the next BATCH_SIZE runs after the id ``after``."""
    from celery_dynbeat.store import rollups  # noqa: PLC0415 - see above
    from celery_dynbeat.store.runs import retention  # noqa: PLC0415 - see above

    limit = now - older_than
    counted = database.read(rollups.counted_until)
    if counted is not None:
        limit = min(limit, counted)
    read = partial(
        retention.read_page,
        after=after or LOWEST_ID,
        before=first_run_id(limit),
        limit=BATCH_SIZE,
    )
    rows = database.read_in_transaction(read)
    run_ids = [row.id for row in rows if _is_prunable(row, limit)]
    return Prunable(run_ids, rows[-1].id if len(rows) == BATCH_SIZE else None)


def _is_prunable(row: Row[Any], limit: datetime) -> bool:
    if row.finished_at is None or row.finished_at >= limit:
        return False
    if row.schedule_id is None or row.over_at is not None or row.origin in REQUESTED_ORIGINS:
        # No trigger yields the instant of such a run. A finished schedule yields no instants at
        # all.
        return True
    last = row.last_run_at or row.next_fire_at
    return last is not None and row.scheduled_for < last


class PruneCursor(Generic[Position]):
    """The position of one beat's scan, and when its next batch is due.

    ``after`` is the position after the last batch, or None if a scan begins.
    """

    def __init__(self) -> None:
        self.after: Position | None = None
        self.next_at: datetime | None = None
        self._checked_at: datetime | None = None
        self._scan_started_at: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        """Return whether to prune a batch now."""
        if self.next_at is None:
            self.next_at = now + FIRST_DELAY
        if self._checked_at is not None and now < self._checked_at:
            # The clock was set back.
            self.next_at = min(self.next_at, now + SCAN_INTERVAL)
        self._checked_at = now
        return self.next_at <= now

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
    session: Session,
    *,
    now: datetime,
    node_timeout: timedelta,
    settings: Settings,
    part: Part | None = None,
) -> EndedAttempts:
    """End the attempts of a batch of runs whose worker is dead, or whose canvas was lost.

    A worker is dead if it was replaced or its row is missing, or if it has been stopped or silent
    for ``node_timeout``. ``part`` is the part of the lost runs. Raises RefusedBatchError if the
    database refuses the end of a run.
    """
    part = part or Part(settings.batch_size)
    lost = unfinished.lock_lost(
        session,
        now=now,
        silent_since=now - node_timeout,
        max_run_time=settings.max_run_time,
        limit=part.limit,
        except_ids=part.except_ids,
    )
    end = partial(end_attempts, session, now=now, settings=settings)
    waiting = [row for row in lost if row.status == Status.RETRYING]
    running = [row for row in lost if row.status != Status.RETRYING]
    with changing(session, lost, part):
        canvases = end(waiting, reason=CANVAS_LOST)
        attempts = end(running, reason=WORKER_GONE)
    return EndedAttempts(canvases.count + attempts.count, attempts.rerun_count)


def resend_retries(
    session: Session, *, now: datetime, settings: Settings, part: Part | None = None
) -> int:
    """Make runs pending whose retry the broker has lost, in one batch; return their number.

    ``part`` and the errors are as in ``rescue_runs``.
    """
    part = part or Part(settings.batch_size)
    late = unfinished.lock_late_retries(
        session,
        before=now - settings.resend_after,
        limit=part.limit,
        except_ids=part.except_ids,
    )
    with changing(session, late, part):
        resent = unfinished.resend_retries(session, [row.id for row in late], now=now)
    if resent and has_listeners(events.RetriesResent):
        event = events.RetriesResent(count=resent, resend_after=settings.resend_after)
        emit_on_commit(session, event)
    return resent


#: The names of duties.
RESCUE = "rescue"
PRUNE_RUNS, PRUNE_CHANGES = "prune runs", "prune changes"
#: The maximum of what outages add to the node timeout, in node timeouts.
MAX_GRACE = 10
_MAX_OUTAGES = 100


class _Outage(NamedTuple):
    began_at: datetime
    ended_at: datetime


class Silence:
    """How long a node may be silent until it counts as dead.

    No node can write a heartbeat during an outage of the database, and each node needs up to one
    interval of heartbeats after it. This time does not count as silence.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock, self._settings = clock, settings
        self._outages: deque[_Outage] = deque(maxlen=_MAX_OUTAGES)
        self._last_contact_at: datetime | None = None
        self._began_at: datetime | None = None
        self._is_out = False

    def note_outage(self, now: datetime) -> None:
        """Note that the database was unreachable since the last contact."""
        if not self._is_out:
            # A beat that starts during an outage does not know when it began.
            began = now - MAX_GRACE * self._settings.node_timeout
            self._began_at = self._last_contact_at or began
            self._is_out = True

    def note_contact(self, now: datetime) -> None:
        """Note that the database answers."""
        if self._is_out and self._began_at is not None:
            self._outages.append(_Outage(self._began_at, now))
        self._is_out, self._last_contact_at = False, now

    def limit(self, now: datetime) -> timedelta:
        """Return for how long a node that counts as dead has been silent."""
        timeout = effective_node_timeout(self._clock, self._settings)
        if timeout == NEVER:
            return NEVER
        longest = timeout * (1 + MAX_GRACE)
        heartbeat = timeout / HEARTBEATS_PER_TIMEOUT
        for outage in reversed(self._outages):
            # An end after ``now`` means that the clock was set back.
            if not timedelta(0) <= now - outage.ended_at < timeout:
                break
            timeout += outage.ended_at - outage.began_at + heartbeat
        return min(timeout, longest)


class Done(NamedTuple):
    """The number of changed runs. ``has_more``: the duty is repeated in the next pass."""

    changed: int
    has_more: bool = False


class Maintenance:
    """The periodic duties of one beat."""

    def __init__(
        self,
        *,
        database: Database,
        termination: Termination,
        clock: Clock,
        settings: Settings,
        duties: Duties,
        left_out_runs: LeftOut[str],
    ) -> None:
        self._database = database
        self._left_out_runs = left_out_runs
        batches = partial(
            Batches[str], database=database, size=settings.batch_size, left_out=left_out_runs
        )
        self._rescues, self._resends = batches(), batches()
        self._duties = duties
        self._termination = termination
        self._clock = clock
        self._settings = settings
        self._interval = settings.node_timeout / RESCUES_PER_NODE_TIMEOUT
        #: When each duty of the interval was last complete.
        self._done_at: dict[str, datetime] = {}
        self._already_warned: frozenset[int] = frozenset()
        self._silence = Silence(clock, settings)
        self._reviewed: HeldKey | None = None
        self._prunes: Mapping[str, PruneCursor[Any]] = {
            PRUNE_RUNS: PruneCursor(),
            PRUNE_CHANGES: PruneCursor(),
        }
        #: The errors of rows that the database has refused to delete in this scan, by duty.
        self._refused: dict[str, Exception] = {}

    def note_outage(self, now: datetime) -> None:
        """Note that the database was unreachable, so the heartbeats of all nodes failed."""
        self._silence.note_outage(now)

    def settle_recent(self, now: datetime) -> int:
        """Correct the schedules of runs that ended recently; return the number of these runs."""
        settle = partial(self._settle, since=now - RECENT)
        return self._duties.run("settle", settle, now=now, default=0)

    def _settle(self, now: datetime, *, since: datetime | None = None) -> int:
        settled = settle_deferred(
            self._database,
            now=now,
            retry_after=self._interval,
            since=since,
            except_ids=self._left_out_runs.ids(now),
        )
        for end, error in settled.refused.items():
            self._left_out_runs.add(end, error, now=now)
        return settled.corrected

    def run_interval(self, now: datetime, *, has_broker: bool) -> int:
        """Do what is due four times in each dynbeat_node_timeout; return how many runs changed.

        Without a broker, no worker can be asked to end a run.
        """
        self._silence.note_contact(now)
        handled = sum(
            self._run_if_due(name, work, now)
            for name, work in (
                (RESCUE, self._rescue_runs),
                ("settle", self._settle_all),
                ("resend retries", self._resend_retries),
                ("review holds", self._review_holds),
                ("find unsupported triggers", self._warn_unsupported),
            )
        )
        if has_broker:
            self._run_if_due("terminate", self._terminate_again, now)
        return handled

    def _run_if_due(self, name: str, work: Callable[[datetime], Done], now: datetime) -> int:
        if self._is_within_interval(self._done_at.get(name), now):
            return 0
        done = self._duties.run(name, work, now=now, default=None)
        if done is None:
            return 0
        if not done.has_more:
            self._done_at[name] = now
        return done.changed

    def _rescue_runs(self, now: datetime) -> Done:
        rescue = partial(
            rescue_runs, now=now, node_timeout=self._silence.limit(now), settings=self._settings
        )

        def work(part: Part) -> Done:
            ended = self._database.run(partial(rescue, part=part))
            return Done(ended.count, has_more=ended.count >= part.limit)

        return self._rescues.run(work, now=now) or Done(0, has_more=True)

    def _settle_all(self, now: datetime) -> Done:
        settled = self._settle(now)
        return Done(settled, has_more=settled > 0)

    def _resend_retries(self, now: datetime) -> Done:
        resend = partial(resend_retries, now=now, settings=self._settings)

        def work(part: Part) -> Done:
            resent = self._database.run(partial(resend, part=part))
            return Done(resent, has_more=resent >= part.limit)

        return self._resends.run(work, now=now) or Done(0, has_more=True)

    def _review_holds(self, now: datetime) -> Done:
        self._reviewed = self._database.run(partial(review, now=now, after=self._reviewed))
        return Done(0)

    def _warn_unsupported(self, now: datetime) -> Done:
        self._already_warned = self._database.read_in_transaction(
            partial(warn_unsupported, now=now, already_warned=self._already_warned)
        )
        return Done(0)

    def _is_within_interval(self, last: datetime | None, now: datetime) -> bool:
        # A ``now`` before the last time means that the clock was set back.
        return last is not None and timedelta(0) <= now - last < self._interval

    def _terminate_again(self, now: datetime) -> Done:
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
        return Done(0)

    def wait(self, now: datetime) -> timedelta:
        """Return how long beat may sleep before the next duty."""
        at = [(name, done_at + self._interval) for name, done_at in self._done_at.items()]
        at += [
            (name, timer.next_at)
            for name, timer in self._prunes.items()
            if timer.next_at is not None
        ]
        waits = (max(at - now, self._duties.wait(name, now)) for name, at in at)
        return min(waits, default=timedelta.max)

    def prune(self, now: datetime) -> None:
        """Delete a batch of old history and of old changes if it is time."""
        settings = self._settings
        for name, table, batch, older_than in (
            (PRUNE_RUNS, "run", prune_runs, settings.history_retention),
            (PRUNE_CHANGES, "change", prune_changes, settings.audit_retention),
        ):
            work = partial(self._prune, name, table, batch, older_than)
            if self._prunes[name].is_due(now):
                self._duties.run(name, work, now=now, default=None)

    def _prune(
        self,
        name: str,
        table: str,
        batch: Callable[..., Pruned[Any]],
        older_than: timedelta,
        now: datetime,
    ) -> None:
        cursor = self._prunes[name]
        pruned = batch(self._database, now=now, older_than=older_than, after=cursor.after)
        cursor.advance(pruned.last, now=now)
        if pruned.deleted and has_listeners(events.HistoryPruned):
            emit(events.HistoryPruned(table=table, count=pruned.deleted, older_than=older_than))
        if pruned.refused is not None:
            self._refused[name] = pruned.refused
        # At the end of the scan: a failed duty waits before the next batch.
        if pruned.last is None and name in self._refused:
            raise self._refused.pop(name)
