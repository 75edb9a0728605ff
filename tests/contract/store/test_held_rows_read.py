"""10,000 held owners cost an idle beat nothing: the database counts the rows that it reads.

The tests run with statistics of the filled tables, and with those of tables that were empty.
"""

from datetime import timedelta

import pytest

from celery_dynbeat.beat.holding import REVIEWED
from celery_dynbeat.store.holds import NEVER
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

OWNERS = 10_000
FEW = 100
HOLDS = """
    INSERT INTO dynbeat_hold (owner, created_at) SELECT CONCAT('user:', n), {now} FROM {sequence}
"""
PARKED = """
    INSERT INTO dynbeat_schedule
        (owner, name, task, trigger_kind, trigger_spec, next_fire_at, next_run_at, held_at)
    SELECT CONCAT('user:', n), 'n', 't', 'every', 'PT1M', {now}, {never}, {now}
    FROM {sequence}
"""


# The statistics do not change while a test runs.
UNCHANGED = {
    "postgresql": "ALTER TABLE {} SET (autovacuum_enabled = off)",
    "mariadb": "ALTER TABLE {} STATS_AUTO_RECALC = 0, STATS_PERSISTENT = 1",
}
ANALYZE = {"postgresql": "ANALYZE {}", "mariadb": "ANALYZE TABLE {}"}
TABLES = ("dynbeat_hold", "dynbeat_schedule")


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request):
    return request.param


@pytest.fixture(params=["filled tables", "empty tables"])
def held(request, kind):
    """Give an application with 10,000 held owners, and its clock."""
    clock = FrozenClock(START)
    with application(request.getfixturevalue(f"{kind}_url"), clock=clock) as dynbeat:
        dynbeat.context.prepare()
        take_statistics(dynbeat, UNCHANGED[kind], ANALYZE[kind])
        zone, type_ = ("Z", "TIMESTAMPTZ") if kind == "postgresql" else ("", "TIMESTAMP")
        at = {
            name: f"{type_} '{instant:%Y-%m-%d %H:%M:%S}{zone}'"
            for name, instant in {"now": START, "never": NEVER}.items()
        }
        for statement in (HOLDS, PARKED):
            execute(dynbeat, statement.format(sequence=numbers(kind, rows=OWNERS), **at))
        if request.param == "filled tables":
            take_statistics(dynbeat, ANALYZE[kind])
        yield dynbeat, clock


def take_statistics(dynbeat, *statements):
    for statement in statements:
        for table in TABLES:
            execute(dynbeat, statement.format(table))


def test_an_idle_pass_reads_few_rows(held):
    dynbeat, _ = held
    beat = ManualBeat(dynbeat)
    # Maintenance, which reads up to REVIEWED held schedules.
    beat.tick()

    with record_statements(dynbeat.context.database.engine) as statements:
        assert beat.tick() > timedelta(0)

    assert statements
    assert sum(each.rows for each in statements) < FEW


def test_maintenance_reads_a_part_of_the_held_schedules(held):
    dynbeat, _ = held

    with record_statements(dynbeat.context.database.engine) as statements:
        ManualBeat(dynbeat).tick()

    assert REVIEWED <= max(each.rows for each in statements) < 3 * REVIEWED
    assert len(dynbeat.schedules.holds(limit=1_000)) == 1_000


def test_a_claim_reads_the_holds_of_its_owners_only(held):
    dynbeat, clock = held
    dynbeat.schedules.for_owner("free").create("n", task="t", trigger=MINUTELY)
    dynbeat.schedules.for_owner("user:7").create("m", task="t", trigger=MINUTELY)
    beat = ManualBeat(dynbeat)
    beat.tick()
    # Before the next maintenance.
    clock.advance(timedelta(seconds=10))
    execute(dynbeat, "UPDATE dynbeat_schedule SET next_run_at = created_at WHERE name IN ('m')")
    execute(dynbeat, "UPDATE dynbeat_schedule SET next_run_at = created_at WHERE owner = 'free'")

    with record_statements(dynbeat.context.database.engine) as statements:
        beat.run_until_idle()

    assert dynbeat.schedules.for_owner("user:7").get("m").next_run_at is None
    assert dynbeat.schedules.for_owner("free").get("n").next_run_at == START + timedelta(minutes=1)
    assert sum(each.rows for each in statements) < FEW


def test_the_calls_of_an_owner_read_its_rows_only(held):
    dynbeat, _ = held
    mine = dynbeat.schedules.for_owner("user:7")

    with record_statements(dynbeat.context.database.engine) as statements:
        mine.hold(reason="r")
        assert len(mine.holds()) == 1
        mine.release()

    assert mine.get("n").next_run_at == START
    # MariaDB counts a row again in each of two derived tables.
    assert sum(each.rows for each in statements) < 2 * FEW
