"""The windows of late work: one after the other they contain each row once."""

from datetime import timedelta

import pytest

from celery_dynbeat.store.alerts import checks
from tests.support.applications import MINUTELY


@pytest.fixture
def late(dynbeat, mine, clock, beat):
    """Make five schedules with an unfinished run each, and five overdue ones."""
    mine_and_late = [f"n{number}" for number in range(5)]
    for name in mine_and_late:
        mine.create(name, task="t", trigger=MINUTELY, max_runs=2)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    clock.advance(timedelta(hours=1))
    return dynbeat.context.database


def windows(database, read, key_of):
    """Return the ids of all windows of two rows, and the number of windows."""
    ids, after, count = [], None, 0
    while True:
        window = database.read_in_transaction(
            lambda session, after=after: read(session, after=after, limit=2)
        )
        ids += [row.id for row in window.rows]
        count += 1
        if not window.is_full:
            return ids, count
        after = key_of(window.rows[-1])


def test_the_windows_of_unfinished_runs_contain_each_once(late, mine):
    ids, count = windows(late, checks.unfinished_runs, lambda row: (row.schedule_id, row.id))

    assert sorted(ids) == sorted(run.id for run in mine.runs())
    assert (len(ids), count) == (5, 3)


def test_the_windows_of_overdue_schedules_contain_each_once(late, mine, clock):
    def read(session, **window):
        return checks.overdue_schedules(session, before=clock.now(), **window)

    ids, count = windows(late, read, lambda row: (row.next_run_at, row.id))

    assert sorted(ids) == sorted(each.id for each in mine.list())
    assert (len(ids), count) == (5, 3)
