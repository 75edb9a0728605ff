"""Lag, duration and failures of a schedule, compared with the same over all rows in Python."""

import random
from datetime import timedelta
from statistics import median

import pytest

from celery_dynbeat import Every
from celery_dynbeat.insights import charts
from celery_dynbeat.insights.charts import run_times
from tests.support.applications import START
from tests.support.random_history import add_runs
from tests.support.suites import each_database

ZERO = timedelta(0)
MONTH = timedelta(days=30)


def times_of(dynbeat, **given):
    return run_times(dynbeat.context, owner="user:42", name="digest", **given)


@pytest.fixture
def schedule(mine):
    return mine.create("digest", task="t", trigger=Every(3_600))


@pytest.fixture
def history(dynbeat, mine, schedule):
    rng = random.Random(3)  # noqa: S311 - not a secret
    minutes = sorted(rng.sample(range(1, 12 * 24 * 60), 400))
    other = mine.create("other", task="t", trigger=Every(3_600))
    add_runs(dynbeat, other, [START - timedelta(minutes=each) for each in minutes])
    return add_runs(dynbeat, schedule, [START - timedelta(minutes=each) for each in minutes])


def middle_and_longest(durations):
    return (median(durations), max(durations)) if durations else (None, None)


def expected(runs):
    lags = [run.sent_at - run.fire_at for run in runs if run.sent_at]
    ended = [run for run in runs if run.status in {"succeeded", "failed"}]
    return (
        sum(run.status != "skipped" for run in runs),
        *middle_and_longest(lags),
        *middle_and_longest([run.finished_at - run.started_at for run in ended]),
    )


def found(bucket):
    lag = (bucket.lag_p50, bucket.lag_max)
    return (bucket.count, *lag, bucket.duration_p50, bucket.duration_max)


def test_each_bucket_has_the_times_of_its_runs(dynbeat, history):
    times = times_of(dynbeat, span=timedelta(days=10), buckets=17)

    assert len(times.buckets) == 17
    for bucket in times.buckets:
        inside = [run for run in history if bucket.start_at <= run.fire_at < bucket.end_at]
        of_schedule = [run for run in inside if run.origin == "schedule"]
        assert inside
        assert found(bucket)[0] == expected(inside)[0]
        assert found(bucket)[1:3] == expected(of_schedule)[1:3]
        assert found(bucket)[3:] == expected(inside)[3:]


def test_failures_are_the_newest_failed_and_lost_runs(dynbeat, history):
    failed = [
        (run.fire_at, run.id, run.status, run.finished_at - run.started_at)
        for run in history
        if run.status in {"failed", "lost"} and run.fire_at >= START - timedelta(days=10)
    ]

    times = times_of(dynbeat, span=timedelta(days=10))

    dots = [(dot.at, dot.run_id, dot.status, dot.duration) for dot in times.failures]
    assert dots == sorted(failed, reverse=True)
    assert times.read_since == times.start_at


@each_database
def test_of_very_many_runs_the_newest_are_read(dynbeat, history, monkeypatch):
    every = times_of(dynbeat, span=MONTH).failures
    monkeypatch.setattr(charts, "MAX_READ", 50)
    newest = sorted(history, key=lambda run: run.fire_at)[-50:]

    times = times_of(dynbeat, span=MONTH, buckets=1)

    assert times.read_since == newest[0].fire_at
    assert times.failures == [dot for dot in every if dot.at >= times.read_since]
    assert times.buckets[0].count == expected(newest)[0]
    assert found(times.buckets[0])[3:] == expected(newest)[3:]
