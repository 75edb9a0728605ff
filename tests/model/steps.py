"""The steps of the model: each calls a real function of beat or worker on a real database.

A step inserts the rows of the model, calls the function, reads the rows back and rolls back. This
module does not describe any transition. Results are cached, because the same rows occur in many
worlds.

The model ignores durations: an overdue run may be due, and a silent node may have been silent for
any time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from celery_dynbeat import Dynbeat, Every
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.beat.rescue import rescue_runs, resend_retries
from celery_dynbeat.beat.sweep import take_overdue
from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.db.models import Node, NodeKind, Run, Schedule
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs.unfinished import running_on_worker
from celery_dynbeat.testing import FrozenClock
from celery_dynbeat.worker.outcomes import Outcome, apply_outcome
from celery_dynbeat.worker.pool_check import end_dropped
from celery_dynbeat.worker.start_decision import Delivery, StartDecision, decide_start
from tests.support.applications import START

MINUTE = timedelta(minutes=1)
LONG = timedelta(hours=10)
SECOND = timedelta(seconds=1)
FIRES = (START + MINUTE, START + 2 * MINUTE)
#: All deadlines of a row are in the past at this instant.
NOW = START + timedelta(days=1)
WORKERS = ("w1", "w2")
RUN_IDS = ("019e0000-0000-7000-8000-000000000001", "019e0000-0000-7000-8000-000000000002")


class Row(NamedTuple):
    """A run. ``replaced``: a process that started later has the name of its worker.

    ``fresh``: a node that was silent started the attempt, less than the node timeout ago.
    ``noted``: the broker redelivered the message of the present attempt.
    """

    status: str
    attempt: int = 0
    retries: int = 0
    worker: str | None = None
    overdue: bool = False
    retry: bool = False
    sent: bool = False
    replaced: bool = False
    fresh: bool = False
    noted: bool = False

    @property
    def unfinished(self) -> bool:
        return self.status in UNFINISHED


class Plan(NamedTuple):
    """A schedule: ``life`` is enabled, paused or deleted; ``next_fire`` is 2 after its end."""

    life: str = "enabled"
    next_fire: int = 0


class Message(NamedTuple):
    """A message in the broker. A deferred copy counts as redelivered."""

    fire: int
    expected_attempt: int
    retries: int
    redelivered: bool = False


_CACHED = (
    "claim",
    "sweep",
    "lose",
    "drop",
    "resend_retry",
    "confirm",
    "decide",
    "write",
    "undo_start",
    "edit",
)


#: The name and the arguments of a step.
Call = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]


class Steps:
    """The steps on one database, with the settings of one application.

    ``results`` has each step that was executed, with its result. A step depends on its arguments
    only.
    """

    def __init__(self, dynbeat: Dynbeat, clock: FrozenClock) -> None:
        self._context, self._clock = dynbeat.context, clock
        self.on_lost = dynbeat.context.settings.on_lost
        self._mine = dynbeat.schedules.for_owner("user:42")
        clock.move_to(START)
        self._mine.create("n", task="t", trigger=Every(MINUTE), end_at=FIRES[-1], catch_up="all")
        with dynbeat.context.database.engine.connect() as connection:
            self._id = connection.execute(select(Schedule.id)).scalar_one()
        self.results: dict[Call, Any] = {}
        for name in _CACHED:
            setattr(self, name, cache(self._recorded(name, getattr(self, name))))

    def repeat(self, results: Mapping[Call, Any]) -> list[tuple[Call, Any, Any]]:
        """Execute the steps of another database; return those whose result is another one here."""
        here = ((call, there, self._execute(call)) for call, there in results.items())
        return [(call, there, result) for call, there, result in here if result != there]

    def _execute(self, call: Call) -> Any:
        name, arguments, options = call
        return getattr(self, name)(*arguments, **dict(options))

    def _recorded(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def execute(*arguments: Any, **options: Any) -> Any:
            result = step(*arguments, **options)
            self.results[name, arguments, tuple(options.items())] = result
            return result

        return execute

    # Steps of beat

    def claim(self, plan: Plan, recorded: tuple[bool, ...], time: int) -> tuple[Plan, list[int]]:
        """Claim at the last fire time before ``time``; return the fire times to be sent."""
        now = FIRES[time - 1]
        with self._session() as session:
            self._load_plan(session, plan)
            for fire, is_recorded in enumerate(recorded):
                if is_recorded:
                    self._load_run(session, plan, fire, Row(Status.SENT))
            claimed = claim(session, now=now, settings=self._context.settings)
            fires = [FIRES.index(run.fire_at) for run in claimed.outgoing]
            assert [row.status for row in self._rows(session)].count(Status.PENDING) == len(fires)
            return self._read_plan(session), fires

    def sweep(self, plan: Plan, row: Row) -> tuple[Row, Message | None]:
        """Sweep the row; return it, and its message if it is to be sent."""
        with self._loaded(plan, row) as session:
            taken = take_overdue(session, now=NOW, settings=self._context.settings).outgoing
            message = Message(0, taken[0].attempt, taken[0].retries) if taken else None
            return self._read(session), message

    def lose(self, plan: Plan, row: Row, nodes: tuple[bool, ...]) -> Row:
        """Rescue the row if its worker is dead; ``nodes`` says which workers are not silent."""
        with self._loaded(plan, row, nodes) as session:
            settings = self._context.settings
            rescue_runs(session, now=NOW, node_timeout=settings.node_timeout, settings=settings)
            return self._read(session)

    def resend_retry(self, plan: Plan, row: Row) -> Row:
        """Resend the retry of the row if the broker lost it."""
        with self._loaded(plan, row) as session:
            resend_retries(session, now=NOW, settings=self._context.settings)
            return self._read(session)

    def confirm(self, plan: Plan, row: Row, attempt: int) -> Row:
        """Confirm the message that follows ``attempt``."""
        with self._loaded(plan, row) as session:
            runs.mark_sent(
                session, [RUN_IDS[0]], attempt=attempt, queues={}, now=NOW, overdue_at=NOW
            )
            return self._read(session)

    # Steps of workers

    def decide(
        self,
        plan: Plan,
        row: Row,
        nodes: tuple[bool, ...],
        message: Message,
        worker: str,
        *,
        here: bool,
        late: bool,
    ) -> tuple[Row, StartDecision]:
        """Decide in the guard of ``worker``.

        ``here``: the process that executes the run, or has its start or outcome in the buffer.
        Otherwise a new pool process.
        """
        pid = _pid(worker) if here else _pid(worker) + len(WORKERS)
        delivery = Delivery(
            run_id=RUN_IDS[0],
            retries=message.retries,
            expected_attempt=message.expected_attempt,
            redelivered=message.redelivered,
            acks_late=late,
            worker=worker,
            main_pid=_pid(worker),
            pid=pid,
            executes_here=lambda: here,
        )
        with self._loaded(plan, row, nodes) as session:
            timeout = self._context.settings.node_timeout
            decision = decide_start(session, delivery, now=NOW, timeout=timeout)
            return self._read(session), decision

    def drop(self, plan: Plan, row: Row, worker: str, attempt: int) -> Row:
        """End the attempt, which the pool of ``worker`` does not execute."""
        with self._loaded(plan, row) as session:
            settings, attempts = self._context.settings, {RUN_IDS[0]: attempt}
            seen = {
                found.id: found.attempt
                for found in running_on_worker(session, worker=worker, limit=1)
            }
            if seen == attempts:
                end_dropped(session, worker=worker, attempts=seen, now=NOW, settings=settings)
            return self._read(session)

    def write(
        self,
        plan: Plan,
        row: Row,
        worker: str,
        attempt: int | None,
        status: Status,
        *,
        retries: int | None = None,
    ) -> Row:
        """Record how an attempt ended; None: the attempt that ``worker`` started.

        ``retries``: the retry policy of the schedule makes the run retrying, after these retries.
        """
        outcome = Outcome(
            run_id=RUN_IDS[0],
            attempt=attempt,
            worker=worker,
            status=status,
            at=NOW,
            retry_at=NOW - LONG if status == Status.RETRYING else None,
            sent_by_beat=retries is not None,
            retries=retries,
        )
        with self._loaded(plan, row) as session:
            apply_outcome(session, outcome)
            return self._read(session)

    def undo_start(self, plan: Plan, row: Row, worker: str) -> Row:
        """Undo the start of ``worker``, which does not execute the attempt."""
        outcome = Outcome(
            run_id=RUN_IDS[0],
            attempt=None,
            worker=worker,
            pid=_pid(worker),
            status=Status.SENT,
            at=NOW,
            started=False,
        )
        with self._loaded(plan, row) as session:
            apply_outcome(session, outcome)
            return self._read(session)

    # Steps of users

    def edit(
        self, plan: Plan, rows: tuple[Row | None, ...], time: int, call: str
    ) -> tuple[Plan, tuple[Row | None, ...]]:
        """Pause, resume or delete the schedule, just before the fire time ``time``."""
        self._clock.move_to(START + time * MINUTE + MINUTE / 2)
        with self._session() as session:
            self._load_plan(session, plan)
            for fire, row in enumerate(rows):
                if row is not None:
                    self._load_run(session, plan, fire, row)
            getattr(self._mine.bound(session=session), call)("n")
            session.flush()
            after = Plan("deleted") if call == "delete" else self._read_plan(session)
            found = {run.fire_at: run for run in self._rows(session)}
            return after, tuple(
                _row(found[at], rows[fire]) if at in found else None
                for fire, at in enumerate(FIRES)
            )

    # The database

    @contextmanager
    def _session(self) -> Iterator[Session]:
        database = self._context.database
        with Session(database.engine, expire_on_commit=False) as session:
            if options := database.capabilities.execution_options:
                session.connection(execution_options=options)
            database.capabilities.begin_write(session.connection())
            yield session
            session.rollback()

    @contextmanager
    def _loaded(
        self, plan: Plan, row: Row, nodes: tuple[bool, ...] = (True, True)
    ) -> Iterator[Session]:
        with self._session() as session:
            self._load_plan(session, plan)
            self._load_run(session, plan, 0, row)
            for worker, has_heartbeat in zip(WORKERS, nodes, strict=True):
                self._load_node(session, worker, has_heartbeat=has_heartbeat, row=row)
            yield session

    def _load_plan(self, session: Session, plan: Plan) -> None:
        if plan.life == "deleted":
            session.execute(delete(Schedule))
            return
        finished, enabled = plan.next_fire == len(FIRES), plan.life == "enabled"
        at = None if finished else FIRES[plan.next_fire]
        values: dict[str, Any] = {
            "enabled": enabled,
            "next_fire_at": at,
            "next_run_at": at if enabled else None,
            "finished_at": START if finished else None,
        }
        session.execute(update(Schedule).values(values))

    def _load_run(self, session: Session, plan: Plan, fire: int, row: Row) -> None:
        started = row.attempt > 0 and row.status not in {Status.PENDING, Status.SENT}
        values: dict[str, Any] = {
            "id": RUN_IDS[fire],
            "schedule_id": None if plan.life == "deleted" else self._id,
            "owner": "user:42",
            "name": "n",
            "task": "t",
            "fire_at": FIRES[fire],
            "created_at": START,
            "status": row.status,
            "attempt": row.attempt,
            "retries": row.retries,
            "worker": row.worker,
            "redelivered_attempt": row.attempt if row.noted else None,
            "worker_pid": None if row.worker is None else _pid(row.worker),
            "overdue_at": NOW - MINUTE if row.overdue else None,
            "retry_at": NOW - LONG if row.retry else None,
            "sent_at": START if row.sent else None,
            "started_at": (NOW - MINUTE / 2 if row.fresh else NOW - LONG) if started else None,
            "finished_at": None if row.unfinished else NOW,
        }
        session.execute(insert(Run).values(values))

    def _load_node(self, session: Session, worker: str, *, has_heartbeat: bool, row: Row) -> None:
        started_at = NOW - MINUTE / 2 if row.fresh else NOW - LONG
        later = row.replaced and row.worker == worker
        values: dict[str, Any] = {
            "kind": NodeKind.WORKER,
            "name": worker,
            "pid": _pid(worker),
            "started_at": started_at + SECOND if later else NOW - 2 * LONG,
            "seen_at": NOW if has_heartbeat else NOW - LONG / 2,
        }
        session.execute(insert(Node).values(values))

    def _read(self, session: Session) -> Row:
        (run,) = self._rows(session)
        node_started_at: datetime | None = session.scalar(
            select(Node.started_at).where(Node.name == run.worker)
        )
        replaced = (
            None not in {node_started_at, run.started_at} and node_started_at > run.started_at
        )
        fresh = run.started_at == NOW - MINUTE / 2
        return _row(run, None)._replace(replaced=bool(replaced), fresh=fresh)

    def _rows(self, session: Session) -> Any:
        return session.execute(select(*Run.__table__.columns).order_by(Run.fire_at)).all()

    def _read_plan(self, session: Session) -> Plan:
        statement = select(Schedule.enabled, Schedule.next_fire_at, Schedule.finished_at)
        enabled, at, finished_at = session.execute(statement).one()
        later = [fire for fire, instant in enumerate(FIRES) if at is not None and instant >= at]
        finished = finished_at is not None or not later
        return Plan("enabled" if enabled else "paused", len(FIRES) if finished else later[0])


def _row(run: Any, before: Row | None) -> Row:
    return Row(
        status=run.status,
        attempt=run.attempt,
        retries=run.retries,
        worker=run.worker,
        overdue=run.overdue_at is not None,
        retry=run.retry_at is not None,
        sent=run.sent_at is not None,
        replaced=before is not None and before.replaced,
        fresh=before is not None and before.fresh,
        noted=run.redelivered_attempt == run.attempt,
    )


def _pid(worker: str) -> int:
    # Above the largest process id of the kernel, so no such process exists.
    return 10_000_000 + WORKERS.index(worker)
