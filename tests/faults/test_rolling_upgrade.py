"""Two versions side by side: what this one does not know stays as it is, for those who do.

The next version is played by its rows, by its tables, and by a beat that was taught one more kind.
"""

from datetime import timedelta

import pytest
from sqlalchemy import inspect

from celery_dynbeat import Cron
from celery_dynbeat.db import schema
from celery_dynbeat.store import due, pending_work
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.triggers import parse
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.worker_stub import WorkerStub

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
TO_THE_NEXT_KIND = "UPDATE dynbeat_schedule SET trigger_kind = 'next_kind' WHERE name LIKE 'next%'"
#: What a migration may do beside a version that does not know it.
LATER_TABLES = (
    "ALTER TABLE dynbeat_schedule ADD COLUMN later_number INTEGER NOT NULL DEFAULT 7",
    "ALTER TABLE dynbeat_run ADD COLUMN later_text VARCHAR(10) NOT NULL DEFAULT 'new'",
    "ALTER TABLE dynbeat_node ADD COLUMN later_text VARCHAR(10)",
    "CREATE TABLE dynbeat_later (id INTEGER PRIMARY KEY)",
    "UPDATE dynbeat_alembic_version SET version_num = '9999'",
)


@pytest.fixture
def dynbeat(database_url, clock):
    with application(database_url, clock=clock, batch_size=10) as made:
        made.context.prepare()
        yield made


@pytest.fixture
def next_version(monkeypatch):
    """Teach this process the next version's kind of trigger."""

    def learn():
        read = parse._PARSERS["every"]
        monkeypatch.setitem(parse._PARSERS, "next_kind", read)
        known = (*parse.KINDS, "next_kind")
        monkeypatch.setattr("celery_dynbeat.store.due.KINDS", known)
        forget()

    def forget():
        for cached in (
            parse._parse,
            parse._parse_whole,
            due._lock_due_statement,
            pending_work._pending_statement,
        ):
            cached.cache_clear()

    yield learn
    monkeypatch.undo()
    forget()


def rows(dynbeat):
    """Return all that the table says of the rows of the next version."""
    statement = "SELECT * FROM dynbeat_schedule WHERE name LIKE 'next%' ORDER BY id"
    with dynbeat.context.database.engine.connect() as connection:
        return connection.exec_driver_sql(statement.replace("%", "%%")).all()


def test_rows_of_an_unknown_kind_are_left_as_they_are_and_hold_up_nobody(
    dynbeat, mine, clock, beat
):
    # More of them than fit into a batch, and before the others in the index.
    for number in range(30):
        mine.create(f"next-{number}", task="t", trigger=MINUTELY)
    clock.advance(SECOND)
    for number in range(5):
        mine.create(f"known-{number}", task="t", trigger=MINUTELY)
    execute(dynbeat, TO_THE_NEXT_KIND)
    before = rows(dynbeat)

    clock.advance(MINUTE)
    beat.run_until_idle()

    assert {run.name for run in beat.publisher.sent} == {f"known-{n}" for n in range(5)}
    assert rows(dynbeat) == before


def test_beat_sleeps_beside_a_row_of_an_unknown_kind_and_wakes_for_the_others(
    dynbeat, mine, clock, beat
):
    mine.create("next", task="t", trigger=MINUTELY)
    clock.advance(3 * SECOND)
    mine.create("known", task="t", trigger=MINUTELY)
    execute(dynbeat, TO_THE_NEXT_KIND)

    clock.advance(MINUTE - 3 * SECOND)
    beat.run_until_idle()

    assert beat.tick() == 3 * SECOND


def test_the_next_versions_beat_sends_what_an_older_one_passed_over(
    dynbeat, mine, clock, beat, next_version
):
    mine.create("next", task="t", trigger=MINUTELY, catch_up="all")
    execute(dynbeat, TO_THE_NEXT_KIND)
    clock.advance(2 * MINUTE)
    beat.run_until_idle()
    assert beat.publisher.sent == []

    next_version()
    beat.run_until_idle()

    assert [run.scheduled_for for run in beat.publisher.sent] == [START + MINUTE, clock.now()]
    assert {run.status for run in mine.runs("next")} == {"sent"}


def test_an_unplanned_row_of_an_unknown_kind_is_left_to_the_next_versions_beat(
    dynbeat, clock, beat, next_version
):
    execute(
        dynbeat,
        "INSERT INTO dynbeat_schedule (name, task, trigger_kind, trigger_spec)"
        " VALUES ('next', 't', 'next_kind', 'PT1M')",
    )
    before = rows(dynbeat)
    beat.run_until_idle()
    assert rows(dynbeat) == before
    assert beat.tick() > SECOND

    next_version()
    beat.run_until_idle()

    assert dynbeat.schedules.for_owner("").get("next").next_run_at > clock.now()


def test_the_log_names_a_row_of_an_unknown_kind_once(dynbeat, mine, clock, beat, caplog):
    mine.create("next", task="t", trigger=MINUTELY)
    execute(dynbeat, TO_THE_NEXT_KIND)

    for _ in range(10):
        clock.advance(MINUTE)
        beat.run_until_idle()

    told = [record for record in caplog.records if "next_kind" in record.getMessage()]
    assert [record.event for record in told] == ["trigger_unsupported"]


def test_a_row_of_an_unknown_kind_can_be_seen_paused_mended_and_deleted(dynbeat, mine, clock, beat):
    for name in ("next-1", "next-2", "next-3"):
        mine.create(name, task="t", trigger=MINUTELY)
    execute(dynbeat, TO_THE_NEXT_KIND)
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert "next_kind" in mine.get("next-1").error
    assert [schedule.trigger for schedule in mine.list()] == [None] * 3
    assert mine.pause("next-1", reason="not yet").paused_reason == "not yet"
    assert mine.update("next-2", trigger=MINUTELY).error is None
    mine.delete("next-3")

    clock.advance(MINUTE)
    beat.run_until_idle()
    assert [run.name for run in beat.publisher.sent] == ["next-2"]


def test_a_backfill_of_an_unknown_kind_waits_for_the_next_versions_beat(
    dynbeat, mine, clock, beat, next_version
):
    mine.create("next", task="t", trigger=Cron("* * * * *"))
    mine.backfill("next", start=START - 3 * MINUTE, end=START - MINUTE)
    execute(dynbeat, TO_THE_NEXT_KIND)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'R/2026-11-21T00:00:00Z/PT1M'")
    before = rows(dynbeat)

    beat.run_until_idle()
    assert (beat.publisher.sent, rows(dynbeat)) == ([], before)

    next_version()
    clock.advance(10 * SECOND)
    beat.run_until_idle()
    assert len(beat.publisher.sent) == 3


def test_tables_that_the_next_version_has_migrated_serve_this_one(dynbeat, database_url, clock):
    for statement in LATER_TABLES:
        execute(dynbeat, statement)

    with application(database_url, clock=clock) as older:
        mine, beat = older.schedules.for_owner("user:42"), ManualBeat(older)
        mine.create("next", task="t", trigger=MINUTELY)
        execute(dynbeat, "UPDATE dynbeat_schedule SET later_number = 8")
        mine.update("next", args=[1])
        WorkerStub(older).heartbeat()
        clock.advance(MINUTE)
        beat.run_until_idle()
        assert schema.check(older.context.database) == "9999"

    assert [list(run.args) for run in beat.publisher.sent] == [[1]]
    assert [row.later_number for row in rows(dynbeat)] == [8]
    assert "dynbeat_later" in inspect(dynbeat.context.database.engine).get_table_names()
