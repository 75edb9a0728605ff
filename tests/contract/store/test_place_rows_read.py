"""Ended runs, and the waiting runs behind the first ones, add nothing to what an admission reads.

The tests run with statistics of the filled tables, and with those of tables that were empty.
"""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from celery_dynbeat.store import places
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.contract.store.test_rows_read import IDS
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

WAITING, ENDED = 10_000, 20_000
#: An admission reads a page of waiting runs, and their schedules.
FEW = 1_000
RUNS = """
    INSERT INTO dynbeat_run (id, schedule_id, owner, name, task, fire_at, status, origin,
        running_key, waited_for, finished_at)
    SELECT {id}, {schedule}, 'crowd', 'a', 't', {at} + INTERVAL {number} {second}, '{status}',
        'manual', 'crowd', 'place', {finished_at}
    FROM {sequence}
"""


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request):
    return request.param


@pytest.fixture(params=["filled tables", "empty tables"])
def crowded(request, kind):
    """Give an application with many ended and waiting runs of a key, and its clock."""
    clock = FrozenClock(START)
    url = request.getfixturevalue(f"{kind}_url")
    with application(url, clock=clock, owner_limits={"*": {"max_running": 2}}) as dynbeat:
        dynbeat.context.prepare()
        crowd = dynbeat.schedules.for_owner("crowd")
        schedule = crowd.create("a", task="t", trigger=MINUTELY).id
        crowd.pause("a")
        is_mysql = kind == "mariadb"
        number, second = ("n", "SECOND") if is_mysql else ("'1 second'", "* n")
        for status, day, count in (("succeeded", "10", ENDED), ("pending", "20", WAITING)):
            at = f"TIMESTAMP{'' if is_mysql else 'TZ'} '2026-11-{day} 00:00:00'"
            finished_at = at if status == "succeeded" else "NULL"
            ids = IDS[kind].replace("ffffffff", f"ffffff{day}")
            given = {"id": ids, "number": number, "second": second, "status": status}
            sequence = numbers(kind, rows=count)
            insert = RUNS.format(
                at=at, schedule=schedule, finished_at=finished_at, sequence=sequence, **given
            )
            execute(dynbeat, insert)
        if request.param == "filled tables":
            execute(dynbeat, f"ANALYZE {'TABLE' if is_mysql else ''} dynbeat_run")
        yield dynbeat, clock


def test_a_pass_reads_only_the_first_waiting_runs(crowded):
    dynbeat, clock = crowded
    dynbeat.schedules.create_many(
        [{"owner": f"u{n}", "name": "a", "task": "t", "trigger": MINUTELY} for n in range(5)]
    )
    clock.advance(timedelta(minutes=1))
    beat = ManualBeat(dynbeat)
    # The searches for lost and expired runs read all unfinished runs, at intervals.
    beat.tick()
    beat.run_until_idle()

    with record_statements(dynbeat.context.database.engine) as statements:
        clock.advance(timedelta(seconds=1))
        beat.run_until_idle()

    sent = [run.owner for run in beat.publisher.sent]
    assert sorted(sent) == ["crowd", "crowd", *(f"u{n}" for n in range(5))]
    assert any("running_key" in each.sql for each in statements)
    assert {each.sql: each.rows for each in statements if each.rows > FEW} == {}


def test_the_search_for_a_waiting_run_reads_no_history(crowded):
    dynbeat, clock = crowded
    execute(dynbeat, "DELETE FROM dynbeat_run WHERE status = 'pending'")
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    clock.advance(timedelta(minutes=2))

    with record_statements(dynbeat.context.database.engine) as statements:
        beat.run_until_idle()

    waiting = [each for each in statements if "waited_for" in each.sql]
    assert waiting
    assert all(each.rows <= 1 for each in waiting)


def test_status_reads_the_waiting_runs_and_no_history(crowded):
    dynbeat, _ = crowded
    ManualBeat(dynbeat).run_until_idle()
    # The database wrote the creation of the rows, by its own clock.
    read = partial(places.long_waits, before=datetime(2100, 1, 1, tzinfo=UTC), named=5)
    engine = dynbeat.context.database.engine

    with record_statements(engine) as statements:
        (wait,) = dynbeat.context.database.read_in_transaction(read)
    execute(dynbeat, "DELETE FROM dynbeat_run WHERE status = 'pending' AND overdue_at IS NULL")
    with record_statements(engine) as later:
        assert dynbeat.context.database.read_in_transaction(read) == []

    assert (wait.running_key, wait.waiting, len(wait.holders)) == ("crowd", WAITING - 2, 2)
    # MariaDB counts the rows of its temporary tables as well.
    assert max(each.rows for each in statements) <= 3 * WAITING
    assert max(each.rows for each in later) <= 10
