"""Measure no-op tasks in a worker with guard and recorder; the baseline is F4, plain workers.

The messages are the messages of real runs, as beat sends them. The four workers alternate, so that
noise affects them equally.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

from sqlalchemy import Engine, case, func, make_url, select

from benchmarks import workloads
from benchmarks.baselines import worker as baseline
from benchmarks.bench import Bench
from benchmarks.consume_rate import consume_rate
from benchmarks.figures import at_least
from benchmarks.queues import queue
from benchmarks.services import Site
from celery_dynbeat import Dynbeat
from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.servers import RedisServer

TASKS, MIN_TASKS = 6_000, 400
ROUNDS = 3
#: A database of the broker's Redis server, if the broker is Redis.
RESULTS_DATABASE = "1"
PLAIN, PLAIN_RESULTS = "plain", "plain, results"
DYNBEAT, DYNBEAT_RESULTS = "dynbeat", "dynbeat, results"


def run(bench: Bench) -> None:
    """Measure in alternating rounds and report the medians."""
    count = bench.size(TASKS, minimum=MIN_TASKS)
    rates: dict[str, list[float]] = {}
    for _ in bench.track(range(ROUNDS), "worker"):
        for name, measure in MEASURES.items():
            with bench.site() as site, results_database(site) as results_url:
                rates.setdefault(name, []).append(measure(site, count, results_url))
    _report(bench, {name: statistics.median(each) for name, each in rates.items()})


def _report(bench: Bench, rates: dict[str, float]) -> None:
    part, unit = "worker", "tasks/s"
    bench.report(part, "F4: plain, without results", value=rates[PLAIN], unit=unit)
    baseline_name = f"{baseline.NAME} with Redis results"
    bench.report(
        part,
        "with guard and recorder",
        value=rates[DYNBEAT],
        unit=unit,
        baseline=rates[PLAIN_RESULTS],
        baseline_name=baseline_name,
        compared=rates[DYNBEAT] / rates[PLAIN_RESULTS],
        must=at_least(0.5),
        aim=at_least(0.8),
    )
    bench.report(
        part,
        "with guard and recorder, and Redis results",
        value=rates[DYNBEAT_RESULTS],
        unit=unit,
        baseline=rates[PLAIN_RESULTS],
        baseline_name=baseline_name,
        compared=rates[DYNBEAT_RESULTS] / rates[PLAIN_RESULTS],
    )


def _plain(site: Site, count: int, results_url: str) -> float:
    del results_url
    return baseline.measure(site, count=count)


def _plain_results(site: Site, count: int, results_url: str) -> float:
    return baseline.measure(site, count=count, results_url=results_url)


def _dynbeat(site: Site, count: int, results_url: str) -> float:
    del results_url
    return _measure(site, count)


def _dynbeat_results(site: Site, count: int, results_url: str) -> float:
    return _measure(site, count, result_backend=results_url)


MEASURES: dict[str, Callable[[Site, int, str], float]] = {
    PLAIN: _plain,
    PLAIN_RESULTS: _plain_results,
    DYNBEAT: _dynbeat,
    DYNBEAT_RESULTS: _dynbeat_results,
}


def _measure(site: Site, count: int, **settings: str) -> float:
    """Return the tasks a second of ``count`` runs; all must succeed at their first attempt."""
    with site.application() as dynbeat, queue(site) as task_queue:
        # Runs and messages as beat makes them, from schedules that are due at one instant.
        due_at = dynbeat.context.clock.now() - timedelta(seconds=1)
        workloads.write(dynbeat, workloads.burst(count, due_at=due_at))
        dispatch_due(dynbeat)
        engine = dynbeat.context.database.engine
        return consume_rate(
            task_queue,
            site.config(**settings),
            count=count,
            is_done=lambda: count_done(engine) == (count, count),
        )


def dispatch_due(dynbeat: Dynbeat) -> None:
    """Create runs and send their messages until nothing is due; then close all connections."""
    context = dynbeat.context
    publisher = Publisher(dynbeat.app, now=context.clock.now)
    beat = Dispatcher(
        database=context.database,
        publisher=publisher,
        clock=context.clock,
        settings=context.settings,
    )
    while not beat.run_pass():
        pass
    publisher.close()
    # Only the worker's connections may be open during the measurement.
    context.database.dispose()


def count_done(engine: Engine) -> tuple[int, int]:
    """Return the number of runs, and of those that succeeded at their first attempt."""
    first = (Run.status == Status.SUCCEEDED) & (Run.attempt == 1)
    statement = select(func.count(), func.count(case((first, 1)))).select_from(Run)
    with engine.connect() as connection:
        runs, succeeded = connection.execute(statement).one()
        return runs, succeeded


@contextmanager
def results_database(site: Site) -> Iterator[str]:
    """Yield the URL of an empty Redis database for results, on a Redis broker's own server."""
    on_redis = site.broker_url.startswith("redis:")
    with nullcontext() if on_redis else RedisServer() as own:
        url = site.broker_url if own is None else own.url
        yield str(make_url(url).set(database=RESULTS_DATABASE))
