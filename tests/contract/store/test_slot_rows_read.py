"""Ten thousand waiting runs of one owner add nothing to what a pass reads for other owners."""

from datetime import timedelta

import pytest

from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.contract.store.test_rows_read import IDS, executed, rows_read
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.number_rows import numbers

WAITING = 10_000
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
