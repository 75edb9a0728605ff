"""A failing router or queue delays its runs and quarantines no schedule."""

import json
import os
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import func, select

from celery_dynbeat import Every, Once
from celery_dynbeat.broker import outages
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.cli.status import as_dict
from celery_dynbeat.db.models import NodeKind, Run
from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.store import nodes
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import each_database

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Router:
    """A router in ``task_routes``. It raises ``error`` for ``tasks``, or for all tasks if None."""

    def __init__(self):
        self.error = None
        self.tasks = None
        self.calls = 0

    def __call__(self, name, *_args, **_options):
        self.calls += 1
        if self.error is not None and (self.tasks is None or name in self.tasks):
            raise self.error


@pytest.fixture
def router(dynbeat):
    made = Router()
    dynbeat.app.conf.task_routes = [made]
    return made


@pytest.fixture
def publisher(dynbeat, clock):
    made = Publisher(dynbeat.app, now=clock.now)
    yield made
    with dynbeat.app.connection_for_write() as connection:
        connection.default_channel.queue_purge("celery")
    made.close()


@pytest.fixture
def beat(dynbeat, publisher):
    return ManualBeat(dynbeat, publisher)


@pytest.fixture
def count(dynbeat):
    """Give the function that counts the runs in a status."""

    def runs(status):
        statement = select(func.count()).select_from(Run).where(Run.status == status)
        return dynbeat.context.database.read(lambda session: session.scalar(statement))

    return runs


@pytest.fixture
def after(clock, beat):
    """Advance the clock, and let beat make passes until it is idle."""

    def passes(duration):
        clock.advance(duration)
        beat.run_until_idle()

    return passes


# KeyError and OSError: kombu treats both as connection errors of Redis.
@pytest.mark.parametrize(
    "error", [ValueError("unreachable"), KeyError("region"), OSError("lookup")]
)
def test_a_router_that_raises_for_seconds_delays_runs_and_quarantines_no_schedule(
    mine, router, count, after, error
):
    for number in range(9):
        mine.create(f"n-{number}", task="t", trigger=MINUTELY)
    router.error = error
    after(MINUTE)
    assert (count("pending"), count("sent"), count("failed")) == (9, 0, 0)
    after(3 * SECOND)

    router.error = None
    after(outages.MAX_PAUSE)

    assert (count("pending"), count("sent")) == (0, 9)
    assert {mine.get(f"n-{number}").error for number in range(9)} == {None}
    assert mine.get("n-0").next_run_at == START + 2 * MINUTE


@each_database
def test_runs_do_not_accumulate_during_an_outage(mine, router, count, after):
    for number in range(20):
        mine.create(f"n-{number}", task="t", trigger=Every(10))
    router.error = ValueError("unreachable")

    for _ in range(30):
        after(10 * SECOND)
        assert count("pending") <= 20

    router.error = None
    after(outages.MAX_PAUSE + SECOND)
    after(2 * SECOND)
    assert count("pending") == 0
    assert count("skipped") == 20
    assert all(mine.get(f"n-{number}").error is None for number in range(20))


def test_an_option_that_fails_for_one_row_of_the_task_quarantines_that_row(
    dynbeat, mine, count, after
):
    for name in ("good", "bad"):
        mine.create(name, task="t", trigger=Every(20))
    poison = """UPDATE dynbeat_schedule SET options = '{"compression": "x"}' WHERE name = 'bad'"""
    execute(dynbeat, poison)

    for _ in range(3):
        after(10 * SECOND)
    assert (count("failed"), count("pending")) == (0, 1)
    assert mine.get("bad").error is None
    for _ in range(20):
        after(10 * SECOND)

    assert "KeyError" in mine.get("bad").error
    assert mine.get("good").error is None
    assert count("pending") == 0


def test_an_unknown_queue_in_a_row_is_retried_before_the_row_is_quarantined(
    dynbeat, mine, count, after
):
    dynbeat.app.conf.task_create_missing_queues = False
    for name in ("good", "bad"):
        options = {"queue": "unknown"} if name == "bad" else {}
        mine.create(name, task="t", trigger=Every(timedelta(days=1)), options=options)
    after(timedelta(days=1))
    assert (count("sent"), count("pending")) == (1, 1)
    for _ in range(outages.MAX_TRIES):
        after(outages.MAX_PAUSE)

    assert count("failed") == 1
    assert "unknown" in mine.get("bad").error


def test_a_trial_ends_an_outage_without_waiting_runs(mine, router, count, after, publisher):
    mine.create("old", task="t", trigger=MINUTELY)
    mine.create("new", task="t", trigger=MINUTELY)
    router.error = ValueError("unreachable")
    after(MINUTE)
    for name in ("old", "new"):
        mine.pause(name)
    router.error = None
    mine.resume("new")

    for _ in range(10):
        after(20 * SECOND)

    assert publisher.outages.report() is None
    assert count("pending") == 0
    assert mine.runs("new", status="sent")


@pytest.fixture
def reported(dynbeat, publisher):
    """Write the heartbeats of a beat and a worker, and return the output of ``status --json``."""

    def status():
        now = dynbeat.context.clock.now()
        for kind, report in (
            (NodeKind.BEAT, publisher.outages.report()),
            (NodeKind.WORKER, None),
        ):
            heartbeat = nodes.NodeHeartbeat(
                kind=kind,
                name="n1",
                pid=os.getpid(),
                seen_at=now,
                progressed_at=now,
                outages=report,
            )
            work = partial(nodes.register, heartbeat=heartbeat, started_at=now)
            dynbeat.context.database.run(work)
        found = collect_health(dynbeat.app)
        return json.loads(json.dumps(as_dict(found, evaluate(found))))

    return status


def test_status_shows_the_outage_and_the_fix_until_it_ends(mine, router, after, reported):
    mine.create("n", task="mail.send", trigger=MINUTELY)
    router.error = ValueError("no region")
    after(MINUTE)

    sick = reported()

    (problem,) = sick["problems"]
    assert not sick["healthy"]
    assert problem["code"] == "publish_failed"
    assert "task 'mail.send'" in problem["text"]
    assert "ValueError: no region" in problem["text"]
    assert "task_routes" in problem["hint"]
    (outage,) = sick["beats"][0]["outages"]
    assert (outage["kind"], outage["name"]) == ("task", "mail.send")
    assert outage["since"] == "2026-11-21T09:01:00+00:00"

    router.error = None
    for _ in range(5):
        after(30 * SECOND)
    well = reported()
    assert (well["healthy"], well["beats"][0]["outages"]) == (True, [])


def test_a_run_that_is_refused_for_days_delays_no_other_schedule_of_its_task(dynbeat, mine, after):
    def by_argument(_name, args, *_rest, **_options):
        if args == ["nowhere"]:
            raise ValueError("unknown region")

    dynbeat.app.conf.task_routes = [by_argument]
    mine.create("bad", task="t", args=["nowhere"], trigger=Once(START + 10 * MINUTE + 7 * SECOND))
    other = dynbeat.schedules.for_owner("user:2")
    for number in range(3):
        other.create(f"good-{number}", task="t", trigger=Every(60 * MINUTE))
    after(10 * MINUTE + 7 * SECOND)
    for _ in range(49):
        after(MINUTE)
    # As beat wakes: at each retry, and after it.
    for _ in range(180):
        after(SECOND)

    assert [len(other.runs(f"good-{number}", status="sent")) for number in range(3)] == [1, 1, 1]
    assert len(mine.runs("bad", status="pending")) == 1
