"""Beat passes skipped fire times: with each ``catch_up``, after downtime, with several beats."""

from datetime import timedelta

import pytest
from sqlalchemy import event, select

from celery_dynbeat import ConflictError, InvalidArgumentError, Once
from celery_dynbeat.db.models import Schedule
from tests.support.applications import MINUTELY, START
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)


def at(*minutes):
    return [START + minute * MINUTE for minute in minutes]


def kept(mine):
    """Return minute, status and fire count of each row of history, oldest first."""
    return [
        ((run.fire_at - START) / MINUTE, run.status, run.fire_count)
        for run in reversed(mine.runs(limit=99))
    ]


def test_a_backfill_keeps_the_counts_of_the_other_skipped_fire_times(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(3)[0])
    clock.move_to(START + 5.5 * MINUTE)
    beat.run_until_idle()

    mine.backfill("n", since=at(2)[0], until=at(2)[0] + timedelta(seconds=1))
    beat.run_until_idle()

    assert kept(mine) == [
        (1, "skipped", 1),
        (2, "sent", 1),
        (3, "skipped", 1),
        (4, "skipped", 1),
        (5, "sent", 1),
    ]


def test_a_skip_that_was_run_by_a_backfill_divides_the_row_around_it(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(3)[0])
    clock.move_to(START + 6.5 * MINUTE)
    beat.run_until_idle()
    for minute in (3, 1, 5):
        mine.backfill("n", since=at(minute)[0], until=at(minute)[0] + timedelta(seconds=1))
        beat.run_until_idle()

    assert kept(mine) == [
        (1, "sent", 1),
        (2, "skipped", 1),
        (3, "sent", 1),
        (4, "skipped", 1),
        (5, "sent", 1),
        (6, "sent", 1),
    ]


@each_database
def test_a_skip_moves_from_the_row_to_the_history_with_the_next_run(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.bound(actor="alice").skip("n", at(2)[0], reason="holiday")
    mine.skip("n", at(4)[0])
    pass_minutes(clock, beat, 2)
    assert kept(mine) == [(1, "sent", 1)]

    pass_minutes(clock, beat, 1)

    assert kept(mine) == [(1, "sent", 1), (2, "skipped", 1), (3, "sent", 1)]
    assert mine.runs(limit=9).items[1].error == "skipped by alice: holiday"
    assert stored(dynbeat) == [{at(4)[0].isoformat(): "skipped by a call"}]
    pass_minutes(clock, beat, 2)
    assert stored(dynbeat) == [None]


def stored(dynbeat):
    with dynbeat.context.database.engine.connect() as connection:
        return list(connection.scalars(select(Schedule.skips)))


@each_database
def test_a_claim_with_skips_executes_the_statements_of_one_without(dynbeat, mine, clock, beat):
    for name in ("a", "b"):
        mine.create(name, task="t", trigger=MINUTELY)
    pass_minutes(clock, beat, 1)
    statements = []

    def note(_connection, _cursor, statement, _values, _context, _many):
        statements.append(statement)

    event.listen(dynbeat.context.database.engine, "before_cursor_execute", note)
    pass_minutes(clock, beat, 1)
    without_skips = [*statements]
    for name in ("a", "b"):
        mine.skip(name, at(9)[0])
    statements.clear()
    pass_minutes(clock, beat, 1)

    assert {*statements} <= {*without_skips}


def pass_minutes(clock, beat, number):
    for _ in range(number):
        clock.advance(MINUTE)
        beat.run_until_idle()


@each_database
def test_a_recorded_skip_stays_skipped_when_the_clock_is_set_back(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(2)[0])
    pass_minutes(clock, beat, 5)
    rows = kept(mine)
    clock.move_to(at(1)[0])

    with pytest.raises(InvalidArgumentError, match="is not skipped by a call"):
        mine.unskip("n", at(2)[0])
    with pytest.raises(ConflictError, match="already has a run"):
        mine.skip("n", at(2)[0])
    mine.update("n", max_runs=50)
    pass_minutes(clock, beat, 4)

    assert kept(mine) == rows
    assert at(2)[0] not in [run.fire_at for run in sent]


def test_a_skipped_one_off_on_a_day_that_its_calendar_takes_finishes(dynbeat, mine, clock, beat):
    dynbeat.calendars.upsert("c", dates=[START.date() - timedelta(days=9)])
    mine.create("n", task="t", trigger=Once(START + 5 * MINUTE).excluding(calendar="c"))
    mine.skip("n", START + 5 * MINUTE)
    dynbeat.calendars.upsert("c", dates=[START.date()])

    clock.advance(10 * MINUTE)
    beat.run_until_idle()

    info = mine.get("n")
    assert info.error is None
    assert info.finished_at is not None
