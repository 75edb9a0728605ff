"""Celery worker's adapter: steps of its blueprints that put the guard and the recorder to work.

``Dynbeat(app)`` adds them. The first is created before the pool forks, so that every process of the
pool has the guard around its tasks and reports how they end.
"""

import logging
import threading
from typing import Any

from celery import bootsteps, signals
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.client import dynbeat_of
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.runtime.heartbeat import Heartbeat
from celery_dynbeat.worker.pool_check import BackendResults, PoolCheck, pool_state
from celery_dynbeat.worker.pool_slots import PoolSlots
from celery_dynbeat.worker.signal_handlers import Outcomes
from celery_dynbeat.worker.task_guard import Admission

logger = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0


class DynbeatStep(bootsteps.StartStopStep):
    """A step of the worker's blueprint: created before the pool forks, started after it."""

    # After all that forks: what this step opens should not be open in a child.
    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        # As Celery's own steps do: the consumer's steps find this one there.
        parent.dynbeat = self
        self._context = dynbeat_of(parent.app).context
        forks = _forks(parent)
        self._outcomes = Outcomes(self._context, parent.hostname, forks=forks)
        slots = PoolSlots() if forks else None
        self._worker = parent
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.heartbeat = Heartbeat(
            database=self._context.database,
            # Read when it is used, behind the fork.
            clock=self._context.clock,
            kind=NodeKind.WORKER,
            name=parent.hostname,
            timeout=self._context.settings.node_timeout,
        )
        admission = Admission(self._context, parent.hostname, self._outcomes, slots=slots)
        for task in parent.app.tasks.values():
            admission.guard(task)
        self._pool_check = PoolCheck(
            self._context,
            parent.hostname,
            outcomes=self._outcomes,
            # Looked up when it is used: a pool that is restarted is another.
            pool=lambda: pool_state(parent.pool, slots),
            executes=admission.holds,
            results=BackendResults(parent.app),
            every=self.heartbeat.every,
        )
        self._outcomes.connect()
        signals.worker_shutdown.connect(self._end, weak=False)

    def start(self, parent: Any) -> None:
        """Register the node, and keep its row fresh from a thread."""
        del parent
        try:
            self._context.prepare()
        except SQLAlchemyError as error:
            # It is away, not wrong: until it is back the guard puts every run off.
            url, reason = self._context.database.shown_url, str(error).partition("\n")[0]
            logger.warning("the database %s is away: %s", url, reason)
        self._outcomes.start()
        self.heartbeat.beat()
        self._thread = threading.Thread(target=self._live, name="dynbeat-heartbeat", daemon=True)
        self._thread.start()

    def _end(self, sender: Any, **_: Any) -> None:
        """Receive worker_shutdown: say good-bye and write what outcomes are kept.

        Not ``stop``: steps stop in the reverse order of their start, this one before the pool,
        whose last tasks have yet to end.
        """
        if sender is not self._worker or self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
        self._outcomes.disconnect()
        signals.worker_shutdown.disconnect(self._end)
        self._outcomes.close()

    def _live(self) -> None:
        while not self._stopping.wait(self.heartbeat.every.total_seconds()):
            if self.heartbeat.beat():
                self._pool_check.look()
        self.heartbeat.deregister()


def _forks(worker: Any) -> bool:
    """Return whether the pool of a worker consists of forked processes."""
    # Loads what no other pool needs.
    from celery.concurrency.prefork import TaskPool  # noqa: PLC0415

    is_prefork = isinstance(worker.pool_cls, type) and issubclass(worker.pool_cls, TaskPool)
    return is_prefork and worker.pool_start_method == "fork"


class ProgressStep(bootsteps.StartStopStep):
    """A step of the consumer's blueprint: notes that the worker's loop turns.

    The heartbeat's own thread would pulse in a worker that hangs, too. A worker that is only kept
    from its broker, or a solo one that is busy with a long task, turns no loop and yet has its runs
    in hand: it makes no progress, but it is not dead.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._entry: Any = None

    def start(self, parent: Any) -> None:
        """Begin to note."""
        heartbeat = parent.controller.dynbeat.heartbeat
        heartbeat.progress()
        seconds = heartbeat.every.total_seconds() / 2
        self._entry = parent.timer.call_repeatedly(seconds, heartbeat.progress)

    def stop(self, parent: Any) -> None:
        """Do so no more; the consumer starts again when its broker is back."""
        del parent
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.cancel()
