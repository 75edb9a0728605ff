from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from benchmarks import workloads
from benchmarks.bench import Bench
from benchmarks.figures import Results
from benchmarks.parts import alerts
from benchmarks.parts.alerts import ALERTS, METRICS, WITHOUT
from benchmarks.services import Services
from celery_dynbeat import Every

START = datetime(2026, 11, 22, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(("scale", "size"), [(1.0, 5_000), (0.1, 500), (0.0001, 50)])
def test_a_smaller_scale_has_fewer_failing_schedules_but_a_minimum(scale, size):
    bench = Bench(
        Services("postgresql", "redis"), scale=scale, results=Results(), console=Console()
    )

    assert bench.size(alerts.FAILING, minimum=alerts.MIN_FAILING) == size


def test_each_round_measures_each_variant_and_every_other_round_is_reversed():
    assert alerts.order(0) == [WITHOUT, ALERTS, METRICS]
    assert alerts.order(1) == [METRICS, ALERTS, WITHOUT]
    assert alerts.order(2) == alerts.order(0)


def test_a_ratio_compares_the_variants_of_the_same_round():
    rounds = [{WITHOUT: [10.0, 20.0], ALERTS: [11.0, 22.0]}, {WITHOUT: [40.0], ALERTS: [20.0]}]

    found = alerts.compare(rounds, ALERTS, 0.99)

    assert (found.values, found.baselines) == ([22.0, 20.0], [20.0, 40.0])
    assert found.ratios == [1.1, 0.5]


def test_each_failing_schedule_fires_once_while_the_load_lasts():
    rows = workloads.failing(4, every=MINUTE, start=START, end=START + MINUTE)

    for row in rows:
        first = row["next_fire_at"]
        trigger = Every(MINUTE, anchor=first)
        assert START <= first <= row["end_at"] < trigger.next_after(first)


def test_failing_runs_have_another_queue_and_task_than_the_load():
    [row] = workloads.failing(1, every=MINUTE, start=START, end=START + MINUTE)

    assert row["options"] == {"queue": workloads.FAILING_QUEUE}
    assert row["task"] == workloads.FAILING_TASK != workloads.TASK
