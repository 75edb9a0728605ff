"""Celery worker's adapter: bootsteps that install the guard, the recorder and the heartbeat.

``Dynbeat(app)`` adds them. Celery creates ``DynbeatStep`` before the pool starts, so each pool
process has guarded tasks and reports how they end. A forked process inherits them, and a spawned
process gets them from ``SpawnedProcess``.
"""

import inspect
import json
import logging
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from billiard import get_start_method
from celery import Celery, bootsteps, signals
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.api import dynbeat_of
from celery_dynbeat.common.events import Event
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.process.heartbeat import HeartbeatWriter
from celery_dynbeat.worker import PoolChannel, PoolSlots
from celery_dynbeat.worker.outcomes import Outcome
from celery_dynbeat.worker.pool_check import BackendResults, PoolCheck, pool_state
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard, consumed_queues, queue_name

if TYPE_CHECKING:
    from celery_dynbeat.worker.ping_client import Ping
    from celery_dynbeat.worker.pings import RunPings
    from celery_dynbeat.worker.spawned_process import SpawnedProcess

logger = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0
#: Pools that call the body of a task and do not await it.
_SYNC_POOLS = {
    f"celery.concurrency.{name}" for name in ("prefork", "solo", "thread", "gevent", "eventlet")
}
#: Characters of a list of names. A longer one is not reported.
MAX_NAMES_LENGTH = 65_536


class DynbeatStep(bootsteps.StartStopStep):
    """A step of the worker's blueprint: created before the pool, started after it."""

    # Start after every step that forks, because a child must not inherit the connections of this
    # step.
    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        # Celery's own steps do the same. ProgressStep finds this step through this attribute.
        parent.dynbeat = self
        self._context = dynbeat_of(parent.app).context
        has_processes = self._has_processes = _has_processes(parent)
        if has_processes and _spawns(parent):
            # A late import: most pools fork.
            from celery_dynbeat.worker.spawned_process import require_picklable  # noqa: PLC0415

            # This comes before this step opens sockets, so that a refused worker has none to close.
            require_picklable(parent.app, self._context)
        channel = PoolChannel[Outcome]() if has_processes else None
        slots = PoolSlots() if has_processes else None
        self._pings = self._new_pings(has_processes=has_processes)
        self._outcomes = OutcomeSignals(self._context, parent.hostname, channel=channel)
        self._worker = parent
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.heartbeat = HeartbeatWriter(
            database=self._context.database,
            # The clock connects at its first use, which comes after the fork.
            clock=self._context.clock,
            kind=NodeKind.WORKER,
            name=parent.hostname,
            timeout=self._context.settings.node_timeout,
        )
        task_guard = TaskGuard(self._context, parent.hostname, self._outcomes, slots=slots)
        for task in parent.app.tasks.values():
            task_guard.wrap(task)
        _warn_of_coroutines(parent)
        self._pool_check = PoolCheck(
            self._context,
            parent.hostname,
            outcomes=self._outcomes,
            # Read when it is used, because a restart of the pool replaces it.
            pool=lambda: pool_state(parent.pool, slots),
            is_handling=task_guard.is_handling,
            results=BackendResults(parent.app),
            interval=self.heartbeat.interval,
        )
        self._spawned: SpawnedProcess | None = None
        if channel is not None and slots is not None and _spawns(parent):
            self._spawned = self._add_spawned(channel, slots)
        self._outcomes.connect()
        if self._pings is not None:
            self._pings.connect()
        signals.worker_shutdown.connect(self._on_worker_shutdown, weak=False)

    def _add_spawned(self, outcomes: PoolChannel[Outcome], slots: PoolSlots) -> "SpawnedProcess":
        """Add what installs guard and recorder in the processes that the pool spawns."""
        # A late import: most pools fork.
        from celery_dynbeat.worker.spawned_process import SpawnedProcess  # noqa: PLC0415

        app, context = self._worker.app, self._context
        spawned = SpawnedProcess(
            hostname=self._worker.hostname,
            main_pid=os.getpid(),
            engine=context.shared_engine,
            clock=context.given_clock,
            current_session=context.current_session,
            outcomes=outcomes,
            slots=slots,
            pings=None if self._pings is None else self._pings.channel,
        )
        app.fixups.add(spawned)
        return spawned

    def _new_pings(self, *, has_processes: bool) -> "RunPings | None":
        allowed = self._context.settings.ping_hosts
        if allowed is None:
            return None
        # A late import: few workers send pings.
        from celery_dynbeat.worker.pings import RunPings  # noqa: PLC0415

        channel: PoolChannel[Ping] | None = PoolChannel(send_timeout=0) if has_processes else None
        return RunPings(self._context, allowed=allowed, channel=channel)

    def start(self, parent: Any) -> None:
        """Register the node, and start the thread that writes its heartbeats."""
        del parent
        try:
            self._context.prepare()
        except SQLAlchemyError as error:
            # Start without the database. The guard defers each run until the database is reachable.
            url, reason = self._context.database.shown_url, str(error).partition("\n")[0]
            logger.warning("the database %s is unreachable: %s", url, reason)
        self._outcomes.start()
        if self._pings is not None:
            self._pings.start()
        self._beat()
        self._thread = threading.Thread(
            target=self._run_heartbeat, name="dynbeat-heartbeat", daemon=True
        )
        self._thread.start()

    def _on_worker_shutdown(self, sender: Any, **_: Any) -> None:
        """Receive worker_shutdown: deregister the node and write the buffered outcomes.

        This does not happen in ``stop``. Celery stops steps in the reverse order of their start,
        so it stops this step before the pool has finished its last tasks.
        """
        if sender is self._worker and not self._stopping.is_set():
            self._close()

    def terminate(self, parent: Any) -> None:
        """End at once, in a cold shutdown, which sends no worker_shutdown."""
        if self._stopping.is_set():
            return
        if self._has_processes:
            # Celery 5.4 would do it after this step. A second call changes nothing.
            parent.pool.terminate()
        self._close()
        if self._has_processes:
            self._pool_check.end_interrupted()

    def _close(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
        self._outcomes.disconnect()
        signals.worker_shutdown.disconnect(self._on_worker_shutdown)
        self._outcomes.close()
        if self._pings is not None:
            self._pings.close()
        self._worker.app.fixups.discard(self._spawned)

    def _run_heartbeat(self) -> None:
        while not self._stopping.wait(self.heartbeat.interval.total_seconds()):
            if self._beat():
                self._pool_check.check()
        self.heartbeat.deregister()

    def _beat(self) -> bool:
        # Remote control adds and cancels queues at run time.
        return self.heartbeat.beat(**reported_names(self._worker.app)._asdict())


def _warn_of_coroutines(worker: Any) -> None:
    """Warn of the tasks that are coroutine functions, if Celery's own pool calls them."""
    if not isinstance(worker.pool_cls, type) or worker.pool_cls.__module__ not in _SYNC_POOLS:
        return
    names = [name for name, task in worker.app.tasks.items() if is_coroutine_function(task)]
    if names:
        logger.warning(
            "the worker never awaits `async def` tasks, so runs of %s fail: define them with `def`,"
            " and call asyncio.run() in them",
            ", ".join(sorted(names)),
            extra={"event": Event.COROUTINE_TASKS},
        )


def is_coroutine_function(task: Any) -> bool:
    """Return whether the body of ``task`` is an ``async def`` function."""
    return inspect.iscoroutinefunction(inspect.unwrap(task.run))


def _has_processes(worker: Any) -> bool:
    """Return whether the pool of a worker consists of processes."""
    # A late import: no other pool needs this module.
    from celery.concurrency.prefork import TaskPool  # noqa: PLC0415

    return isinstance(worker.pool_cls, type) and issubclass(worker.pool_cls, TaskPool)


def _spawns(worker: Any) -> bool:
    """Return whether the pool spawns its processes, by the setting or by default on macOS."""
    # Celery 5.7 has the setting and the attribute.
    return "spawn" in {getattr(worker, "pool_start_method", "fork"), get_start_method()}


class ReportedNames(NamedTuple):
    """JSON arrays of sorted names, or None if the list is too long."""

    queues: str | None
    tasks: str | None


def reported_names(app: Celery) -> ReportedNames:
    """Return the queues that the worker of ``app`` consumes now, and its registered tasks."""
    return ReportedNames(
        queues=_as_json(map(queue_name, consumed_queues(app))),
        # A copy: another thread may add a task.
        tasks=_as_json(list(app.tasks)),
    )


def _as_json(names: Iterable[str]) -> str | None:
    text = json.dumps(sorted(names), separators=(",", ":"))
    return text if len(text) <= MAX_NAMES_LENGTH else None


class ProgressStep(bootsteps.StartStopStep):
    """A step of the consumer's blueprint: notes that the worker's event loop runs.

    The heartbeat has its own thread, which also runs in a worker that hangs. A worker without a
    broker, or a solo worker with a long task, does not run its event loop but still owns its runs.
    Such a worker makes no progress, but it is not dead.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._entry: Any = None

    def start(self, parent: Any) -> None:
        """Note progress twice per heartbeat, by the timer of the event loop."""
        heartbeat = parent.controller.dynbeat.heartbeat
        heartbeat.note_progress()
        seconds = heartbeat.interval.total_seconds() / 2
        self._entry = parent.timer.call_repeatedly(seconds, heartbeat.note_progress)

    def stop(self, parent: Any) -> None:
        """Cancel the timer. The consumer starts again when the broker is reachable."""
        del parent
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.cancel()
