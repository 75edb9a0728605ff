"""The counts of a forecast: intervals without a loop, and a sample of what is too much."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace

import pytest

from celery_dynbeat import Every
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning import forecasting
from celery_dynbeat.planning.forecasting import Bins, Forecast

START = datetime(2026, 11, 21, 9, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HOURLY = Bins(START, HOUR, 24)


def row(kind, spec, fire_at, **columns):
    none = dict.fromkeys(("catch_up", "catch_up_window", "overlap", "max_run_time", "jitter"))
    none |= dict.fromkeys(("quiet_hours", "anchor_at", "start_at", "end_at", "max_runs"))
    values = {"owner": "o", "name": "n", "timezone": "UTC", "created_at": START, "run_count": 0}
    values |= {"trigger_kind": kind, "trigger_spec": spec, "next_fire_at": fire_at}
    return SimpleNamespace(**{**none, **values, **columns})


def count(rows, bins, *, steps=10**7, seed=1, settings=None):
    made = Forecast(settings or Settings(), bins)
    for each in rows:
        made.add(each, queue="q", claim_at=each.next_fire_at)
    return made.count(steps=steps, rng=Random(seed))  # noqa: S311


def by_bin(counts):
    return Counter({number: runs for (number, _), runs in counts.runs.items()})


@pytest.mark.parametrize("seed", range(300))
def test_intervals_are_counted_as_a_loop_over_fire_times_counts_them(seed):
    rng = Random(seed)  # noqa: S311
    bins = Bins(START, rng.choice([MINUTE, 7 * MINUTE, HOUR]), rng.randrange(1, 90))
    seconds = rng.choice([1, 7, 30, 60, 61, 90, 300, 3_600, 0.25, 59.999_999, 86_400])
    every = Every(seconds, anchor=START - timedelta(seconds=rng.uniform(0, 9_000)))
    shift = timedelta(seconds=rng.uniform(-5_000, 2_000))
    max_runs = rng.choice([None, None, rng.randrange(1, 200)])
    distance = timedelta(seconds=rng.choice([0, 1, 45, 200]))
    fire_at = every.next_after(START + shift)

    expected, at, left = Counter(), fire_at, max_runs
    while at < bins.end and left != 0:
        if at >= START:
            expected[(at - START) // bins.width] += 1
        left = None if left is None else left - 1
        at = every.next_after(max(at, at + distance - timedelta(microseconds=1)))
    found = count(
        [row("every", every.spec, fire_at, max_runs=max_runs)],
        bins,
        settings=Settings(min_interval=distance),
    )

    assert by_bin(found) == expected


def test_intervals_with_other_seconds_are_one_group(monkeypatch):
    computed = []
    counted = forecasting._count_steps
    monkeypatch.setattr(
        forecasting, "_count_steps", lambda *given: computed.append(given) or counted(*given)
    )
    starts = [START + timedelta(seconds=0.3 * n) for n in range(1_000)]
    rows = [row("every", "PT5M", at, anchor_at=at) for at in starts]

    found = count(rows, Bins(START, MINUTE, 30))

    assert by_bin(found)[7] == 200
    assert sum(by_bin(found).values()) == 6_000
    assert len(computed) == 5


def jittered(number, *, owner="o"):
    at = START + timedelta(minutes=number % 60)
    spec = f"{number % 60} * * * *"
    return row("cron", spec, at, jitter=20, owner=owner, name=f"n{number}")


def test_the_largest_groups_are_exact_and_the_others_estimated():
    shared = [row("cron", "30 * * * *", START + 30 * MINUTE) for _ in range(5_000)]
    found = count([*shared, *map(jittered, range(2_000))], HOURLY, steps=200_000)

    assert 5_000 < found.computed < 5_500
    assert found.schedules == 7_000
    for number in range(24):
        assert by_bin(found)[number] == pytest.approx(7_000, rel=0.001)


def test_an_estimate_has_no_bias():
    rows = [*map(jittered, range(600)), *(row("every", "PT1H", START) for _ in range(10))]
    rows += [row("cron", f"{n} 3 * * *", START + timedelta(days=1), jitter=9) for n in range(60)]
    exact = sum(by_bin(count(rows, HOURLY)).values())
    estimates = [
        sum(by_bin(count(rows, HOURLY, steps=100_000, seed=seed)).values()) for seed in range(60)
    ]

    assert min(estimates) < exact < max(estimates)
    assert sum(estimates) / len(estimates) == pytest.approx(exact, rel=0.02)


def test_a_trigger_that_is_too_costly_to_follow_is_incomplete():
    found = count([row("cron", "* * * * * *", START)], HOURLY, steps=100_000)

    assert found.incomplete == 1
    assert 400 < sum(by_bin(found).values()) < 600


def test_a_peak_names_the_owners_with_the_most_runs():
    rows = [
        row("cron", "30 9 * * *", START + 30 * MINUTE, owner=f"o{number}")
        for number in range(8)
        for _ in range(number)
    ]
    peak, *others = count(rows, HOURLY).peaks

    assert (peak.bin, peak.runs, others) == (0, 28, [])
    assert peak.owners == [("o7", 7), ("o6", 6), ("o5", 5), ("o4", 4), ("o3", 3)]
