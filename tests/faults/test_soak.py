"""Random edits and faults for a long time: no run is lost or duplicated, no resource grows.

DYNBEAT_SOAK is the length in seconds (20; by ``make test-rest`` 120). DYNBEAT_SOAK_SEED repeats
the same actions.
"""

import os
import random
from collections import Counter

import pytest
import redis
from sqlalchemy import text

from celery_dynbeat.common.states import Status
from tests.support import resource_usage
from tests.support.databases import administration
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.soak import APPLICATION, PeriodicAction, Soak, run_periodically

SECONDS = float(os.environ.get("DYNBEAT_SOAK") or (120 if os.environ.get("CI") else 20))
SEED = int(os.environ.get("DYNBEAT_SOAK_SEED", random.randrange(10**6)))  # noqa: S311
#: Few enough for two busy cores: this test does not measure the rate.
SCHEDULES = 30
#: In seconds. A shorter test cannot show growth: caches are still filling.
GROWTH_FROM = 60
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"
SETTLES_WITHIN = 180
NEVER_STARTED = (Status.SKIPPED, Status.REVOKED, Status.EXPIRED)


@pytest.fixture
def soak(fault_site, database_server):
    marked = {"connect_args": {"application_name": APPLICATION}}
    # Longer than messages wait in the queue on a busy machine: copies would make the queue longer.
    fault_site.config.update(dynbeat_engine_options=marked, dynbeat_resend_after=60)
    with administration(database_server.url) as server:
        yield Soak(fault_site, server, seed=SEED, schedules=SCHEDULES)


@pytest.fixture
def measured(database_server, broker_server):
    """Yield a function that returns the resource series of processes and servers."""
    with (
        administration(database_server.url) as watch,
        redis.Redis.from_url(broker_server.url) as broker,
    ):

        def backends():
            return watch.execute(text(CONNECTIONS), {"name": APPLICATION}).scalar_one()

        yield lambda pids: [
            *resource_usage.process_series(pids),
            resource_usage.ResourceSeries(
                "PostgreSQL connections", backends, resource_usage.CONNECTIONS
            ),
            resource_usage.ResourceSeries(
                "Redis connections", lambda: len(broker.client_list()), resource_usage.CONNECTIONS
            ),
        ]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.combination(database="postgresql", broker="redis")
def test_random_edits_and_faults_lose_duplicate_and_leak_nothing(soak, measured, record_property):
    watched = measured(soak.start())

    run_periodically(
        [
            PeriodicAction(soak.edit, every=0.1),
            PeriodicAction(soak.break_something, every=2),
            PeriodicAction(lambda: [gauge.sample() for gauge in watched], every=0.5),
        ],
        seconds=SECONDS,
    )
    soak.finish(within=SETTLES_WITHIN)

    runs = soak.site.all_runs()
    fires = soak.expectations.verify(runs)
    no_run_starts_twice(runs, soak.site.event_log.starts())
    if SECONDS >= GROWTH_FROM:
        for gauge in watched:
            gauge.assert_flat()
    record_property(SUMMARY_PROPERTY, figures(soak, runs, fires, watched))


def no_run_starts_twice(runs, starts):
    counted = Counter(start["run_id"] for start in starts)
    twice = [run_id for run_id, count in counted.items() if count > 1]
    assert not twice, describe([run for run in runs if run.id in twice], starts)
    ended_well = {run.id for run in runs if run.status == Status.SUCCEEDED}
    assert ended_well <= counted.keys()
    cancelled = [run for run in runs if run.status in NEVER_STARTED and run.id in counted]
    assert not cancelled, describe(cancelled, starts)


def describe(runs, starts):
    """Return the history and the starts of the first three of ``runs``."""
    columns = ("id", "name", "status", "attempt", "retries", "origin", "worker", "error")
    times = ("fire_at", "created_at", "sent_at", "started_at", "finished_at", "cancelled_at")
    lines = [f"{len(runs)} runs, seed {SEED}; the first three:"]
    for run in sorted(runs, key=lambda run: run.created_at)[:3]:
        lines += [f"{column}: {getattr(run, column)}" for column in (*columns, *times)]
        lines += [f"  {start}" for start in starts if start["run_id"] == run.id]
    return "\n".join(lines)


def figures(soak, runs, fires, watched):
    lags = sorted((run.sent_at - run.fire_at).total_seconds() for run in runs if run.sent_at)
    p50, p99 = (lags[int(len(lags) * part)] for part in (0.5, 0.99))
    counts = ", ".join(f"{name} {count}" for name, count in sorted(soak.counts.items()))
    statuses = Counter(run.status for run in runs)
    return (
        f"soak of {SECONDS:g} s (seed {SEED}): {fires} fire times, all accounted for: "
        f"{dict(sorted(statuses.items()))}; {counts}; lag p50 {p50:.2f} p99 {p99:.2f}"
        f" max {lags[-1]:.1f} s; {'; '.join(map(str, watched))}"
    )
