"""Measure the lag at 500 fire times a second for two minutes, with mixed triggers.

The baseline is baselines.bare_loop on the same load. Both run one after the other in the same run,
with 60,000 measurements each.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from sqlalchemy import Engine, func, select

from benchmarks import workloads
from benchmarks.baselines import bare_loop
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.lag_statistics import histogram, lags_by_owner, percentile
from benchmarks.processes import BEAT_STARTED, Process, beat
from benchmarks.queues import Queue, queue
from benchmarks.services import Site
from benchmarks.workloads import TASK, SteadyLoad
from celery_dynbeat import Dynbeat
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run

RATE, SECONDS = 500, 120
MIN_RATE, MIN_SECONDS = 50, 8
#: Seconds between two drains of the queue, which limit its length.
DRAIN_EVERY = 0.2
END_TIMEOUT = timedelta(seconds=60)
#: Seconds for beat to start before the load, and schedules loaded in a second.
START_SECONDS, LOAD_RATE = 15, 2_500
#: Percentile as a share, and its bounds in milliseconds.
BOUNDS = ((0.5, at_most(15), None), (0.99, at_most(100), at_most(30)))


class Load:
    """A steady load, written to ``site`` on creation, and its messages."""

    def __init__(self, site: Site, dynbeat: Dynbeat, task_queue: Queue, steady: SteadyLoad) -> None:
        rows = steady.rows()
        self.site = site
        self.dynbeat = dynbeat
        self.steady = steady
        self.fire_times = steady.count_fire_times(rows)
        self._queue = task_queue
        self._arrived: list[str] = []
        workloads.write(dynbeat, rows)

    @property
    def engine(self) -> Engine:
        """The engine of the database."""
        return self.dynbeat.context.database.engine

    def now(self) -> datetime:
        """Return the time of the database's clock."""
        return self.dynbeat.context.clock.now()

    def drain(self) -> None:
        """Wait DRAIN_EVERY seconds and empty the queue."""
        time.sleep(DRAIN_EVERY)
        self._arrived += self._queue.drain()

    def check(self) -> None:
        """Raise AssertionError unless each fire time has one run and each run one message."""
        self.drain()
        with self.engine.connect() as connection:
            run_ids = connection.scalars(select(Run.id).where(Run.task == TASK)).all()
        # The unique key allows only one run for each fire time.
        assert len(run_ids) == self.fire_times, (
            f"{len(run_ids)} runs of {self.fire_times} fire times"
        )
        assert len(self._arrived) == self.fire_times, f"{len(self._arrived)} messages"
        assert set(self._arrived) == set(run_ids), "messages and runs differ"


def run(bench: Bench) -> None:
    """Measure the bare loop (PostgreSQL only) and beat; report both."""
    bare: Sequence[float] = ()
    if bench.services.database == "postgresql":
        bare = measure(bench, _fire_bare)
    dynbeat = measure(bench, fire_dynbeat)
    for share, must, aim in BOUNDS:
        _report(bench, dynbeat, bare, share=share, must=must, aim=aim)
    _report(bench, dynbeat, bare, share=1)
    points = {"this project": histogram(dynbeat), "bare loop": histogram(bare) if bare else None}
    bench.series("lag histogram", points)


def _report(
    bench: Bench, dynbeat: Sequence[float], bare: Sequence[float], *, share: float, **bounds: Any
) -> None:
    what = "the longest" if share == 1 else f"p{share * 100:g}"
    lag = percentile(dynbeat, share)
    bench.report(
        "lag",
        f"sent - fire_at, {what}",
        value=lag,
        unit="ms",
        baseline=percentile(bare, share) if bare else None,
        baseline_name=bare_loop.NAME if bare else "",
        # The bounds are milliseconds, not ratios.
        compared=lag if bounds else None,
        **bounds,
    )


Fire = Callable[[Bench, Load], Sequence[float]]
#: Returns a context that is open while the load of a beat lasts.
Watch = Callable[[Process], AbstractContextManager[object]]


def measure(
    bench: Bench, fire: Fire, *, rate: int = RATE, seconds: int = SECONDS
) -> Sequence[float]:
    """Return the lag of each fire time of a steady load on a new site, in milliseconds.

    ``rate`` and ``seconds`` apply at scale 1. ``fire`` sends the runs of the load and returns their
    lag in seconds. It may add schedules of other tasks than TASK.
    """
    rate = bench.size(rate, minimum=MIN_RATE)
    seconds = bench.size(seconds, minimum=MIN_SECONDS)
    with bench.site() as site, site.application() as dynbeat, queue(site) as task_queue:
        # Nearly half of the fire times are one-offs; the others need few schedules.
        lead = START_SECONDS + rate * seconds / 2 / LOAD_RATE
        start = (dynbeat.context.clock.now() + timedelta(seconds=ceil(lead))).replace(microsecond=0)
        load = Load(site, dynbeat, task_queue, SteadyLoad(rate, seconds, start))
        lags = fire(bench, load)
        load.check()
    assert len(lags) == load.fire_times, f"{len(lags)} lags of {load.fire_times} fire times"
    return [seconds * 1_000 for seconds in lags]


def _fire_bare(bench: Bench, load: Load) -> Sequence[float]:
    with bare_loop.started(load.site, end=load.steady.end) as lags:
        for _ in _steps(bench, load, "lag of the bare loop"):
            load.drain()
        while not lags.done():
            load.drain()
        return lags.result()


def fire_dynbeat(
    bench: Bench,
    load: Load,
    *,
    settings: Mapping[str, Any] | None = None,
    watch: Watch = nullcontext,
) -> Sequence[float]:
    """Return the lag of each run of the load in seconds, sent by a beat with ``settings``."""
    with beat(load.site.config(**settings or {})) as process:
        process.wait_for_log(BEAT_STARTED)
        assert load.now() < load.steady.start, "loading and starting took too long"
        with watch(process):
            for _ in _steps(bench, load, "lag"):
                load.drain()
        while _sent(load.engine) < load.fire_times:
            assert load.now() < load.steady.end + END_TIMEOUT, process.report()
            load.drain()
    return [lag for _, lag in lags_by_owner(load.engine, task=TASK)]


def _steps(bench: Bench, load: Load, title: str) -> Iterable[int]:
    """Return an iterable that lasts until the end of the load if each step drains the queue."""
    left = (load.steady.end - load.now()).total_seconds()
    return bench.track(range(ceil(left / DRAIN_EVERY)), title)


def _sent(engine: Engine) -> int:
    is_sent = (Run.status == Status.SENT) & (Run.task == TASK)
    statement = select(func.count()).select_from(Run).where(is_sent)
    with engine.connect() as connection:
        return connection.execute(statement).scalar_one()
