"""forecast(): the runs of each minute and queue, compared with those that a beat sends."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from celery_dynbeat import (
    AnyOf,
    Cron,
    Every,
    Once,
    RRule,
    Solar,
)
from celery_dynbeat.api import forecast as forecast_module
from celery_dynbeat.store import scans
from celery_dynbeat.store.schedules import schedule_pages
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import (
    MINUTELY,
    START,
    application,
    execute,
)
from tests.support.suites import each_database

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
ZONES = ("UTC", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe")
#: Clocks go back in New York, go forward in New York, and none of both.
STARTS = (
    datetime(2026, 11, 1, 5, 20, 17, 250_000, tzinfo=UTC),
    datetime(2027, 3, 14, 6, 30, 1, tzinfo=UTC),
    datetime(2026, 11, 21, 9, tzinfo=UTC),
)


def random_trigger(rng, start):
    zone = rng.choice(ZONES)
    minutes = rng.choice(["*", "*/7", "5-50/3", "H", "30", "H/20", str(rng.randrange(40))])
    hours = rng.choice(["*", "1,2", "*/2", "2", "4-9"])
    seconds = rng.choice([7.5, 20, 59, 61, 90, 300, 3_600, 5_400, 7_201])
    anchor = start - timedelta(seconds=rng.uniform(0, 90_000))
    return rng.choice(
        [
            Cron(f"{minutes} {hours} * * *", timezone=zone),
            Cron(f"{minutes} * * * * 15,45", timezone=zone),
            Every(seconds, anchor=rng.choice([anchor, None])),
            Every(seconds),
            Every(days=1, timezone=zone, anchor=anchor),
            Once(start + timedelta(seconds=rng.uniform(1, 7_000))),
            RRule(f"FREQ=MINUTELY;INTERVAL={rng.randrange(1, 50)}", timezone=zone),
            RRule(f"FREQ=HOURLY;COUNT={rng.randrange(20, 90)};BYMINUTE=1,2,50", timezone=zone),
            Solar("sunrise", latitude=rng.uniform(-50, 50), longitude=rng.uniform(-180, 180)),
            Cron("*/7 * * * *", timezone=zone).excluding(Cron("0 0 * * sat")),
            AnyOf(Cron(f"{minutes} * * * *", timezone=zone), Every(seconds * 60, anchor=anchor)),
        ]
    )


def random_schedule(rng, start, number):
    fields = {"name": f"n{number}", "task": rng.choice(["a", "b"]), "owner": f"o{number % 7}"}
    fields["trigger"] = random_trigger(rng, start)
    if rng.random() < 0.3:
        fields["options"] = {"queue": rng.choice(["low", "high"])}
    if not isinstance(fields["trigger"], Once):
        if rng.random() < 0.25:
            fields["start_at"] = start + timedelta(seconds=rng.uniform(-50, 4_000))
        if rng.random() < 0.25:
            fields["end_at"] = start + timedelta(seconds=rng.uniform(4_100, 9_000))
        if rng.random() < 0.25:
            fields["max_runs"] = rng.randrange(1, 40)
    if rng.random() < 0.2:
        fields["window"] = rng.choice([5, 200, "80%"])
    return fields


def sent_by_beat(dynbeat, clock, until):
    """Return the runs that a beat sends until ``until``, by minute and queue."""
    found, known, beat = Counter(), set(), ManualBeat(dynbeat)
    while True:
        times = dynbeat.schedules.list(order="next_run_at", limit=1)
        if not times or times[0].next_run_at >= until:
            return found
        clock.move_to(max(times[0].next_run_at, clock.now()))
        beat.run_until_idle()
        # After an hour, beat sends runs again that no worker started.
        for run in beat.publisher.sent:
            if run.run_id in known:
                continue
            known.add(run.run_id)
            found[clock.now().replace(second=0, microsecond=0), run.options.get("queue")] += 1
        beat.publisher.sent.clear()


def forecast_of(dynbeat, **given):
    found = dynbeat.schedules.forecast(**given)
    counts = Counter()
    for row in found.rows:
        counts[row.start_at, None if row.queue == "celery" else row.queue] += row.runs
    return found, counts


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("seed", range(2))
def test_a_forecast_equals_the_runs_that_a_beat_sends(database_url, start, seed):
    rng, clock = Random(f"{start}{seed}"), FrozenClock(start)  # noqa: S311
    with application(database_url, clock=clock, min_interval=rng.choice([0, 1, 10])) as dynbeat:
        for number in range(40):
            fields = random_schedule(rng, start, number)
            try:
                dynbeat.schedules.for_owner(fields.pop("owner")).create(**fields)
            except ValueError:
                # Denser than dynbeat_min_interval, or without a fire time in its span.
                continue
        until = start.replace(second=0, microsecond=0) + 75 * MINUTE
        found, counts = forecast_of(dynbeat, until=until)
        later = forecast_of(dynbeat, since=start + 37 * MINUTE, until=until)[1]

        sent = sent_by_beat(dynbeat, clock, until)

    assert counts == sent
    assert not found.is_at_least
    assert found.total == sum(sent.values())
    from_then = (start + 37 * MINUTE).replace(second=0, microsecond=0)
    assert later == Counter({key: sent[key] for key in sent if key[0] >= from_then})
    assert sum(counts.values()) > 100


@pytest.fixture
def forecast(dynbeat):
    """Return a function that forecasts per hour, and returns the runs by hour and queue."""

    def run(**given):
        rows = dynbeat.schedules.forecast(per="hour", until=START + 3 * HOUR, **given).rows
        return [((row.start_at - START) // HOUR, row.queue, row.runs) for row in rows]

    return run


def test_runs_are_counted_by_hour_and_queue_for_all_owners_or_one(dynbeat, mine, forecast):
    mine.create("n", task="t", trigger=timedelta(minutes=30))
    other = dynbeat.schedules.for_owner("other")
    other.create("n", task="t", trigger=Cron("30 10 * * *"), options={"queue": "low"})
    other.create("paused", task="t", trigger=MINUTELY, enabled=False)

    of_mine = [(0, "celery", 1), (1, "celery", 2), (2, "celery", 2)]
    assert forecast() == sorted([*of_mine, (1, "low", 1)])
    assert forecast(owner="user:42") == of_mine
    assert forecast(queue="low") == [(1, "low", 1)]
    rows = mine.forecast(since=START + HOUR, until=START + 2 * HOUR).rows
    assert [row.runs for row in rows] == [1, 1]
    assert forecast(since=START - HOUR) == forecast()


def test_skipped_fire_times_are_left_out_and_an_overdue_schedule_runs_now(mine, clock, forecast):
    mine.create("n", task="t", trigger=timedelta(minutes=30))
    mine.create("due", task="t", trigger=Cron("15 9,11 * * *"))
    mine.skip("n", START + HOUR)
    mine.create("once", task="t", trigger=Once(START + HOUR))
    mine.skip("once", START + HOUR)
    clock.advance(20 * MINUTE)

    assert forecast() == [(0, "celery", 2), (1, "celery", 1), (2, "celery", 3)]


def test_a_schedule_that_cannot_be_read_has_no_run_after_the_next_one(dynbeat, mine, forecast):
    mine.create("n", task="t", trigger=timedelta(minutes=30))
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'x'")

    assert forecast() == [(0, "celery", 1)]


@pytest.mark.parametrize("followed", [0, 7, 1_000])
@pytest.mark.parametrize("scanned", [3, 10_000])
@each_database
def test_what_is_not_followed_is_counted_once(dynbeat, forecast, monkeypatch, followed, scanned):
    monkeypatch.setattr(forecast_module, "MAX_FOLLOWED", followed)
    monkeypatch.setattr(scans, "MAX_SCANNED", scanned)
    for n in range(10):
        theirs = dynbeat.schedules.for_owner(f"o{n % 2}")
        theirs.create(f"r{n}", task="t", trigger=Every(HOUR, anchor=START + n * SECOND))
        theirs.create(f"o{n}", task="t", trigger=START + HOUR, options={"queue": "low"})

    many = forecast()
    is_bounded = min(followed, scanned) < 10
    total = sum(runs for _, _, runs in many)
    low = 10

    assert [each for each in many if each[1] == "low"] == [(1, "low", low)]
    assert dynbeat.schedules.forecast(until=START + 3 * HOUR).is_at_least == is_bounded
    # Each has three runs in the three hours, or two if its first fire time has passed.
    every = sum(3 if n else 2 for n in range(10)) + low
    assert total == every if not is_bounded else low + 10 <= total < every
    assert forecast(queue="low") == [(1, "low", low)]
    assert sum(row[2] for row in forecast(owner="o0") + forecast(owner="o1")) >= total


def test_more_schedules_than_are_counted_are_a_lower_bound(dynbeat, monkeypatch):
    new = {"task": "t", "trigger": START + HOUR}
    dynbeat.schedules.create_many({"owner": f"o{n}", "name": "n", **new} for n in range(20))
    monkeypatch.setattr(schedule_pages, "MAX_COUNTED", 10)

    found = dynbeat.schedules.forecast(until=START + 2 * HOUR)

    assert (found.total, found.is_at_least) == (10, True)
    assert (found.busiest_at, found.busiest_runs) == (START + HOUR, 10)
