"""A worker compares its running runs with its pool, and drops those that the pool does not execute.

The main process of a worker lives longer than its pool processes, so its node is never silent, and
nothing else can tell that an attempt is dead. Celery reports most of these deaths by a signal. It
reports none when it gives the message back to the broker (``reject_on_worker_lost``, a hard time
limit with ``acks_on_timeout=False``, ``worker_cancel_long_running_tasks_on_connection_loss``), when
the process died after its result was stored, or when the memory with an outcome is lost.

Each heartbeat reads the running rows of this node once. A row whose run the pool does not execute
is a suspect. A suspect that stays one is dropped:

    the result backend has the task's SUCCESS                           -> succeeded
    on_lost="rerun", or the broker delivered the message again          -> pending, sent once more
    a newer run was to replace it                                       -> revoked
    otherwise                                                           -> lost

How long it must stay one depends on what may still end it:

    Celery's request and the pool process are both gone: Celery has reported the end, or never
    will, save what it does at this moment           -> until the next heartbeat
    one of the two is there: a pool process may keep the outcome since the database was away, Celery
    may be about to report the death                 -> dynbeat_node_timeout and DOUBT_SECONDS

A pool process that lives and says by its slot that it executes the run is no suspect, whatever
Celery has forgotten.

The check does not decide between two attempts: each transition asks for the attempt that was read.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from celery import Celery, states
from celery.worker import state as worker_state
from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.client import Context
from celery_dynbeat.common.events import Event
from celery_dynbeat.runtime.dead_attempts import EndedAttempts
from celery_dynbeat.runtime.pausing import pause_failing
from celery_dynbeat.store import stuck_runs
from celery_dynbeat.worker.dropped_attempts import end_dropped
from celery_dynbeat.worker.outcome_recorder import MAX_DELAY
from celery_dynbeat.worker.pool_slots import PoolSlots
from celery_dynbeat.worker.signal_handlers import Outcomes

logger = logging.getLogger(__name__)

#: Id, attempt and worker_pid of a running run.
RunningRow = Row[str, int, int | None]

#: Suspects that one check drops, and asks the result backend about.
BATCH = 100
#: Added to dynbeat_node_timeout. A recorder that keeps outcomes tries twice in this time.
DOUBT_SECONDS = 2 * MAX_DELAY


@dataclass(frozen=True, slots=True)
class PoolState:
    """What the pool executes at an instant.

    ``requests`` are the ids of Celery's requests that were given to the pool and are not done.
    ``pids`` are the pool's living processes; None: the pool executes tasks in the main process.
    ``executed`` are the ids of processes and runs, as the processes themselves say.
    """

    requests: Collection[str]
    pids: Collection[int] | None
    executed: Collection[tuple[int, str]] = ()


def pool_state(pool: Any, slots: PoolSlots | None = None) -> PoolState | None:
    """Return the state of Celery's ``pool``; None when it cannot be told now."""
    try:
        # Of another thread's sets: one that changes while it is read raises RuntimeError.
        requests = {request.id for request in tuple(worker_state.reserved_requests)}
        requests |= {request.id for request in tuple(worker_state.active_requests)}
        info: Mapping[str, Any] = pool.info
    # A pool that stops has no processes to list.
    except (AttributeError, RuntimeError):
        return None
    pids: Collection[int | None] | None = info.get("processes")
    # A solo pool lists the main process.
    if pids is None or os.getpid() in pids:
        return PoolState(requests, None)
    # A process that takes the place of a dead one has no id until it has started.
    living = [pid for pid in pids if pid is not None and not _has_exited(pid)]
    return PoolState(requests, living, slots.executed() if slots is not None else ())


def _has_exited(pid: int) -> bool:
    """Return whether a child process has exited, and leave it to Celery to reap it.

    Celery lists dead processes until its loop turns, which it does not while the broker is away.
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


class StoredResults(Protocol):
    """Tells whether the result backend has the SUCCESS of a task."""

    def ask(self, run_ids: Sequence[str], *, within: float) -> None:
        """Look for the results of tasks; return after ``within`` seconds, even without them."""

    def succeeded(self, run_id: str) -> bool | None:
        """Return the answer; None: there is none yet."""

    def forget(self, run_ids: Collection[str]) -> None:
        """Keep the answers for these tasks alone."""


class BackendResults:
    """The results in ``app.backend``, read by a thread: a backend may hang, a heartbeat may not."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._answers: dict[str, bool | None] = {}
        self._thread: threading.Thread | None = None

    def ask(self, run_ids: Sequence[str], *, within: float) -> None:
        """Look for the results of tasks; return after ``within`` seconds, even without them."""
        new = [run_id for run_id in run_ids if run_id not in self._answers][:BATCH]
        if not new or (self._thread is not None and self._thread.is_alive()):
            return
        self._answers |= dict.fromkeys(new)
        self._thread = threading.Thread(
            target=self._look, args=(new,), name="dynbeat-results", daemon=True
        )
        self._thread.start()
        self._thread.join(within)

    def succeeded(self, run_id: str) -> bool | None:
        """Return the answer; None: there is none yet."""
        return self._answers.get(run_id)

    def forget(self, run_ids: Collection[str]) -> None:
        """Keep the answers for these tasks alone."""
        for run_id in set(self._answers).difference(run_ids):
            self._answers.pop(run_id, None)

    def _look(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            found = self._is_stored(run_id)
            if run_id in self._answers:
                self._answers[run_id] = found

    def _is_stored(self, run_id: str) -> bool:
        try:
            # rpc:// keeps results in the queue of the caller: a look would declare a queue.
            if self._app.backend.as_uri() == "rpc://":
                return False
            return bool(self._app.backend.get_state(run_id) == states.SUCCESS)
        # No backend, or it is away. Whatever it raises, the run gets an end without it.
        except Exception as error:  # noqa: BLE001
            logger.debug("no result of run %s: %s", run_id, type(error).__name__)
            return False


@dataclass(slots=True)
class Suspect:
    """An attempt that the pool seems not to execute; ``since`` is a monotonic reading."""

    attempt: int
    since: float
    checks: int = 0


@dataclass(slots=True)
class Suspects:
    """The suspects of one node, by run id. Pure: it is told what was read, and when."""

    doubt: timedelta
    seen: dict[str, Suspect] = field(default_factory=dict)

    def update(
        self,
        rows: Sequence[RunningRow],
        pool: PoolState,
        *,
        executes: Callable[[str], bool],
        at: float,
    ) -> list[str]:
        """Take over what one check has read; return the ids of the runs that nothing will end.

        ``executes`` says whether the main process itself executes a run, or keeps its outcome.
        """
        before, self.seen = self.seen, {}
        dead = []
        for row in rows:
            present = _is_present(row, pool)
            if executes(row.id) or present == EXECUTED:
                continue
            known = before.get(row.id)
            if known is None or known.attempt != row.attempt:
                known = Suspect(row.attempt, at)
            known.checks += 1
            self.seen[row.id] = known
            waited = at - known.since
            if waited >= self.doubt.total_seconds() if present else known.checks > 1:
                dead.append(row.id)
        return dead


#: The process of a run is there, and either Celery's request or the process's own word.
EXECUTED = 2


def _is_present(row: RunningRow, pool: PoolState) -> int:
    """Return how much of an attempt is there: its request, and its process if it has its own."""
    process = pool.pids is not None and row.worker_pid in pool.pids
    if process and (row.worker_pid, row.id) in pool.executed:
        return EXECUTED
    return int(row.id in pool.requests) + int(process)


class PoolCheck:
    """The check of one worker node; ``look`` is called after each heartbeat that was written."""

    def __init__(
        self,
        context: Context,
        worker: str,
        *,
        outcomes: Outcomes,
        pool: Callable[[], PoolState | None],
        executes: Callable[[str], bool],
        results: StoredResults,
        every: timedelta,
    ) -> None:
        self._context = context
        self._worker = worker
        self._outcomes = outcomes
        self._pool = pool
        self._executes = executes
        self._results = results
        timeout = context.settings.node_timeout
        self._suspects = Suspects(timeout + timedelta(seconds=DOUBT_SECONDS))
        # A backend that does not answer delays neither heartbeats nor, for long, the end of a run.
        self._waits, self._patience = every.total_seconds() / 4, timeout.total_seconds()

    def look(self) -> None:
        """Compare the rows with the pool. Never raises: the next heartbeat looks again."""
        try:
            self._look(time.monotonic())
        except Exception as error:  # noqa: BLE001 - whatever the driver raises
            # What was seen before the database was away proves nothing after it.
            self._suspects.seen.clear()
            logger.warning(
                "runs of %s not compared with its pool: %s",
                self._worker,
                type(error).__name__,
                extra={"event": Event.POOL_CHECK_FAILED},
            )

    def _look(self, at: float) -> None:
        before = self._pool()
        if before is None:
            return
        # So many that the suspects are among them, however much the pool executes.
        limit = len(before.requests) + BATCH
        rows = self._context.database.read(
            lambda session: stuck_runs.running_on_worker(session, worker=self._worker, limit=limit)
        )
        # After the rows: what a pool executes is given to it before its row says so.
        pool = self._pool()
        if pool is None:
            return
        dead = self._suspects.update(rows, pool, executes=self._is_executing, at=at)
        self._results.forget(self._suspects.seen)
        self._results.ask(dead, within=self._waits)
        self._drop([run_id for run_id in dead if self._is_answered(run_id, at)][:BATCH])

    def _is_executing(self, run_id: str) -> bool:
        return self._executes(run_id) or self._outcomes.has_buffered(run_id)

    def _is_answered(self, run_id: str, at: float) -> bool:
        waited = at - self._suspects.seen[run_id].since
        return self._results.succeeded(run_id) is not None or waited >= self._patience

    def _drop(self, run_ids: Sequence[str]) -> None:
        attempts = {run_id: self._suspects.seen[run_id].attempt for run_id in run_ids}
        for run_id in run_ids:
            if self._results.succeeded(run_id):
                self._outcomes.record_stored(run_id, attempt=attempts.pop(run_id))
        if not attempts:
            return
        now = self._context.clock.now()
        lost = self._context.database.run(lambda session: self._take(session, attempts, now))
        pause_failing(self._context.database, lost.limits, now=now)

    def _take(self, session: Session, attempts: Mapping[str, int], now: datetime) -> EndedAttempts:
        settings = self._context.settings
        lost = end_dropped(
            session, worker=self._worker, attempts=attempts, now=now, settings=settings
        )
        if lost.rerun:
            self._context.notifier.notify(session)
        return lost
