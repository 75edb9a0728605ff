"""Compare the ``running`` runs of a worker with its pool, and end those that it does not execute.

The main process of a worker lives longer than its pool processes. Its node is therefore never
silent, and beat cannot see that an attempt is dead. Celery reports most of these deaths by a
signal. It sends no signal

- when it requeues the message (``reject_on_worker_lost``, a hard time limit with
  ``acks_on_timeout=False``, ``worker_cancel_long_running_tasks_on_connection_loss``),
- when the process died after its result was stored.

Each heartbeat reads the ``running`` rows of this node once. A run that the pool does not execute
is a suspect. The check ends a run that stays a suspect:

    the result backend has the task's SUCCESS                   -> succeeded
    on_lost="rerun", or the message was redelivered             -> pending, sent again
    a newer run was to replace it                               -> revoked
    otherwise                                                   -> lost

The time for which it must remain a suspect depends on what can still end it:

    Celery's request and the pool process are both gone         -> until the next heartbeat. Celery
        has reported the end, is reporting it at this moment, or will never report it.
    one of the two exists                                       -> dynbeat_node_timeout. Celery is
        about to report the death.

A run whose slot names a living pool process is not a suspect, even if Celery has lost its request.

The check cannot mistake one attempt for another, because each transition requires the attempt that
was read.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any, Protocol

from celery import Celery, states
from celery.worker import state as worker_state
from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import INTERRUPTED
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.store.runs.unfinished import EndedAttempts, end_attempts
from celery_dynbeat.telemetry import emit, events
from celery_dynbeat.worker import PoolSlots
from celery_dynbeat.worker.signal_handlers import OutcomeSignals

logger = logging.getLogger(__name__)

#: Id, attempt and worker_pid of a running run.
RunningRow = Row[str, int, int | None]

PROCESS_GONE = "its pool process is gone"
#: The runs that one check ends, and the results that it reads.
BATCH = 100


@dataclass(frozen=True, slots=True)
class PoolState:
    """The runs that the pool executes at an instant.

    ``requests`` are the ids of Celery's requests that the pool has received and not finished.
    ``pids`` are the ids of the living pool processes. None means that the pool executes tasks in
    the main process. ``executed`` are the process id and the run id in each slot.
    """

    requests: Collection[str]
    pids: Collection[int] | None
    executed: Collection[tuple[int, str]] = ()


def pool_state(pool: Any, slots: PoolSlots | None = None) -> PoolState | None:
    """Return the state of Celery's ``pool``; None if it cannot be read now."""
    try:
        # Other threads change these sets. A change during iteration raises RuntimeError.
        requests = {request.id for request in tuple(worker_state.reserved_requests)}
        requests |= {request.id for request in tuple(worker_state.active_requests)}
        info: Mapping[str, Any] = pool.info
    # AttributeError means that the pool is stopping and has no processes to list.
    except (AttributeError, RuntimeError):
        return None
    pids: Collection[int | None] | None = info.get("processes")
    # A solo pool lists the main process.
    if pids is None or os.getpid() in pids:
        return PoolState(requests, None)
    # A process that replaces a dead one has no id until it has started.
    living = [pid for pid in pids if pid is not None and not _has_exited(pid)]
    return PoolState(requests, living, slots.executed() if slots is not None else ())


def _has_exited(pid: int) -> bool:
    """Return whether a child process has exited; Celery still reaps it.

    Celery lists dead processes until its event loop runs, which stops while the broker is
    unreachable.
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


class StoredResults(Protocol):
    """Finds out whether the result backend has the SUCCESS of a task."""

    def fetch(self, run_ids: Sequence[str], *, timeout: float) -> None:
        """Start to read the results of tasks; wait ``timeout`` seconds for them at most."""

    def succeeded(self, run_id: str) -> bool | None:
        """Return whether the task succeeded; None if its result has not been read yet."""

    def retain(self, run_ids: Collection[str]) -> None:
        """Drop the results of all other tasks."""


class BackendResults:
    """The results in ``app.backend``.

    A thread reads them, so that a backend that hangs stops no heartbeat.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._has_succeeded: dict[str, bool | None] = {}
        self._thread: threading.Thread | None = None

    def fetch(self, run_ids: Sequence[str], *, timeout: float) -> None:
        """Start to read the results of tasks; wait ``timeout`` seconds for them at most."""
        new = [run_id for run_id in run_ids if run_id not in self._has_succeeded][:BATCH]
        if not new or (self._thread is not None and self._thread.is_alive()):
            return
        self._has_succeeded |= dict.fromkeys(new)
        self._thread = threading.Thread(
            target=self._read, args=(new,), name="dynbeat-results", daemon=True
        )
        self._thread.start()
        self._thread.join(timeout)

    def succeeded(self, run_id: str) -> bool | None:
        """Return whether the task succeeded; None if its result has not been read yet."""
        return self._has_succeeded.get(run_id)

    def retain(self, run_ids: Collection[str]) -> None:
        """Drop the results of all other tasks."""
        for run_id in set(self._has_succeeded).difference(run_ids):
            self._has_succeeded.pop(run_id, None)

    def _read(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            has_succeeded = self._read_one(run_id)
            if run_id in self._has_succeeded:
                self._has_succeeded[run_id] = has_succeeded

    def _read_one(self, run_id: str) -> bool:
        try:
            # rpc:// has results only in the queue of the caller, and a read would declare a queue.
            if self._app.backend.as_uri() == "rpc://":
                return False
            return bool(self._app.backend.get_state(run_id) == states.SUCCESS)
        # No backend, or an unreachable one. The check ends the run without a result.
        except Exception as error:  # noqa: BLE001
            logger.debug("no result of run %s: %s", run_id, type(error).__name__)
            return False


class _Presence(Enum):
    """The part of an attempt that the pool still has."""

    GONE = auto()
    #: Celery's request or the pool process, but not both.
    PARTIAL = auto()
    #: The pool process, with Celery's request or the slot.
    EXECUTED = auto()


def _presence(row: RunningRow, pool: PoolState) -> _Presence:
    has_process = pool.pids is not None and row.worker_pid in pool.pids
    has_request = row.id in pool.requests
    if has_process and (has_request or (row.worker_pid, row.id) in pool.executed):
        return _Presence.EXECUTED
    return _Presence.PARTIAL if has_process or has_request else _Presence.GONE


@dataclass(slots=True)
class Suspect:
    """An attempt that the pool seems not to execute; ``since`` is a monotonic reading."""

    attempt: int
    since: float
    checks: int = 0


@dataclass(slots=True)
class Suspects:
    """The suspects of one node, by run id.

    Decides without side effects. The caller reads the rows, the pool and the clock.

    A suspect of which the request or the process exists is dead after ``grace``.
    """

    grace: timedelta
    by_run_id: dict[str, Suspect] = field(default_factory=dict)

    def update(
        self,
        rows: Sequence[RunningRow],
        pool: PoolState,
        *,
        is_handled: Callable[[str], bool],
        at: float,
    ) -> list[str]:
        """Replace the suspects by the suspects of one check, and return the ids of the dead runs.

        ``is_handled`` returns whether the main process executes a run or has buffered its outcome.
        """
        before, self.by_run_id = self.by_run_id, {}
        dead = []
        for row in rows:
            presence = _presence(row, pool)
            if presence is _Presence.EXECUTED or is_handled(row.id):
                continue
            suspect = before.get(row.id)
            if suspect is None or suspect.attempt != row.attempt:
                suspect = Suspect(row.attempt, at)
            suspect.checks += 1
            self.by_run_id[row.id] = suspect
            if self._is_dead(suspect, presence, at):
                dead.append(row.id)
        return dead

    def _is_dead(self, suspect: Suspect, presence: _Presence, at: float) -> bool:
        if presence is _Presence.GONE:
            return suspect.checks > 1
        return at - suspect.since >= self.grace.total_seconds()


class PoolCheck:
    """The check of one worker node. Call ``check`` after each heartbeat that was written."""

    def __init__(
        self,
        context: Context,
        worker: str,
        *,
        outcomes: OutcomeSignals,
        pool: Callable[[], PoolState | None],
        is_handling: Callable[[str], bool],
        results: StoredResults,
        interval: timedelta,
    ) -> None:
        self._context = context
        self._worker = worker
        self._outcomes = outcomes
        self._pool = pool
        self._is_handling = is_handling
        self._results = results
        timeout = context.settings.node_timeout
        self._suspects = Suspects(timeout)
        # A backend that does not answer delays no heartbeat, and delays the end of a run only for
        # this time.
        self._fetch_timeout = interval.total_seconds() / 4
        self._result_timeout = timeout.total_seconds()

    def check(self) -> None:
        """Compare the rows with the pool. Never raises, because the next heartbeat checks again."""
        try:
            self._check(time.monotonic())
        except Exception as error:  # noqa: BLE001 - drivers raise errors of many classes
            # A suspect of before an outage may have ended during it.
            self._suspects.by_run_id.clear()
            emit(events.PoolCheckFailed(node=self._worker, error=type(error).__name__))

    def _check(self, at: float) -> None:
        before = self._pool()
        if before is None:
            return
        # High enough to include the suspects, however many runs the pool executes.
        limit = len(before.requests) + BATCH
        rows = self._context.database.read(
            lambda session: unfinished.running_on_worker(session, worker=self._worker, limit=limit)
        )
        # Read the pool after the rows, because a pool has a run before the row of the run shows
        # this.
        pool = self._pool()
        if pool is None:
            return
        dead = self._suspects.update(rows, pool, is_handled=self._is_handled, at=at)
        self._results.retain(self._suspects.by_run_id)
        self._results.fetch(dead, timeout=self._fetch_timeout)
        self._end([run_id for run_id in dead if self._can_end(run_id, at)][:BATCH])

    def end_interrupted(self) -> None:
        """End what the worker still executes, because its pool was stopped before the tasks ended.

        Never raises: beat ends these runs after dynbeat_node_timeout.
        """
        try:
            database = self._context.database
            while rows := database.read(
                lambda session: unfinished.running_on_worker(
                    session, worker=self._worker, limit=BATCH
                )
            ):
                attempts, now = {row.id: row.attempt for row in rows}, self._context.clock.now()
                ended = database.run(
                    lambda session: self._end_dropped(session, attempts, now, reason=INTERRUPTED)  # noqa: B023
                )
                if not ended:
                    return
        except Exception as error:  # noqa: BLE001 - drivers raise errors of many classes
            emit(events.PoolCheckFailed(node=self._worker, error=type(error).__name__))

    def _is_handled(self, run_id: str) -> bool:
        return self._is_handling(run_id) or self._outcomes.has_outcome(run_id)

    def _can_end(self, run_id: str, at: float) -> bool:
        waited = at - self._suspects.by_run_id[run_id].since
        return self._results.succeeded(run_id) is not None or waited >= self._result_timeout

    def _end(self, run_ids: Sequence[str]) -> None:
        if not run_ids:
            return
        # The next heartbeat tries again to end a run that another transaction has locked.
        free = self._context.database.run(lambda session: runs.lock_free(session, run_ids))
        attempts = {run_id: self._suspects.by_run_id[run_id].attempt for run_id in free}
        for run_id in free:
            if self._results.succeeded(run_id):
                self._outcomes.record_stored_result(run_id, attempt=attempts.pop(run_id))
        if not attempts:
            return
        now = self._context.clock.now()
        self._context.database.run(
            lambda session: self._end_dropped(session, attempts, now, reason=PROCESS_GONE)
        )

    def _end_dropped(
        self, session: Session, attempts: Mapping[str, int], now: datetime, *, reason: str
    ) -> int:
        ended = end_dropped(
            session,
            worker=self._worker,
            attempts=attempts,
            now=now,
            settings=self._context.settings,
            reason=reason,
        )
        if ended.rerun_count:
            self._context.notifier.notify(session)
        return ended.count


def end_dropped(
    session: Session,
    *,
    worker: str,
    attempts: Mapping[str, int],
    now: datetime,
    settings: Settings,
    reason: str = PROCESS_GONE,
) -> EndedAttempts:
    """End the ``attempts``, one for each run id, that ``worker`` does not execute.

    A run that has ended, or has started another attempt, stays unchanged.
    """
    locked = unfinished.lock_attempts(session, worker=worker, attempts=attempts)
    return end_attempts(session, locked, now=now, settings=settings, reason=reason)
