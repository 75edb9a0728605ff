"""The body of a worker in this process: Celery's tracer with the guard and the recorder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from celery.app.task import Task
from celery.app.trace import build_tracer
from sqlalchemy import Engine, event

from celery_dynbeat import Dynbeat
from celery_dynbeat.broker import run_headers
from celery_dynbeat.testing import FrozenClock, ManualBeat
from celery_dynbeat.worker import PoolChannel
from celery_dynbeat.worker.outcomes import Outcome
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard
from tests.support.applications import MINUTELY
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)
#: SQLite begins a write transaction with an UPDATE of no row.
BEGIN_WRITE = "WHERE 0 = 1"


def _is_autocommit(connection: Any) -> bool:
    return bool(connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT")


@contextmanager
def counting(engine: Engine) -> Iterator[Any]:
    """Yield what a block executes. In autocommit mode each statement is a commit."""
    counted = SimpleNamespace(statements=[], commits=0)

    def on_statement(connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if BEGIN_WRITE not in sql:
            counted.statements.append(sql)
            counted.commits += _is_autocommit(connection)

    def on_commit(connection: Any) -> None:
        counted.commits += not _is_autocommit(connection)

    event.listen(engine, "before_cursor_execute", on_statement)
    event.listen(engine, "commit", on_commit)
    yield counted
    event.remove(engine, "before_cursor_execute", on_statement)
    event.remove(engine, "commit", on_commit)


class ExecutingWorker:
    """A worker that executes the messages of the schedule "n" in this process.

    It is connected to Celery's signals. The caller disconnects ``outcomes`` and closes it.
    """

    def __init__(
        self, dynbeat: Dynbeat, clock: FrozenClock, *, channel: PoolChannel[Outcome] | None = None
    ) -> None:
        self.context, self.clock = dynbeat.context, clock
        self.mine = dynbeat.schedules.for_owner("user:42")
        self.beat, self.node = ManualBeat(dynbeat), WorkerStub(dynbeat)
        self.outcomes = OutcomeSignals(self.context, self.node.name, channel=channel)
        self.ends: list[Any] = []
        self.starts = 0
        #: Called after the body, as a slow hook or result backend.
        self.on_success: Callable[[], object] = lambda: None

        class WithHook(Task):  # type: ignore[misc]
            def on_success(_, *__: object) -> None:  # noqa: N805 - self is the worker
                self.on_success()

        @dynbeat.app.task(  # type: ignore[untyped-decorator]
            name="t", bind=True, base=WithHook, shared=False, ignore_result=True, acks_late=True
        )
        def task(bound: Any) -> None:
            self.starts += 1
            end = self.ends.pop(0)
            if end is not None:
                raise bound.retry(countdown=0) if end == "retry" else end

        self.task = task
        self.guard = TaskGuard(self.context, self.node.name, self.outcomes)
        self.guard.wrap(task)
        # Before the tracer: it keeps the list of receivers, which a later `connect` may replace.
        self.outcomes.connect()
        self.trace = build_tracer("t", task, app=dynbeat.app)

    def create(self, **options: Any) -> None:
        """Create the schedule, which is due each minute."""
        self.mine.create("n", task="t", trigger=MINUTELY, **options)

    def send(self) -> Any:
        """Let beat send the run of the next minute, and return it."""
        self.clock.advance(MINUTE)
        self.node.heartbeat()
        self.beat.run_until_idle()
        return self.beat.publisher.sent[-1]

    def execute(self, end: Any = None) -> Any:
        """Send and execute one run, and return what that cost its worker.

        ``end`` is an exception of its body, "retry", or None for success.
        """
        run = self.send()
        with counting(self.context.database.engine) as counted:
            self.consume(run, end)
        return counted

    def consume(self, run: Any, end: Any = None, *, redelivered: bool = False) -> None:
        """Execute the message of a run. ``end`` is that of ``execute``."""
        self.ends = [end]
        headers = run_headers(run, sent_at=self.clock.now())
        request = {
            **headers,
            "headers": headers,
            "id": run.run_id,
            "retries": run.retries,
            "delivery_info": {
                "exchange": "",
                "routing_key": "celery",
                "redelivered": redelivered,
            },
        }
        self.trace(run.run_id, [], {}, request)

    def status(self, run: Any) -> str:
        """Return the status of a run in the database."""
        return str(self.mine.get_run(run.run_id).status)
