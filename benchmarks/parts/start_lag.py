"""Measure the time from a fire time to the end of its empty task, at 500 fire times a second.

It includes beat, the broker, the worker's queue and the commit of the start. The worker notes the
end of the body before it writes anything more. A fifth of the fire times of each second fall on one
instant, so that the last of them waits for the others.
"""

import time
from datetime import timedelta
from math import ceil

from sqlalchemy import select

from benchmarks import workloads
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.lag_statistics import percentile
from benchmarks.parts.worker import count_done
from benchmarks.processes import BEAT_STARTED, beat, worker
from benchmarks.workloads import SteadyLoad
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until

RATE, SECONDS = 500, 60
MIN_RATE, MIN_SECONDS = 50, 8
#: Seconds for beat and the worker to start before the load.
START_SECONDS = 20
END_TIMEOUT = 120.0
#: Percentile as a share, and its bounds in milliseconds.
BOUNDS = ((0.5, at_most(20), at_most(10)), (0.99, at_most(150), at_most(50)))


def run(bench: Bench) -> None:
    """Measure and report the percentiles."""
    lags = _measure(bench)
    for share, must, aim in BOUNDS:
        lag = percentile(lags, share)
        bench.report(
            "start_lag",
            f"end of an empty body - scheduled_for, p{share * 100:g}",
            value=lag,
            unit="ms",
            # The bounds are milliseconds, not ratios.
            compared=lag,
            must=must,
            aim=aim,
        )


def _measure(bench: Bench) -> list[float]:
    rate = bench.size(RATE, minimum=MIN_RATE)
    seconds = bench.size(SECONDS, minimum=MIN_SECONDS)
    with bench.site() as site, site.application() as dynbeat:
        start = (dynbeat.context.clock.now() + timedelta(seconds=START_SECONDS)).replace(
            microsecond=0
        )
        steady = SteadyLoad(rate, seconds, start)
        rows = steady.rows()
        count = steady.count_fire_times(rows)
        workloads.write(dynbeat, rows)
        engine = dynbeat.context.database.engine
        with worker(site.config()) as consumer, beat(site.config()) as process:
            process.wait_for_log(BEAT_STARTED)
            left = (steady.end - dynbeat.context.clock.now()).total_seconds()
            assert left > seconds, "loading and starting took too long"
            for _ in bench.track(range(ceil(left)), "start_lag"):
                time.sleep(1)
            wait_until(
                lambda: count_done(engine) == (count, count),
                within=END_TIMEOUT,
                message=consumer.report(),
                every=1,
            )
        with engine.connect() as connection:
            ended = connection.execute(select(Run.finished_at, Run.scheduled_for)).all()
    return [(at - scheduled_for).total_seconds() * 1_000 for at, scheduled_for in ended if at]
