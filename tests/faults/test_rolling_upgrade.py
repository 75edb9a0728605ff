"""Two versions on the same tables: this version does not change what only the next one supports.

The tests simulate the next version by its rows, by its tables, and by a beat with one more kind of
trigger.
"""

from datetime import timedelta

import pytest
from sqlalchemy import inspect

from celery_dynbeat import triggers
from celery_dynbeat.beat import refused
from celery_dynbeat.db import schema
from celery_dynbeat.store.schedules import due
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.triggers import base
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
TO_THE_NEXT_KIND = "UPDATE dynbeat_schedule SET trigger_kind = 'next_kind' WHERE name LIKE 'next%'"
#: Changes that a migration may make while an older version runs.
LATER_TABLES = (
    "ALTER TABLE dynbeat_schedule ADD COLUMN later_number INTEGER NOT NULL DEFAULT 7",
    "ALTER TABLE dynbeat_run ADD COLUMN later_text VARCHAR(10) NOT NULL DEFAULT 'new'",
    "ALTER TABLE dynbeat_node ADD COLUMN later_text VARCHAR(10)",
    "CREATE TABLE dynbeat_later (id INTEGER PRIMARY KEY)",
    "UPDATE dynbeat_alembic_version SET version_num = '9999'",
)


@pytest.fixture
def dynbeat(database_url, clock, monkeypatch):
    monkeypatch.setattr(refused, "BATCH_SIZE", 10)
    with application(database_url, clock=clock) as created:
        created.context.prepare()
        yield created


@pytest.fixture
def next_version(monkeypatch):
    """Yield a function that adds the next version's kind of trigger to this process."""

    def add_kind():
        monkeypatch.setitem(base.CLASSES, "next_kind", base.CLASSES["every"])
        known = (*triggers.KINDS, "next_kind")
        for module in (triggers, due):
            monkeypatch.setattr(module, "KINDS", known)
        for name, statement in {
            "_LOCK_DUE": due._lock_due(has_since=False),
            "_LOCK_DUE_SINCE": due._lock_due(has_since=True),
            "_FULL_POLL": due._poll(has_watermark=False),
            "_POLL_SINCE": due._poll(has_watermark=True),
        }.items():
            monkeypatch.setattr(due, name, statement)
        clear_caches()

    def clear_caches():
        for cached in (base.parse_unchecked, base._parse_whole):
            cached.cache_clear()

    yield add_kind
    monkeypatch.undo()
    clear_caches()


def rows(dynbeat):
    """Return the rows of the next version with all columns."""
    statement = "SELECT * FROM dynbeat_schedule WHERE name LIKE 'next%' ORDER BY id"
    with dynbeat.context.database.engine.connect() as connection:
        return connection.exec_driver_sql(statement.replace("%", "%%")).all()


@each_database
def test_rows_of_an_unknown_kind_stay_unchanged_and_delay_no_other_row(dynbeat, mine, clock, beat):
    # More than a batch, and before the other rows in the index.
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


def test_the_next_versions_beat_sends_the_runs_that_an_older_beat_skipped(
    dynbeat, mine, clock, beat, next_version
):
    mine.create("next", task="t", trigger=MINUTELY, catch_up="all")
    execute(dynbeat, TO_THE_NEXT_KIND)
    clock.advance(2 * MINUTE)
    beat.run_until_idle()
    assert beat.publisher.sent == []

    next_version()
    beat.run_until_idle()

    assert [run.fire_at for run in beat.publisher.sent] == [START + MINUTE, clock.now()]
    assert {run.status for run in mine.runs("next")} == {"sent"}


@each_database
def test_an_unplanned_row_of_an_unknown_kind_waits_for_the_next_versions_beat(
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


def test_a_row_of_an_unknown_kind_can_be_read_paused_repaired_and_deleted(
    dynbeat, mine, clock, beat
):
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


@each_database
def test_this_version_works_on_the_tables_of_the_next_version(dynbeat, database_url, clock):
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
