"""Celery worker's adapter: bootsteps that install the guard, the recorder and the heartbeat.

``Dynbeat(app)`` adds them. Celery creates ``DynbeatStep`` before the pool forks, so each pool
process has guarded tasks and reports how they end.
"""

import logging
import threading
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.client import dynbeat_of
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.monitoring.metrics import switch
from celery_dynbeat.monitoring.metrics.definitions import Exporter
from celery_dynbeat.runtime.heartbeat import HeartbeatWriter
from celery_dynbeat.runtime.sentry import connect_monitors
from celery_dynbeat.worker.pool_check import BackendResults, PoolCheck, pool_state
from celery_dynbeat.worker.pool_slots import PoolSlots
from celery_dynbeat.worker.reported_names import reported_names
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard

if TYPE_CHECKING:
    from celery_dynbeat.worker.run_pings import RunPings

logger = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0


class DynbeatStep(bootsteps.StartStopStep):
    """A step of the worker's blueprint: created before the pool forks, started after it."""

    # Start after every step that forks: a child must not inherit the connections of this step.
    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        # Celery's own steps do the same. ProgressStep finds this step there.
        parent.dynbeat = self
        self._context = dynbeat_of(parent.app).context
        pool_forks = _pool_forks(parent)
        pings = self._new_pings(pool_forks=pool_forks)
        self._outcomes = OutcomeSignals(
            self._context, parent.hostname, pool_forks=pool_forks, pings=pings
        )
        slots = PoolSlots() if pool_forks else None
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
        task_guard = TaskGuard(
            self._context, parent.hostname, self._outcomes, slots=slots, pings=pings
        )
        for task in parent.app.tasks.values():
            task_guard.wrap(task)
        self._pool_check = PoolCheck(
            self._context,
            parent.hostname,
            outcomes=self._outcomes,
            # Read at use: a restart of the pool replaces it.
            pool=lambda: pool_state(parent.pool, slots),
            is_handling=task_guard.is_handling,
            results=BackendResults(parent.app),
            interval=self.heartbeat.interval,
        )
        ports = switch.ports_of(self._context.settings, Exporter.WORKER)
        # `worker -B`: beat runs in a child process, and this worker exports what it counts.
        forks = pool_forks or bool(options.get("beat"))
        self._metrics = (
            switch.prepare_worker(self._context, ports=ports, forks=forks) if ports else None
        )
        self._sentry = connect_monitors(self._context)
        self._outcomes.connect()
        signals.worker_shutdown.connect(self._on_worker_shutdown, weak=False)

    def _new_pings(self, *, pool_forks: bool) -> "RunPings | None":
        allowed = self._context.settings.ping_hosts
        if allowed is None:
            return None
        # A late import: few workers send pings.
        from celery_dynbeat.worker.run_pings import RunPings  # noqa: PLC0415

        return RunPings(self._context, allowed=allowed, pool_forks=pool_forks)

    def start(self, parent: Any) -> None:
        """Register the node, and start the thread that writes its heartbeats."""
        del parent
        try:
            self._context.prepare()
        except SQLAlchemyError as error:
            # Start without the database: the guard defers each run until the database is reachable.
            url, reason = self._context.database.shown_url, str(error).partition("\n")[0]
            logger.warning("the database %s is unreachable: %s", url, reason)
        self._outcomes.start()
        if self._metrics is not None:
            self._metrics.start()
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
        if sender is not self._worker or self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
        self._outcomes.disconnect()
        signals.worker_shutdown.disconnect(self._on_worker_shutdown)
        self._outcomes.close()
        if self._sentry is not None:
            self._sentry.close()
        if self._metrics is not None:
            self._metrics.close()

    def _run_heartbeat(self) -> None:
        while not self._stopping.wait(self.heartbeat.interval.total_seconds()):
            if self._beat():
                self._pool_check.check()
        self.heartbeat.deregister()

    def _beat(self) -> bool:
        # Remote control adds and cancels queues at run time.
        return self.heartbeat.beat(**reported_names(self._worker.app)._asdict())


def _pool_forks(worker: Any) -> bool:
    """Return whether the pool of a worker consists of forked processes."""
    # A late import: no other pool needs this module.
    from celery.concurrency.prefork import TaskPool  # noqa: PLC0415

    is_prefork = isinstance(worker.pool_cls, type) and issubclass(worker.pool_cls, TaskPool)
    return is_prefork and worker.pool_start_method == "fork"


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
