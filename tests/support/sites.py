"""One installation: a database, a broker, an application that calls the API, beats and workers."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import pools
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from celery_dynbeat import Dynbeat, Once
from celery_dynbeat.api.results import RunInfo
from celery_dynbeat.db.models import Node, Run
from tests.support.event_log import (
    CONFIG_VARIABLE,
    CONSTANTS_VARIABLE,
    EVENT_LOG_VARIABLE,
    EventLog,
)
from tests.support.processes import CeleryProcess
from tests.support.waiting import wait_until

OWNER = "user:1"
RUNS_WITHIN = 20.0
POOLS = {"prefork": 2, "threads": 4, "solo": 1, "gevent": 4}
#: The pool of spawned processes; the others are in POOLS.
SPAWN = "spawn"


class Site:
    """Starts the processes of an installation, and reads their tables and event log."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        *,
        database_url: str,
        broker_url: str,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self._stack = stack
        self._numbers = itertools.count(1)
        self._processes: list[CeleryProcess] = []
        self._workers: list[tuple[CeleryProcess, Callable[[], CeleryProcess]]] = []
        self.event_log = EventLog(folder / "event_log")
        self.config: dict[str, Any] = {
            "broker_url": broker_url,
            "broker_connection_retry_on_startup": True,
            "dynbeat_database_url": database_url,
            "dynbeat_create_tables": True,
            "worker_hijack_root_logger": True,
            # Otherwise celery.backend_cleanup runs at four o'clock, and tests would count it.
            "result_expires": None,
            **settings,
        }
        #: Constants of the package by their dotted names, for processes started from now on.
        self.constants: dict[str, Any] = {}
        # The same application name as in the processes (proj.py).
        self.app = Celery("proj", set_as_current=False)
        self.app.conf.update(self.config)
        self.dynbeat = Dynbeat(self.app)
        self.mine = self.dynbeat.schedules.for_owner(OWNER)

    def end_processes(self) -> None:
        """Terminate all processes in parallel and wait for them."""
        for process in self._processes:
            process.send_sigterm()
        for process in self._processes:
            process.terminate()

    def close(self) -> None:
        """Close the connections to the database and the broker."""
        self.app.close()
        self.dynbeat.context.database.dispose()

    def environment(self) -> dict[str, str]:
        """Return the variables that configure a process of this installation (``proj.py``)."""
        return {
            CONFIG_VARIABLE: json.dumps(self.config),
            CONSTANTS_VARIABLE: json.dumps(self.constants),
            EVENT_LOG_VARIABLE: str(self.event_log.path),
        }

    def run(self, *arguments: str, name: str = "celery", **environment: str) -> CeleryProcess:
        """Start a ``celery`` command on this installation; the test ends it."""
        process = CeleryProcess(
            arguments,
            folder=self.folder / f"{name}-{next(self._numbers)}",
            environment={**self.environment(), **environment},
        )
        self._processes.append(process)
        return self._stack.enter_context(process)

    def beat(
        self, *arguments: str, scheduler: str = "dynbeat", **environment: str
    ) -> CeleryProcess:
        """Start a beat."""
        options = ("-S", scheduler, "-l", "INFO", *arguments)
        return self.run("beat", *options, name="beat", **environment)

    def worker(
        self,
        *arguments: str,
        name: str = "w1@test",
        pool: str = "prefork",
        **environment: str,
    ) -> CeleryProcess:
        """Start a worker with a small pool. ``pool`` SPAWN is a prefork pool that spawns."""
        if pool == SPAWN:
            pool, arguments = "prefork", ("--pool-start-method=spawn", *arguments)
        size = str(POOLS[pool])
        # Without the search for other workers at the start, which takes a second.
        quick = ("--without-gossip", "--without-mingle")
        options = ("-P", pool, "-c", size, "-n", name, "-l", "INFO", *quick, *arguments)
        start = partial(self.run, "worker", *options, name="worker", **environment)
        worker = start()
        self._workers.append((worker, start))
        return worker

    def replace_crashed_workers(self) -> None:
        """Start the workers again that Celery itself ended with an error, as a supervisor does.

        Celery 5.7 closes a lost connection to Redis twice. The second time fails in kombu if the
        worker has unacknowledged messages, and ends the worker. A worker that an error of this
        package ended is not replaced.
        """
        crashed = [(worker, start) for worker, start in self._workers if worker.crashed_in_celery]
        for worker, start in crashed:
            self._workers.remove((worker, start))
            self._workers.append((start(), start))

    def gate(self, name: str) -> Path:
        """Return the path of a gate file, which does not exist yet."""
        return self.folder / f"gate-{name}"

    def create_once(self, name: str, *, task: str | None = None, **fields: Any) -> None:
        """Create a one-off of the owner that is due in half a second, of task ``probe.<name>``."""
        soon = Once.after(timedelta(seconds=0.5))
        self.mine.create(name, task=task or f"probe.{name}", trigger=soon, **fields)

    def runs(self, name: str | None = None) -> Sequence[RunInfo]:
        """Return the runs of the owner, the newest first."""
        return self.mine.runs(name, limit=1_000)

    def wait_for_run(
        self,
        name: str,
        *statuses: str,
        within: float = RUNS_WITHIN,
        where: Callable[[RunInfo], bool] = lambda _: True,
    ) -> RunInfo:
        """Return the newest run of schedule ``name`` as soon as it is in one of ``statuses``."""

        def found() -> RunInfo | None:
            latest[:] = self.runs(name)[:1]
            return next((run for run in latest if run.status in statuses and where(run)), None)

        latest: list[RunInfo] = []
        try:
            return wait_until(found, within=within, message=f"{name}: not {' or '.join(statuses)}")
        except AssertionError as error:
            error.add_note(f"the newest run is {latest}")
            error.add_note(self.report())
            raise

    def report(self) -> str:
        """Return the ends of the logs of all processes, for an error message."""
        return "\n".join(process.report() for process in self._processes)

    def nodes(self, kind: str) -> Sequence[Node]:
        """Return the nodes of a kind, the oldest first."""
        statement = select(Node).where(Node.kind == kind).order_by(Node.started_at)
        return self.dynbeat.context.database.read(lambda session: session.scalars(statement).all())

    def all_runs(self) -> Sequence[Run]:
        """Return all runs, of all owners."""
        return self.dynbeat.context.database.read(
            lambda session: session.scalars(select(Run)).all()
        )

    def count_runs(self, *conditions: Any) -> int:
        """Return how many runs there are, of all owners."""
        statement = select(func.count()).select_from(Run).where(*conditions)

        def work(session: Session) -> int:
            return session.scalars(statement).one()

        return self.dynbeat.context.database.read(work)


@contextmanager
def site(folder: Path, *, database_url: str, broker_url: str, **settings: Any) -> Iterator[Site]:
    """Yield an installation; its processes are terminated at the end."""
    with ExitStack() as stack:
        made = Site(folder, stack, database_url=database_url, broker_url=broker_url, **settings)
        stack.callback(made.close)
        # kombu keeps pooled connections by URL. A restart of the server leaves dead ones.
        stack.callback(pools.reset)
        yield made
        made.end_processes()
