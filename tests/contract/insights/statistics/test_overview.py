"""The numbers of the strip are those that a search through all rows finds."""

import math
import random
from bisect import bisect_left
from datetime import timedelta

import pytest

from celery_dynbeat.db.models import Hold, Run, Schedule
from celery_dynbeat.insights.installation import overview
from celery_dynbeat.insights.lag import lag_percentile
from celery_dynbeat.store.rollups import LAG_BOUNDS
from tests.support.applications import MINUTELY, START, execute
from tests.support.rollup import count_runs
from tests.support.suites import each_database

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
MILLISECOND = timedelta(milliseconds=1)
NOW = START + timedelta(hours=2, seconds=20)
FIRST = NOW - 59 * MINUTE - 20 * SECOND
UNFINISHED = {"running", "sent", "pending"}
STATUSES = ("succeeded", "succeeded", "failed", "lost", "skipped", "running", "sent", "pending")


@pytest.fixture
def add_schedules(dynbeat):
    """Return a function that creates schedules of three owners in random states."""

    def add(count, chance):
        dynbeat.schedules.create_many(
            {"owner": f"user:{index % 3}", "name": f"n{index}", "task": "t", "trigger": MINUTELY}
            for index in range(count)
        )
        for index in range(count):
            change_state(dynbeat, chance, f"n{index}")

    return add


def change_state(dynbeat, chance, name):
    at = START + chance.randint(0, 7_300) * SECOND
    states = {
        "due": "next_run_at = :at",
        "parked": "next_run_at = :at, held_at = :at",
        "later": "next_run_at = :later",
        "paused": "next_run_at = NULL, enabled = false",
        "quarantined": "next_run_at = NULL, error = 'x'",
        "failing": "failing_since = :at",
    }
    values = states[chance.choice(list(states))]
    given = {"at": f"{at:%Y-%m-%d %H:%M:%S}", "later": f"{at + 3 * MINUTE:%Y-%m-%d %H:%M:%S}"}
    used = {key: value for key, value in given.items() if f":{key}" in values}
    if dynbeat.context.database.engine.dialect.name == "postgresql":
        used = {key: f"{value}+00" for key, value in used.items()}
        values = values.replace(":at", "CAST(:at AS timestamptz)")
        values = values.replace(":later", "CAST(:later AS timestamptz)")
    execute(dynbeat, f"UPDATE dynbeat_schedule SET {values} WHERE name = :name", name=name, **used)


def random_runs(count, chance):
    for _ in range(count):
        created = START + chance.randint(0, 7_220_000) * timedelta(milliseconds=1)
        late = chance.randint(0, 300) * 5 * MILLISECOND
        status = chance.choice(STATUSES)
        is_unsent = status in {"skipped", "pending"}
        yield {
            "created_at": created,
            "status": status,
            "origin": chance.choice(["schedule", "schedule", "manual", "backfill", "rerun"]),
            "fire_at": created - late,
            # No lag is the bound of a bucket.
            "sent_at": None if is_unsent else created + late + MILLISECOND,
            "finished_at": None if status in UNFINISHED else created + late,
            "overdue_at": created + 60 * MINUTE if status in {"sent", "pending"} else None,
        }


def burst(count, *, at, **fields):
    """Yield runs of one burst, a millisecond apart."""
    for number in range(count):
        created = at + number * timedelta(milliseconds=1)
        yield {"created_at": created, "fire_at": at, "sent_at": created, **fields}


def expected(schedules, runs, holds, *, timeout):
    """Return what the oracle finds in all rows."""
    in_force = [hold.owner for hold in holds if hold.until_at is None or hold.until_at > NOW]
    is_held = None in in_force
    timed = [each for each in schedules if each.next_run_at is not None]
    due = [each for each in timed if each.next_run_at <= NOW and not is_held]
    overdue = [
        each.next_run_at
        for each in due
        if each.next_run_at < NOW - timeout and each.held_at is None and each.owner not in in_force
    ]
    resent = [run.overdue_at for run in runs if run.overdue_at and run.overdue_at <= NOW]
    pending = [run.created_at for run in runs if run.status in {"pending", "sent"}]
    minutes = [Minute(runs, FIRST + number * MINUTE) for number in range(60)]
    lags = sorted(lag for minute in minutes for lag in minute.lags())
    return {
        "due": (len(due), True),
        "overdue": (len(overdue) + len(resent), True),
        "overdue_schedules": (len(overdue), True),
        "overdue_runs": (len(resent), True),
        "oldest_overdue_at": min([*overdue, *resent], default=None),
        "running": (sum(run.status == "running" for run in runs), True),
        "pending": (len(pending), True),
        "oldest_pending_at": min(pending, default=None),
        "quarantined": (sum(each.error is not None for each in schedules), True),
        "failing": (sum(each.failing_since is not None for each in schedules), True),
        "failed_last_hour": sum(minute.failed() for minute in minutes),
        "lag_p50": Near(lags, 0.5),
        "lag_p99": Near(lags, 0.99),
        "lag_by_minute": [minute.lag() for minute in minutes],
        "failed_by_minute": [(minute.at, minute.failed()) for minute in minutes],
        "sent_by_minute": [(minute.at, minute.sent()) for minute in minutes],
    }


class Minute:
    """What the oracle finds for the minute from ``at``."""

    def __init__(self, runs, at):
        self.at = at
        ended = [run for run in runs if run.finished_at is not None and run.status != "skipped"]
        self.runs = [run for run in ended if at <= run.finished_at < at + MINUTE]

    def lags(self):
        return [
            run.sent_at - run.fire_at
            for run in self.runs
            if run.sent_at is not None and run.origin == "schedule"
        ]

    def lag(self):
        lags = sorted(self.lags())
        return (self.at, Near(lags, 0.5), Near(lags, 0.99), len(lags))

    def failed(self):
        return sum(run.status in {"failed", "lost"} for run in self.runs)

    def sent(self):
        return sum(run.sent_at is not None for run in self.runs)


class Near:
    """Equal to each value in the bucket of a percentile of the lags; None without a lag."""

    def __init__(self, lags, fraction):
        self.lag = lags[max(math.ceil(fraction * len(lags)) - 1, 0)] if lags else None

    def __eq__(self, other):
        return bucket(self.lag) == bucket(other)

    __hash__ = None

    def __repr__(self):
        return f"near {self.lag}"


def bucket(lag):
    # A value at the bound of a bucket is in it.
    return None if lag is None else bisect_left(LAG_BOUNDS, round(lag / SECOND, 4))


def plain(found):
    """Return the overview as values that compare with those of the oracle."""
    counts = ("due", "overdue", "overdue_schedules", "overdue_runs", "running", "pending")
    hour = found.last()
    return {
        **{name: counted(getattr(found, name)) for name in (*counts, "quarantined", "failing")},
        "oldest_overdue_at": found.oldest_overdue_at,
        "oldest_pending_at": found.oldest_pending_at,
        "failed_last_hour": hour.unsuccessful,
        "lag_p50": lag_percentile(hour, 0.5),
        "lag_p99": lag_percentile(hour, 0.99),
        "lag_by_minute": [
            (each.at, *(lag_percentile(each.figures, part) for part in (0.5, 0.99)), lags(each))
            for each in found.minutes
        ],
        "failed_by_minute": [(each.at, each.figures.unsuccessful) for each in found.minutes],
        "sent_by_minute": [(each.at, each.figures.sent) for each in found.minutes],
    }


def lags(minute):
    return sum(minute.figures.lags.values())


def counted(number):
    return (number.count, number.exact)


@pytest.fixture
def check(dynbeat, clock, all_rows):
    """Return a function that compares the overview with the oracle, and returns the overview."""
    clock.advance(NOW - START)

    def compare():
        found = overview(dynbeat.context)
        assert found.now == NOW
        assert plain(found) == expected(
            all_rows(Schedule),
            all_rows(Run),
            all_rows(Hold),
            timeout=dynbeat.context.settings.dispatch_timeout,
        )
        return found

    return compare


@pytest.mark.parametrize(("held", "seed"), [("nothing", 1), ("an owner", 2), ("everything", 3)])
def test_random_rows(dynbeat, add_schedules, add_runs, check, seed, held):
    chance = random.Random(seed)  # noqa: S311 - repeatable
    add_schedules(60, chance)
    add_runs(random_runs(600, chance))
    count_runs(dynbeat, now=NOW)
    if held == "an owner":
        dynbeat.schedules.for_owner("user:1").hold(reason="unpaid")
        execute(dynbeat, "INSERT INTO dynbeat_hold (until_at) VALUES ('2026-11-21 10:00:00')")
    elif held == "everything":
        dynbeat.schedules.hold(reason="migration")

    found = check()

    assert (found.due.count == 0) == (held == "everything")
    hour = found.last()
    assert hour.unsuccessful > 50
    assert lag_percentile(hour, 0.99) > lag_percentile(hour, 0.5) > timedelta(0)


@each_database
def test_minutes_that_are_not_counted_are_read_from_the_runs(add_runs, check):
    newest = NOW.replace(second=0)
    add_runs(burst(20, at=newest - 3 * MINUTE, status="failed"))
    add_runs(burst(10, at=newest, status="failed"))

    assert check().last().unsuccessful == 30
