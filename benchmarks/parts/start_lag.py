"""Measure the time from a fire time to the end of its empty task, at 500 fire times a second.

It includes beat, the broker, the worker's queue and the commit of the start. The worker notes the
end of the body before it writes anything more. A fifth of the fire times of each second fall on one
instant, so that the last of them waits for the others.

The baseline has the same load: baselines.bare_loop sends, and a plain worker stores each result in
Redis, with the time at which the body ended.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

from redis import Redis
from sqlalchemy import select

from benchmarks import workloads
from benchmarks.baselines import bare_loop
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.lag_statistics import percentile
from benchmarks.parts.worker import count_done, results_database
from benchmarks.processes import BEAT_STARTED, Process, beat, worker
from benchmarks.services import Site
from benchmarks.workloads import SteadyLoad
from celery_dynbeat import Dynbeat
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until

RATE, SECONDS = 500, 60
MIN_RATE, MIN_SECONDS = 50, 8
#: Seconds for beat and the worker to start before the load.
START_SECONDS = 20
#: Enough for a worker that cannot keep up with the load.
END_TIMEOUT = 180.0
#: Percentile as a share, and its bounds in milliseconds.
BOUNDS = ((0.5, at_most(20), at_most(10)), (0.99, at_most(150), at_most(50)))
BASELINE_NAME = f"{bare_loop.NAME} and a plain worker with Redis results"
_RESULT_KEY = "celery-task-meta-"
_RESULTS_READ_AT_ONCE = 1_000


def run(bench: Bench) -> None:
    """Measure the baseline (PostgreSQL only) and this project, and report the percentiles."""
    plain = _measure_plain(bench) if bench.services.database == "postgresql" else ()
    lags = _measure(bench)
    for share, must, aim in BOUNDS:
        lag = percentile(lags, share)
        bench.report(
            "start_lag",
            f"end of an empty body - fire_at, p{share * 100:g}",
            value=lag,
            unit="ms",
            baseline=percentile(plain, share) if plain else None,
            baseline_name=BASELINE_NAME if plain else "",
            # The bounds are milliseconds, not ratios.
            compared=lag,
            must=must,
            aim=aim,
        )


def _measure_plain(bench: Bench) -> Sequence[float]:
    """Return the milliseconds of the baseline."""
    with (
        _load(bench) as (site, dynbeat, steady, count),
        results_database(site) as url,
        worker(site.config(result_backend=url, plain=True)) as consumer,
        Redis.from_url(url) as client,
        bare_loop.started(site, end=steady.end) as sent,
    ):
        results: Any = client
        _wait_for_end(bench, dynbeat, steady, consumer, lambda: results.dbsize() >= count)
        assert len(sent.result()) == count, f"{len(sent.result())} of {count} were sent"
        with dynbeat.context.database.engine.connect() as connection:
            scheduled = dict(connection.execute(select(Run.id, Run.fire_at)).tuples().all())
        done = dict(_results(client, [*scheduled]))
        client.flushdb()
    return [_milliseconds(done[run_id], at) for run_id, at in scheduled.items()]


def _measure(bench: Bench) -> Sequence[float]:
    """Return the milliseconds of this project."""
    with _load(bench) as (site, dynbeat, steady, count):
        engine = dynbeat.context.database.engine
        with worker(site.config()) as consumer, beat(site.config()) as process:
            process.wait_for_log(BEAT_STARTED)
            _wait_for_end(
                bench, dynbeat, steady, consumer, lambda: count_done(engine) == (count, count)
            )
            with engine.connect() as connection:
                ended = connection.execute(select(Run.finished_at, Run.fire_at)).all()
    return [_milliseconds(at, fire_at) for at, fire_at in ended if at]


def _milliseconds(ended_at: datetime, fire_at: datetime) -> float:
    return (ended_at - fire_at).total_seconds() * 1_000


@contextmanager
def _load(bench: Bench) -> Iterator[tuple[Site, Dynbeat, SteadyLoad, int]]:
    """Yield a site with the schedules of the load, and the number of its fire times."""
    rate = bench.size(RATE, minimum=MIN_RATE)
    seconds = bench.size(SECONDS, minimum=MIN_SECONDS)
    with bench.site() as site, site.application() as dynbeat:
        start = dynbeat.context.clock.now() + timedelta(seconds=START_SECONDS)
        steady = SteadyLoad(rate, seconds, start.replace(microsecond=0))
        rows = steady.rows()
        workloads.write(dynbeat, rows)
        yield site, dynbeat, steady, steady.count_fire_times(rows)


def _wait_for_end(
    bench: Bench,
    dynbeat: Dynbeat,
    steady: SteadyLoad,
    consumer: Process,
    is_done: Callable[[], bool],
) -> None:
    """Wait until the load has passed and ``is_done`` returns true."""
    now = dynbeat.context.clock.now()
    assert now < steady.start, "loading and starting took too long"
    for _ in bench.track(range(ceil((steady.end - now).total_seconds())), "start_lag"):
        time.sleep(1)
    wait_until(is_done, within=END_TIMEOUT, message=consumer.report(), every=1)


def _results(client: Redis, run_ids: Sequence[str]) -> Iterator[tuple[str, datetime]]:
    """Yield the id of each run, and the time at which Celery stored the result of its task."""
    for first in range(0, len(run_ids), _RESULTS_READ_AT_ONCE):
        part = run_ids[first : first + _RESULTS_READ_AT_ONCE]
        stored: Any = client.mget([f"{_RESULT_KEY}{run_id}" for run_id in part])
        for run_id, result in zip(part, stored, strict=True):
            assert result is not None, f"run {run_id} has no result"
            done = datetime.fromisoformat(json.loads(result)["date_done"])
            yield run_id, done if done.tzinfo else done.replace(tzinfo=UTC)
