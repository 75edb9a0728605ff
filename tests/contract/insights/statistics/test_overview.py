"""The numbers of the strip are those that a search through all rows finds."""

import math
import random
from datetime import timedelta

import pytest

from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.db.models import Hold, Run, Schedule
from celery_dynbeat.insights.statistics import overview as module
from celery_dynbeat.insights.statistics.overview import overview
from celery_dynbeat.store.schedules import late_work
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import one_database

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NOW = START + timedelta(hours=2, seconds=20)
FIRST = NOW - 59 * MINUTE - 20 * SECOND
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
        late = chance.random() * 3 * SECOND
        status = chance.choice(STATUSES)
        yield {
            "created_at": created,
            "status": status,
            "origin": chance.choice(["schedule", "schedule", "manual", "backfill", "rerun"]),
            "scheduled_for": created - late,
            "sent_at": None if status in {"skipped", "pending"} else created + late,
            "overdue_at": created + 60 * MINUTE if status in {"sent", "pending"} else None,
        }


def burst(count, *, at, **fields):
    """Yield runs of one burst, a millisecond apart."""
    for number in range(count):
        created = at + number * timedelta(milliseconds=1)
        yield {"created_at": created, "scheduled_for": at, "sent_at": created, **fields}


def expected(schedules, runs, holds, *, timeout, has_index):
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
    weighted = sorted(pair for minute in minutes for pair in minute.weighted())
    failed, is_all = failed_ids(runs, has_index=has_index)
    failed |= {run.id for minute in minutes for run in minute.sample if is_failed(run)}
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
        "failed_last_hour": (len(failed), is_all),
        "lag_p50": percentile(weighted, 0.5),
        "lag_p99": percentile(weighted, 0.99),
        "lag_by_minute": [minute.lag() for minute in minutes],
        "failed_by_minute": [
            (minute.at, sum(minute.has(created_at(run_id)) for run_id in failed), is_all)
            for minute in minutes
        ],
        "dispatched_by_minute": [minute.dispatched() for minute in minutes],
    }


def is_failed(run):
    return run.status in {"failed", "lost"}


def failed_ids(runs, *, has_index):
    searched = [run for run in runs if created_at(run.id) >= FIRST]
    if has_index:
        searched = [run for run in searched if is_failed(run)]
    newest = sorted(searched, key=lambda run: run.id)[-module.MAX_FAILED_READ :]
    return {run.id for run in newest if is_failed(run)}, len(newest) < module.MAX_FAILED_READ


class Minute:
    """What the oracle finds for the minute from ``at``."""

    def __init__(self, runs, at):
        self.at = at
        self.runs = sorted(
            (run for run in runs if self.has(created_at(run.id))), key=lambda run: run.id
        )
        half = at + 30 * SECOND
        first = [run for run in self.runs if created_at(run.id) < half]
        second = [run for run in self.runs if created_at(run.id) >= half]
        self.sample = [*first[-module.SAMPLE :], *second[-module.SAMPLE :]]

    def has(self, instant):
        return self.at <= instant < self.at + MINUTE

    def weighted(self):
        weight = min(len(self.runs), module.MAX_COUNTED) / len(self.sample) if self.sample else 0
        return [
            (run.sent_at - run.scheduled_for, weight)
            for run in self.sample
            if run.sent_at is not None and run.origin == "schedule"
        ]

    def lag(self):
        lags = sorted((lag, 1) for lag, _ in self.weighted())
        return (self.at, percentile(lags, 0.5), percentile(lags, 0.99), len(lags))

    def dispatched(self):
        sent = sum(run.sent_at is not None for run in self.sample)
        if len(self.sample) == len(self.runs):
            return (self.at, sent, True)
        return (
            self.at,
            round(sent * min(len(self.runs), module.MAX_COUNTED) / len(self.sample)),
            False,
        )


def percentile(ordered, fraction):
    """Return the first value at which the sum of the weights reaches the fraction of all."""
    total, reached = sum(weight for _, weight in ordered), 0
    for value, weight in ordered:
        reached += weight
        if reached >= fraction * total or math.isclose(reached, fraction * total):
            return value
    return None


def plain(found):
    """Return the overview as values that compare with those of the oracle."""
    values = {name: getattr(found, name) for name in found.__slots__ if name != "now"}
    return {name: as_tuple(value) for name, value in values.items()}


def as_tuple(value):
    if isinstance(value, tuple):
        return [as_tuple(each) for each in value]
    names = getattr(value, "__slots__", None)
    if not hasattr(value, "to_dict"):
        return value
    return tuple(getattr(value, name) for name in names)


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
            has_index=dynbeat.context.database.engine.dialect.name == "postgresql",
        )
        return found

    return compare


@one_database
def test_an_empty_installation(check):
    found = check()

    assert (found.due.count, found.overdue.count, found.failed_last_hour.count) == (0, 0, 0)
    assert (found.lag_p50, found.oldest_overdue_at, found.oldest_pending_at) == (None, None, None)


@pytest.mark.parametrize(("held", "seed"), [("nothing", 1), ("an owner", 2), ("everything", 3)])
def test_random_rows(dynbeat, add_schedules, add_runs, check, seed, held):
    chance = random.Random(seed)  # noqa: S311 - repeatable
    add_schedules(60, chance)
    add_runs(random_runs(600, chance))
    if held == "an owner":
        dynbeat.schedules.for_owner("user:1").hold(reason="unpaid")
        execute(dynbeat, "INSERT INTO dynbeat_hold (until_at) VALUES ('2026-11-21 10:00:00')")
    elif held == "everything":
        dynbeat.schedules.hold(reason="migration")

    found = check()

    assert (found.due.count == 0) == (held == "everything")
    assert found.failed_last_hour.count > 50
    assert found.lag_p99 > found.lag_p50 > timedelta(0)


def test_a_minute_with_many_runs_is_sampled(add_runs, check, monkeypatch):
    monkeypatch.setattr(module, "MAX_FAILED_READ", 300)
    chance = random.Random(3)  # noqa: S311 - repeatable
    add_runs(random_runs(100, chance))
    add_runs(burst(1_200, at=NOW - 10 * MINUTE - 5 * SECOND, status="failed"))
    add_runs(burst(40, at=NOW - 5 * MINUTE, status="succeeded"))
    add_runs(burst(10, at=NOW - 5 * MINUTE - 50 * SECOND, status="skipped"))

    found = check()

    assert not found.failed_last_hour.exact
    busy = [each for each in found.dispatched_by_minute if not each.exact]
    assert busy[0].count == module.MAX_COUNTED
    assert found.lag_p99 >= timedelta(seconds=1)


def test_more_rows_than_are_counted_are_a_lower_bound(
    dynbeat, add_schedules, add_runs, clock, monkeypatch
):
    monkeypatch.setattr(late_work, "MAX_READ", 10)
    monkeypatch.setattr(module, "MAX_SCHEDULES", 10)
    chance = random.Random(4)  # noqa: S311 - repeatable
    add_schedules(60, chance)
    execute(dynbeat, "UPDATE dynbeat_schedule SET failing_since = created_at")
    add_runs({**run, "status": "sent", "overdue_at": START} for run in random_runs(20, chance))
    clock.advance(NOW - START)

    found = overview(dynbeat.context)

    bounded = (found.overdue_runs, found.overdue, found.failing)
    assert [each.exact for each in bounded] == [False] * 3
    assert found.overdue_runs.count == found.failing.count == 10
    assert found.oldest_overdue_at == START
