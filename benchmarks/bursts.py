"""A burst: many schedules due at one instant, real beats, and the messages in the broker."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, func, select

from benchmarks import loads
from benchmarks.processes import BEAT_STARTED, Process, beat
from benchmarks.queues import Queue, queue
from benchmarks.services import Site
from celery_dynbeat import Dynbeat
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until

#: Seconds between two counts of the queue: the resolution of the figures. Each count takes CPU time
#: from beat and its servers.
COUNT_INTERVAL = 0.02
#: Seconds from the start of loading to the burst, and schedules that are loaded per second.
LEAD = 3.0
LOADED_PER_SECOND = 5_000
#: A burst with fewer messages per second than this is aborted.
SLOWEST = 100
CONFIRMS_WITHIN = 60.0
#: With fewer batches, the figure would depend on the instants of the counts.
FEWEST_BATCHES = 4
#: Seconds after the end in which a duplicate message would arrive.
SETTLES_AFTER = 0.5

#: (seconds since the burst was due, count), growing.
Points = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Burst:
    """The result of one burst: messages in the queue, and runs by their ``sent_at``.

    Messages come in batches of ``batch_size``. A count can fall into the middle of a batch.
    """

    count: int
    batch_size: int
    messages: Points
    rows: Points

    @property
    def messages_per_second(self) -> float:
        """Messages per second, from the first batch to the last message."""
        return _rate(self.messages, first=self.batch_size)

    @property
    def rows_per_second(self) -> float:
        """Runs per second, from the ``sent_at`` of the first batch to the last one."""
        return _rate(self.rows, first=self.batch_size)

    @property
    def seconds(self) -> float:
        """Seconds from the instant of the burst to the last message."""
        return self.messages[-1][0]


def _rate(points: Points, *, first: int) -> float:
    """Return the rate per second after the first ``first`` points, as their work came earlier.

    A burst of few batches has no such rate. Its rate counts from the instant when it was due.
    """
    last_at, last = points[-1]
    if last < FEWEST_BATCHES * first:
        return last / last_at
    begun_at, begun = next(point for point in points if point[1] >= first)
    return (last - begun) / (last_at - begun_at)


def measure(
    site: Site, *, schedules: int, beats: int = 1, settings: Mapping[str, Any] | None = None
) -> Burst:
    """Start ``beats``, load ``schedules``, and measure the burst. Each run must have one message.

    ``site`` may have other schedules and runs. ``settings`` are added to its configuration. If
    loading takes too long, the burst starts late, for all beats at the same instant.
    """
    given = settings or {}
    with site.application(**given) as dynbeat, queue(site) as waiting, ExitStack() as stack:
        processes = [stack.enter_context(beat(site.config(**given))) for _ in range(beats)]
        for process in processes:
            process.wait_for_log(BEAT_STARTED)
        lead = timedelta(seconds=LEAD + schedules / LOADED_PER_SECOND)
        due_at = dynbeat.context.clock.now() + lead
        loads.write(dynbeat, loads.burst(schedules, due_at=due_at))
        messages = watch(dynbeat, waiting, count=schedules, due_at=due_at, processes=processes)
        engine = dynbeat.context.database.engine
        check(engine, waiting, count=schedules, due_at=due_at)
        batch_size = dynbeat.context.settings.batch_size
        return Burst(schedules, batch_size, messages, _sent(engine, due_at))


def watch(
    dynbeat: Dynbeat,
    waiting: Queue,
    *,
    count: int,
    due_at: datetime,
    processes: Sequence[Process],
) -> Points:
    """Return the growth of the empty queue to ``count``. AssertionError if it does not grow."""
    now = dynbeat.context.clock.now
    give_up = due_at + timedelta(seconds=CONFIRMS_WITHIN + count / SLOWEST)
    points: list[tuple[float, int]] = []
    while not points or points[-1][1] < count:
        time.sleep(COUNT_INTERVAL)
        there, at = waiting.count(), now()
        if there and (not points or there > points[-1][1]):
            points.append(((at - due_at).total_seconds(), there))
        assert at < give_up, "\n".join([f"{there} of {count}", *(p.report() for p in processes)])
    return points


def check(engine: Engine, waiting: Queue, *, count: int, due_at: datetime) -> None:
    """Consume the messages. AssertionError unless each schedule has one run and one message."""
    wait_until(
        lambda: _count(engine, due_at, Run.status == Status.SENT) == count,
        within=CONFIRMS_WITHIN,
        message="runs that beat did not confirm",
    )
    time.sleep(SETTLES_AFTER)
    arrived = waiting.drain()
    statement = select(Run.id, Run.schedule_id).where(*_made_since(due_at))
    with engine.connect() as connection:
        made = dict(connection.execute(statement).tuples().all())
    assert len(made) == len(set(made.values())) == count, f"{len(made)} runs of {count} schedules"
    assert len(arrived) == count, f"{len(arrived)} messages of {count} runs"
    assert set(arrived) == set(made), "messages and runs differ"


def _sent(engine: Engine, due_at: datetime) -> Points:
    grouped = select(Run.sent_at, func.count()).where(*_made_since(due_at)).group_by(Run.sent_at)
    with engine.connect() as connection:
        found = connection.execute(grouped.order_by(Run.sent_at)).all()
    points: list[tuple[float, int]] = []
    total = 0
    for sent_at, count in found:
        assert sent_at is not None, "a run without its sent_at"
        total += count
        points.append(((sent_at - due_at).total_seconds(), total))
    return points


def _count(engine: Engine, due_at: datetime, *conditions: Any) -> int:
    statement = select(func.count()).select_from(Run).where(*_made_since(due_at), *conditions)
    with engine.connect() as connection:
        return connection.execute(statement).scalar_one()


def _made_since(due_at: datetime) -> tuple[Any, ...]:
    # By the id: it is indexed and starts with the time, and the history may be long.
    return (Run.id >= first_run_id(due_at), Run.scheduled_for == due_at)
