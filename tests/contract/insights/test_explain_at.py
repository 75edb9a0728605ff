"""Why did the report not run at 9? Each reason, with who and why, also after it has ended."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import pytest

from celery_dynbeat import Cron, Dynbeat
from celery_dynbeat.api import OwnerSchedules
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.store import nodes
from tests.support.applications import START

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
#: The day after START, on which the report should run.
NINE = datetime(2026, 11, 22, 9, tzinfo=UTC)
REPORT = Cron("0 9 * * *")


@pytest.fixture
def until(clock, beat):
    """Return a function that runs beat until an instant, each half hour."""

    def run(at):
        while clock.now() < at:
            clock.advance(min(HOUR / 2, at - clock.now()))
            beat.run_until_idle()

    return run


class World(NamedTuple):
    """What a history needs."""

    dynbeat: Dynbeat
    mine: OwnerSchedules
    until: Callable[[datetime], None]


def paused(world):
    world.mine.create("report", task="t", trigger=REPORT)
    world.until(NINE - HOUR)
    world.mine.bound(actor="alice").pause("report", reason="holiday")
    world.until(NINE + HOUR)
    world.mine.bound(actor="bob").resume("report")


def paused_without_a_resume(world):
    world.mine.create("report", task="t", trigger=REPORT)
    world.mine.bound(actor="alice").pause("report", reason="holiday")


def held(world):
    world.mine.create("report", task="t", trigger=REPORT, catch_up="none")
    world.until(NINE - HOUR)
    world.mine.bound(actor="alice").hold(reason="migration")
    world.until(NINE + HOUR)
    world.mine.bound(actor="alice").release()


def everything_held(world):
    world.mine.create("report", task="t", trigger=REPORT, catch_up="none")
    world.until(NINE - HOUR)
    world.dynbeat.schedules.bound(actor="alice").hold(reason="migration")
    world.until(NINE + HOUR)
    world.dynbeat.schedules.bound(actor="bob").release()


def in_a_calendar(world):
    world.dynbeat.calendars.upsert("holidays", dates=[date(2026, 11, 22)])
    world.mine.create("report", task="t", trigger=REPORT.excluding(calendar="holidays"))


def skipped(world):
    world.mine.create("report", task="t", trigger=REPORT)
    world.mine.bound(actor="alice").skip("report", NINE, reason="no data")


def edited(world):
    world.mine.create("report", task="t", trigger=Cron("0 18 * * *"))
    world.until(NINE + HOUR)
    world.mine.bound(actor="alice", reason="earlier").update("report", trigger=REPORT)


def created(world):
    world.until(NINE + HOUR)
    world.mine.bound(actor="alice").create("report", task="t", trigger=REPORT)


def quiet(world):
    world.mine.create("report", task="t", trigger=REPORT)
    world.mine.bound(actor="alice", reason="sleep").set_quiet_hours(["08:00-11:00"])
    world.until(NINE + HOUR)


def another_time(world):
    world.mine.create("report", task="t", trigger=Cron("0 18 * * *"))


REASONS = [
    (paused, "paused", "alice paused it at 2026-11-22 08:00 UTC because of 'holiday', and bob"),
    (paused_without_a_resume, "paused", "alice paused it at 2026-11-21 09:00 UTC because of"),
    (
        held,
        "held",
        "alice held owner 'user:42' at 2026-11-22 08:00 UTC because of 'migration',",
    ),
    (
        everything_held,
        "held",
        "alice held everything at 2026-11-22 08:00 UTC because of 'migration'",
    ),
    (in_a_calendar, "excluded_day", "2026-11-22 is excluded, calendar 'holidays' has it"),
    (skipped, "skipped", "skipped by alice: no data"),
    (
        edited,
        "trigger_changed",
        "alice changed it at 2026-11-22 10:00 UTC because of 'earlier'",
    ),
    (created, "created_later", "alice created the schedule at 2026-11-22 10:00 UTC"),
    (quiet, "quiet_hours", "until 2026-11-22 11:00 UTC, which alice set at"),
    (another_time, "no_fire_time", "is no fire time: At 18:00 every day, UTC; its next fire time"),
]


@pytest.mark.parametrize(
    ("database_url", "history", "cause", "text"),
    [
        pytest.param(database, *reason, id=f"{database}-{reason[0].__name__}")
        for reason in REASONS
        for database in ("sqlite", "postgresql", "mariadb")
        if database == "sqlite" or reason[0] in {paused, held, skipped}
    ],
    indirect=["database_url"],
)
def test_the_reason_says_who_and_why(dynbeat, mine, until, history, cause, text):
    history(World(dynbeat, mine, until))
    until(NINE + 1.5 * HOUR)

    found = mine.explain("report", at=NINE)

    assert (found.cause, found.at) == (cause, NINE)
    assert text in found.sentence
    assert "2026-11-22 09:00 UTC" in found.sentence


def test_a_beat_that_was_down_is_named(dynbeat, mine, clock, until):
    mine.create("report", task="t", trigger=REPORT, catch_up="none")
    clock.advance(NINE - clock.now() + HOUR)
    heartbeat = nodes.NodeHeartbeat(
        kind=NodeKind.BEAT, name="beat@a", pid=1, seen_at=clock.now(), progressed_at=clock.now()
    )
    dynbeat.context.database.run(
        lambda session: nodes.register(session, heartbeat=heartbeat, started_at=clock.now())
    )
    until(clock.now() + MINUTE)

    found = mine.explain("report", at=NINE)

    assert found.cause == "no_beat"
    assert "beat@a started at 2026-11-22 10:00 UTC" in found.sentence


def test_a_run_that_a_pause_skipped_or_revoked_says_who_paused(dynbeat, mine, until):
    paused(World(dynbeat, mine, until))
    until(NINE + 25 * HOUR)
    mine.bound(actor="carol").pause("report")
    until(NINE + 26 * HOUR)
    mine.resume("report")

    revoked, skipped = mine.explain("report").runs

    by_alice = "alice paused it at 2026-11-22 08:00 UTC because of 'holiday', and bob resumed it"
    assert (skipped.run.status, revoked.run.status) == ("skipped", "revoked")
    assert by_alice in skipped.text
    assert "carol paused it at 2026-11-23 10:00 UTC" in revoked.text


def test_a_run_that_ran_is_told(mine, until):
    mine.create("report", task="t", trigger=REPORT)
    until(NINE + HOUR)

    found = mine.explain("report", at=NINE)

    assert found.cause == "waits_in_queue"
    assert found.sentence.startswith("The run of 2026-11-22 09:00 UTC has waited in its queue")
    assert found.sentence in found.text
    assert found.to_dict()["at"] == NINE.isoformat()


def test_the_calls_across_owners_need_an_owner(dynbeat, mine):
    mine.create("report", task="t", trigger=REPORT)

    found = dynbeat.schedules.explain("report", owner="user:42")

    assert (found.schedule.owner, found.at, found.now) == ("user:42", None, START)
    with pytest.raises(InvalidArgumentError):
        dynbeat.schedules.explain("report")
    with pytest.raises(InvalidArgumentError):
        mine.explain("report", owner="user:7")
