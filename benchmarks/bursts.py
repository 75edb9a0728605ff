"""Measure a burst: real beats send schedules that are due at one instant."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, func, select

from benchmarks import workloads
from benchmarks.processes import BEAT_STARTED, Process, beat
from benchmarks.queues import Queue, queue
from benchmarks.services import Site
from celery_dynbeat import Dynbeat
from celery_dynbeat.beat.refused import BATCH_SIZE
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until

#: Seconds between two queries of the queue length, and the precision of the figures. Each query
#: uses processor time that beat and its servers would otherwise have.
POLL_INTERVAL = 0.02
#: Seconds from the start of loading to the burst, and schedules loaded in a second.
LEAD = 3.0
LOAD_RATE = 5_000
#: A burst at fewer messages a second fails.
MIN_MESSAGE_RATE = 100
CONFIRM_TIMEOUT = 60.0
#: With fewer batches, the rate would depend on when the queue is queried.
MIN_BATCHES = 4
#: Seconds after the last message in which a duplicate would still arrive.
SETTLE_SECONDS = 0.5

#: (seconds since the burst was due, count), ascending.
Points = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Burst:
    """The result of one burst: messages in the queue, and runs by their ``sent_at``.

    Beat publishes batches; a query of the queue may see part of a batch.
    """

    count: int
    messages: Points
    rows: Points

    @property
    def messages_per_second(self) -> float:
        """Messages a second between the end of the first batch and the last message."""
        return _rate(self.messages, first=BATCH_SIZE)

    @property
    def rows_per_second(self) -> float:
        """Runs a second between the ``sent_at`` of the first batch and the last ``sent_at``."""
        return _rate(self.rows, first=BATCH_SIZE)

    @property
    def seconds(self) -> float:
        """Seconds from the due time to the last message."""
        return self.messages[-1][0]


def _rate(points: Points, *, first: int) -> float:
    """Return the rate a second after the first ``first`` items.

    The work on the first batch happens before its items appear, so that batch is not counted. A
    burst of few batches is counted as a whole, from the instant at which it was due.
    """
    last_at, last = points[-1]
    if last < MIN_BATCHES * first:
        return last / last_at
    first_at, before = next(point for point in points if point[1] >= first)
    return (last - before) / (last_at - first_at)


def measure(
    site: Site, *, schedules: int, beats: int = 1, settings: Mapping[str, Any] | None = None
) -> Burst:
    """Start ``beats``, load ``schedules`` and return the burst; check one message for each run.

    ``site`` may hold other schedules and runs. ``settings`` are added to its configuration. If
    loading takes too long, the burst starts late, at the same instant for all beats.
    """
    extra = settings or {}
    with site.application(**extra) as dynbeat, queue(site) as task_queue, ExitStack() as stack:
        processes = [stack.enter_context(beat(site.config(**extra))) for _ in range(beats)]
        for process in processes:
            process.wait_for_log(BEAT_STARTED)
        lead = timedelta(seconds=LEAD + schedules / LOAD_RATE)
        due_at = dynbeat.context.clock.now() + lead
        workloads.write(dynbeat, workloads.burst(schedules, due_at=due_at))
        messages = watch(dynbeat, task_queue, count=schedules, due_at=due_at, processes=processes)
        engine = dynbeat.context.database.engine
        check(engine, task_queue, count=schedules, due_at=due_at)
        return Burst(schedules, messages, _sent(engine, due_at))


def watch(
    dynbeat: Dynbeat,
    task_queue: Queue,
    *,
    count: int,
    due_at: datetime,
    processes: Sequence[Process],
) -> Points:
    """Return the growth of the queue from 0 to ``count`` messages; AssertionError if it stalls."""
    now = dynbeat.context.clock.now
    deadline = due_at + timedelta(seconds=CONFIRM_TIMEOUT + count / MIN_MESSAGE_RATE)
    points: list[tuple[float, int]] = []
    while not points or points[-1][1] < count:
        time.sleep(POLL_INTERVAL)
        queued, at = task_queue.count(), now()
        if queued and (not points or queued > points[-1][1]):
            points.append(((at - due_at).total_seconds(), queued))
        assert at < deadline, "\n".join(
            [f"{queued} of {count} messages", *(p.report() for p in processes)]
        )
    return points


def check(engine: Engine, task_queue: Queue, *, count: int, due_at: datetime) -> None:
    """Drain the queue; AssertionError unless each schedule has one run and one message."""
    wait_until(
        lambda: _count(engine, due_at, Run.status == Status.SENT) == count,
        within=CONFIRM_TIMEOUT,
        message="unconfirmed runs",
    )
    time.sleep(SETTLE_SECONDS)
    arrived = task_queue.drain()
    statement = select(Run.id, Run.schedule_id).where(*_created_since(due_at))
    with engine.connect() as connection:
        runs = dict(connection.execute(statement).tuples().all())
    assert len(runs) == len(set(runs.values())) == count, f"{len(runs)} runs of {count} schedules"
    assert len(arrived) == count, f"{len(arrived)} messages of {count} runs"
    assert set(arrived) == set(runs), "messages and runs differ"


def _sent(engine: Engine, due_at: datetime) -> Points:
    grouped = select(Run.sent_at, func.count()).where(*_created_since(due_at)).group_by(Run.sent_at)
    with engine.connect() as connection:
        rows = connection.execute(grouped.order_by(Run.sent_at)).all()
    points: list[tuple[float, int]] = []
    total = 0
    for sent_at, count in rows:
        assert sent_at is not None, "a run without its sent_at"
        total += count
        points.append(((sent_at - due_at).total_seconds(), total))
    return points


def _count(engine: Engine, due_at: datetime, *conditions: Any) -> int:
    statement = select(func.count()).select_from(Run).where(*_created_since(due_at), *conditions)
    with engine.connect() as connection:
        return connection.execute(statement).scalar_one()


def _created_since(due_at: datetime) -> tuple[Any, ...]:
    # The history may be long: the id starts with the time and is indexed.
    return (Run.id >= first_run_id(due_at), Run.fire_at == due_at)
