"""The slots of other owners, waiting or not, add nothing to what beat reads for an owner.

The tests run with statistics of the filled tables, and with those of tables that were empty.
"""

from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from celery_dynbeat.beat.maintenance import BATCH_SIZE, SlotPosition, prune_slots
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.contract.store.test_rows_read import IDS, executed, rows_read
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

WAITING = 10_000
ENDED = 20_000
#: A batch of a prune reads 500 slots and their runs.
FEW = 1_000
RUNS = """
    INSERT INTO dynbeat_run (id, schedule_id, owner, name, task, scheduled_for, status, origin)
    SELECT {id}, {schedule}, 'crowd', 'a', 't', {at} + INTERVAL {number} {second}, 'pending',
        'manual'
    FROM {sequence}
"""
SLOTS = """
    INSERT INTO dynbeat_slot (run_id, owner)
    SELECT id, owner FROM dynbeat_run WHERE owner = 'crowd'
"""


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_pass_reads_only_the_first_waiting_runs(request, kind):
    clock = FrozenClock(START)
    limits = {"crowd": {"max_running": 2}}
    url = request.getfixturevalue(f"{kind}_url")
    with application(url, clock=clock, owner_limits=limits) as dynbeat:
        dynbeat.context.prepare()
        crowd = dynbeat.schedules.for_owner("crowd")
        info = crowd.create("a", task="t", trigger=MINUTELY)
        crowd.pause("a")
        fill(dynbeat, kind, info.id)
        dynbeat.schedules.create_many(
            [{"owner": f"u{n}", "name": "a", "task": "t", "trigger": MINUTELY} for n in range(5)]
        )
        clock.advance(timedelta(minutes=1))
        beat = ManualBeat(dynbeat)
        # The search for lost runs reads all unfinished runs, at an interval.
        beat.tick()
        with executed(dynbeat) as statements:
            beat.run_until_idle()
        selects = [each for each in statements if each[0].startswith(("SELECT", "WITH"))]
        read = {sql: rows_read(dynbeat, kind, sql, values) for sql, values in selects}

        assert {run.owner for run in beat.publisher.sent} == {f"u{n}" for n in range(5)} | {"crowd"}
        assert sum(run.owner == "crowd" for run in beat.publisher.sent) == 2
        # The first waiting runs of an owner are read with some that may have been revoked.
        assert {sql: count for sql, count in read.items() if count > 1_000} == {}


def fill(dynbeat, kind, schedule):
    number, second = ("n", "SECOND") if kind == "mariadb" else ("'1 second'", "* n")
    at = f"TIMESTAMP{'TZ' if kind == 'postgresql' else ''} '2026-11-20 00:00:00'"
    sequence = numbers(kind, rows=WAITING)
    given = {"id": IDS[kind], "schedule": schedule, "at": at, "number": number, "second": second}
    execute(dynbeat, RUNS.format(sequence=sequence, **given))
    execute(dynbeat, SLOTS)
    for table in ("dynbeat_slot", "dynbeat_run"):
        execute(dynbeat, f"ANALYZE {'TABLE' if kind == 'mariadb' else ''} {table}")


ENDED_SLOTS = """
    INSERT INTO dynbeat_slot (run_id, owner, admitted_at)
    SELECT {id}, CONCAT('ended:', n, '/user'), {at} FROM {sequence}
"""
# The statistics do not change while a test runs.
UNCHANGED = {
    "postgresql": "ALTER TABLE dynbeat_slot SET (autovacuum_enabled = off)",
    "mariadb": "ALTER TABLE dynbeat_slot STATS_AUTO_RECALC = 0, STATS_PERSISTENT = 1",
}
ANALYZE = {"postgresql": "ANALYZE dynbeat_slot", "mariadb": "ANALYZE TABLE dynbeat_slot"}


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request):
    return request.param


@pytest.fixture(params=["filled tables", "empty tables"])
def crowded(request, kind):
    """Give an application with the slots of 20,000 owners whose runs have ended, and its clock."""
    clock = FrozenClock(START)
    url = request.getfixturevalue(f"{kind}_url")

    def limits_of(name):
        return {"max_running": 1} if name.endswith("/") or name == "alone" else None

    with application(url, clock=clock, owner_limits=limits_of) as dynbeat:
        dynbeat.context.prepare()
        for statement in (UNCHANGED, ANALYZE):
            execute(dynbeat, statement[kind])
        at = f"TIMESTAMP{'TZ' if kind == 'postgresql' else ''} '2026-11-20 00:00:00'"
        sequence = numbers(kind, rows=ENDED)
        execute(dynbeat, ENDED_SLOTS.format(id=IDS[kind], at=at, sequence=sequence))
        if request.param == "filled tables":
            execute(dynbeat, ANALYZE[kind])
        yield dynbeat, clock


def rows_of_slots(statements, *, most=FEW):
    return {each.sql: each.rows for each in statements if "slot" in each.sql and each.rows > most}


@pytest.mark.parametrize("owners", [[], ["alone"], ["a/u"], ["a/u", "b/u", "alone"]])
def test_a_pass_reads_no_slots_of_owners_without_waiting_runs(crowded, owners):
    dynbeat, clock = crowded
    for owner in owners:
        mine = dynbeat.schedules.for_owner(owner)
        mine.create("a", task="t", trigger=MINUTELY)
        for _ in range(3):
            mine.run_now("a")
    beat = ManualBeat(dynbeat)
    beat.tick()
    clock.advance(timedelta(seconds=1))

    with record_statements(dynbeat.context.database.engine) as statements:
        beat.tick()

    assert any("slot" in each.sql for each in statements)
    assert rows_of_slots(statements) == {}
    assert {run.owner for run in beat.publisher.sent} == set(owners)


@pytest.mark.parametrize("owner", ["alone", "a/"])
def test_an_erasure_reads_no_slots_of_other_owners(crowded, owner):
    dynbeat, _ = crowded
    execute(dynbeat, f"INSERT INTO dynbeat_slot (run_id, owner) VALUES ('{UUID(int=1)}', 'a/u')")
    schedules = dynbeat.schedules
    delete = (
        schedules.for_group(owner).delete_owners
        if owner.endswith("/")
        else partial(schedules.delete_owner, owner)
    )

    with record_statements(dynbeat.context.database.engine) as statements:
        delete(erase_history=True)

    assert any("slot" in each.sql for each in statements)
    assert rows_of_slots(statements) == {}


def test_a_batch_of_a_prune_reads_few_slots(crowded, kind):
    dynbeat, clock = crowded
    names = f"SELECT CONCAT('ended:', n, '/') FROM {numbers(kind, rows=1_000)}"
    execute(dynbeat, f"INSERT INTO dynbeat_slot_scope (name) {names}")
    prune = partial(prune_slots, now=clock.now(), after=SlotPosition(0, ""))

    with record_statements(dynbeat.context.database.engine) as statements:
        position = dynbeat.context.database.run(prune)

    assert position is not None
    # MariaDB also counts the rows of the list of ids, twice.
    assert rows_of_slots(statements, most=4 * BATCH_SIZE) == {}
