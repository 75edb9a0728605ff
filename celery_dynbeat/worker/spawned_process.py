"""The guard and the recorder in a spawned pool process, whose new interpreter inherits nothing.

billiard pickles the application for each such process, also for one that replaces a dead process.
Celery creates the application there and calls each of its fixups with it. ``SpawnedProcess`` is
therefore a fixup. It has the main process's ends of the channels, and installs guard and recorder
as soon as Celery has imported the tasks.
"""

import copyreg
import logging
import os
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from billiard.context import get_spawning_popen
from billiard.reduction import ForkingPickler
from celery import Celery, signals
from celery.app.trace import build_tracer
from sqlalchemy import Engine

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.process.context import Context
from celery_dynbeat.worker import PoolChannel, PoolSlots
from celery_dynbeat.worker.outcomes import Outcome
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard

if TYPE_CHECKING:
    from celery_dynbeat.process.context import CurrentSession
    from celery_dynbeat.worker.ping_client import Ping

logger = logging.getLogger(__name__)


# eq=False: Celery keeps fixups in a set.
@dataclass(kw_only=True, eq=False)
class SpawnedProcess:
    """Installs guard and recorder in each process that the pool of one worker node spawns.

    ``engine``, ``clock`` and ``current_session`` come from the application's Dynbeat.
    ``pings`` is None if the node sends no pings.
    """

    hostname: str
    main_pid: int
    engine: Engine | None
    clock: Clock | None
    current_session: "CurrentSession | None"
    outcomes: PoolChannel[Outcome]
    slots: PoolSlots
    pings: "PoolChannel[Ping] | None"

    def __reduce__(self) -> Any:
        """Return the state; without a process to spawn, a fixup that does nothing."""
        if get_spawning_popen() is None:
            return attrgetter, ("main",)
        return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]

    def __call__(self, app: Celery) -> "SpawnedProcess":
        """Receive the new application, in the spawned process and before its tasks."""
        self._dynbeat = Dynbeat(
            app, engine=self.engine, clock=self.clock, current_session=self.current_session
        )
        signals.worker_process_init.connect(self._on_process_init, weak=False)
        return self

    def _on_process_init(self, **_: Any) -> None:
        try:
            self._install()
        # Celery would log it and start tasks without a guard.
        except BaseException:
            logger.critical("no guard in this pool process: it ends", exc_info=True)
            os._exit(os.EX_CONFIG)

    def _install(self) -> None:
        app, context = self._dynbeat.app, self._dynbeat.context
        if self.pings is not None:
            # A late import: few workers send pings.
            from celery_dynbeat.worker.pings import RunPings  # noqa: PLC0415

            allowed = context.settings.ping_hosts or ()
            pings = RunPings(context, allowed=allowed, channel=self.pings)
            pings.connect()
            pings.on_process_init()
        outcomes = OutcomeSignals(context, self.hostname, channel=self.outcomes)
        guard = TaskGuard(
            context, self.hostname, outcomes, slots=self.slots, main_pid=self.main_pid
        )
        for name, task in app.tasks.items():
            guard.wrap(task)
            # Celery has built its tracer around the body without the guard.
            task.__trace__ = build_tracer(name, task, app.loader, self.hostname, app=app)
        outcomes.connect()
        outcomes.on_process_init()


def require_picklable(app: Celery, context: Context) -> None:
    """Raise ConfigurationError if spawned processes would have no guard.

    They receive the fixups of the application, and the arguments of its Dynbeat.
    """
    keys = app.__reduce__()[1][-1]
    if not isinstance(keys, dict) or keys.get("fixups") is not app.fixups:
        _refuse(f"the class {type(app).__name__} of the application pickles without `fixups`")
    given = {
        "engine": context.shared_engine,
        "clock": context.given_clock,
        "current_session": context.current_session,
    }
    for name, value in given.items():
        try:
            ForkingPickler.dumps(value)
        # Objects of the application raise errors of many classes.
        except Exception as error:  # noqa: BLE001
            _refuse(f"the {name}= of Dynbeat(app, {name}=...) cannot be pickled ({error})")


def _refuse(reason: str) -> NoReturn:
    raise ConfigurationError(
        f'worker_pool_start_method = "spawn": {reason}, so the pool processes would have no guard:'
        ' use "fork" or another pool, or let dynbeat open its engine from dynbeat_database_url'
    )
