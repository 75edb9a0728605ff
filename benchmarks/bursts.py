"""A burst: schedules that are due at one instant, real beats, and what reaches the broker."""

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

#: Seconds between two looks at the queue: what the figures are exact to. A look takes its share of
#: the cores that beat and its servers have to themselves.
LOOK_EVERY = 0.02
#: Seconds from the start of loading to the burst, and how many schedules are loaded in one.
LEAD = 3.0
LOADED_A_SECOND = 5_000
#: A burst at fewer than so many messages a second is given up.
SLOWEST = 100
CONFIRMS_WITHIN = 60.0
#: With fewer batches than these, the chance of when a look falls would decide.
FEWEST_BATCHES = 4
#: Seconds after the end in which a doubled message would still come.
SETTLES_AFTER = 0.5

#: (seconds since the burst was due, how many), growing.
Points = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Burst:
    """What one burst gave, of messages in the queue and of runs by their ``sent_at``.

    Messages come in batches of ``batch_size``; a look may fall into the middle of one.
    """

    count: int
    batch_size: int
    messages: Points
    rows: Points

    @property
    def messages_a_second(self) -> float:
        """Messages a second, from the first batch to the last message."""
        return _rate(self.messages, first=self.batch_size)

    @property
    def rows_a_second(self) -> float:
        """Runs a second, from the first batch's ``sent_at`` to the last."""
        return _rate(self.rows, first=self.batch_size)

    @property
    def seconds(self) -> float:
        """From the instant at which all was due to the last message."""
        return self.messages[-1][0]


def _rate(points: Points, *, first: int) -> float:
    """Return how many a second came after the first ``first``, whose own work lies before them.

    A burst of few batches has no such rate; it is counted as a whole, since it was due.
    """
    last_at, last = points[-1]
    if last < FEWEST_BATCHES * first:
        return last / last_at
    begun_at, begun = next(point for point in points if point[1] >= first)
    return (last - begun) / (last_at - begun_at)


def measure(
    site: Site, *, schedules: int, beats: int = 1, settings: Mapping[str, Any] | None = None
) -> Burst:
    """Start ``beats``, load ``schedules``, and watch the burst; each run has one message.

    There may be other schedules and runs on ``site``. ``settings`` are added to its configuration.
    Where loading takes too long, the burst begins late, for all beats at once.
    """
    given = settings or {}
    with site.application(**given) as dynbeat, queue(site) as waiting, ExitStack() as stack:
        processes = [stack.enter_context(beat(site.config(**given))) for _ in range(beats)]
        for process in processes:
            process.wait_for_log(BEAT_STARTED)
        lead = timedelta(seconds=LEAD + schedules / LOADED_A_SECOND)
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
    """Return how the queue, empty at first, grew to ``count``; AssertionError if it did not."""
    now = dynbeat.context.clock.now
    give_up = due_at + timedelta(seconds=CONFIRMS_WITHIN + count / SLOWEST)
    points: list[tuple[float, int]] = []
    while not points or points[-1][1] < count:
        time.sleep(LOOK_EVERY)
        there, at = waiting.count(), now()
        if there and (not points or there > points[-1][1]):
            points.append(((at - due_at).total_seconds(), there))
        assert at < give_up, "\n".join([f"{there} of {count}", *(p.report() for p in processes)])
    return points


def check(engine: Engine, waiting: Queue, *, count: int, due_at: datetime) -> None:
    """Take the messages out; AssertionError unless each schedule has one run, and that one."""
    wait_until(
        lambda: _count(engine, due_at, Run.status == Status.SENT) == count,
        within=CONFIRMS_WITHIN,
        message="runs that nobody confirmed",
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
    # By the id, which has an index and begins with the time: the history may be long.
    return (Run.id >= first_run_id(due_at), Run.scheduled_for == due_at)
