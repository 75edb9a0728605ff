"""The lag of 500 fire times per second of mixed triggers, for two minutes.

The floor is the loop of floors.bare_loop with the same load. Both run one after the other, and
each gives 60,000 measurements.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from sqlalchemy import Engine, func, select

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.floors import bare_loop
from benchmarks.lags import by_owner, histogram, percentile
from benchmarks.loads import Steady
from benchmarks.processes import BEAT_STARTED, beat
from benchmarks.queues import Queue, queue
from benchmarks.services import Site
from celery_dynbeat import Dynbeat
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Run

RATE, SECONDS = 500, 120
LEAST_RATE, LEAST_SECONDS = 50, 8
#: Seconds between two drains of the queue. It must not grow without bound.
DRAIN_EVERY = 0.2
ENDS_WITHIN = timedelta(seconds=60)
#: Seconds for the start of beat, and schedules that are loaded per second before the load starts.
STARTS_WITHIN, LOADED_PER_SECOND = 15, 2_500
#: A quantile of the lags, and its bounds in milliseconds.
BOUNDS = ((0.5, at_most(15), None), (0.99, at_most(100), at_most(30)))


class Load:
    """A steady load on a new site, and its messages."""

    def __init__(self, site: Site, dynbeat: Dynbeat, waiting: Queue, steady: Steady) -> None:
        rows = steady.rows()
        self.site = site
        self.dynbeat = dynbeat
        self.steady = steady
        self.fires = steady.fires(rows)
        self._waiting = waiting
        self._arrived: list[str] = []
        loads.write(dynbeat, rows)

    @property
    def engine(self) -> Engine:
        """The engine of the database."""
        return self.dynbeat.context.database.engine

    def now(self) -> datetime:
        """Return the current time of the database."""
        return self.dynbeat.context.clock.now()

    def drain(self) -> None:
        """Wait briefly, and drain the queue."""
        time.sleep(DRAIN_EVERY)
        self._arrived += self._waiting.drain()

    def check(self) -> None:
        """Raise AssertionError unless each fire time has one run with one message."""
        self.drain()
        with self.engine.connect() as connection:
            made = connection.scalars(select(Run.id)).all()
        # The unique key ensures that no fire time has two runs.
        assert len(made) == self.fires, f"{len(made)} runs of {self.fires} fire times"
        assert len(self._arrived) == self.fires, f"{len(self._arrived)} messages"
        assert set(self._arrived) == set(made), "messages and runs differ"


def run(bench: Bench) -> None:
    """Measure the bare loop, if there is one, and ours; report both."""
    bare: Sequence[float] = ()
    if bench.services.database == "postgresql":
        bare = _measure(bench, _fire_bare)
    ours = _measure(bench, _fire_ours)
    for share, must, aim in BOUNDS:
        _report(bench, ours, bare, share=share, must=must, aim=aim)
    _report(bench, ours, bare, share=1)
    points = {"ours": histogram(ours), "bare loop": histogram(bare) if bare else None}
    bench.series("lag histogram", points)


def _report(
    bench: Bench, ours: Sequence[float], bare: Sequence[float], *, share: float, **bounds: Any
) -> None:
    what = "the longest" if share == 1 else f"p{share * 100:g}"
    lag = percentile(ours, share)
    bench.report(
        "lag",
        f"sent - scheduled_for, {what}",
        ours=lag,
        unit="ms",
        floor=percentile(bare, share) if bare else None,
        against=bare_loop.AGAINST if bare else "",
        # The bounds are milliseconds, not ratios.
        compared=lag if bounds else None,
        **bounds,
    )


Fire = Callable[[Bench, Load], Sequence[float]]


def _measure(bench: Bench, fire: Fire) -> Sequence[float]:
    """Return the lag of each fire time, in milliseconds."""
    rate = bench.size(RATE, least=LEAST_RATE)
    seconds = bench.size(SECONDS, least=LEAST_SECONDS)
    with bench.site() as site, site.application() as dynbeat, queue(site) as waiting:
        # Almost half of the fire times are one-offs. The others need few schedules.
        lead = STARTS_WITHIN + rate * seconds / 2 / LOADED_PER_SECOND
        start = (dynbeat.context.clock.now() + timedelta(seconds=ceil(lead))).replace(microsecond=0)
        load = Load(site, dynbeat, waiting, Steady(rate, seconds, start))
        lags = fire(bench, load)
        load.check()
    assert len(lags) == load.fires, f"{len(lags)} lags of {load.fires} fire times"
    return [seconds * 1_000 for seconds in lags]


def _fire_bare(bench: Bench, load: Load) -> Sequence[float]:
    with bare_loop.started(load.site, end=load.steady.end) as lags:
        for _ in _steps(bench, load, "lag of the bare loop"):
            load.drain()
        while not lags.done():
            load.drain()
        return lags.result()


def _fire_ours(bench: Bench, load: Load) -> Sequence[float]:
    with beat(load.site.config()) as process:
        process.wait_for_log(BEAT_STARTED)
        assert load.now() < load.steady.start, "loading and starting took too long"
        for _ in _steps(bench, load, "lag"):
            load.drain()
        while _sent(load.engine) < load.fires:
            assert load.now() < load.steady.end + ENDS_WITHIN, process.report()
            load.drain()
    return [lag for _, lag in by_owner(load.engine)]


def _steps(bench: Bench, load: Load, title: str) -> Iterable[int]:
    """Return steps until the end of the load, for one ``drain`` each."""
    left = (load.steady.end - load.now()).total_seconds()
    return bench.track(range(ceil(left / DRAIN_EVERY)), title)


def _sent(engine: Engine) -> int:
    statement = select(func.count()).select_from(Run).where(Run.status == Status.SENT)
    with engine.connect() as connection:
        return connection.execute(statement).scalar_one()
