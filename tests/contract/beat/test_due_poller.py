"""Most polls of beat start at a watermark; a full poll follows once in each poll interval.

The cost of a poll does not grow while a long transaction keeps the database from removing dead
index entries. A row that is committed with an instant before the watermark is late, not lost.
"""

from datetime import timedelta
from functools import partial
from itertools import pairwise

import pytest
from sqlalchemy import insert, select, text, update

from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store.schedules import due
from celery_dynbeat.testing import RecordingPublisher
from tests.support.applications import MINUTELY, START
from tests.support.executed_statements import record_selects
from tests.support.suites import each_database

ROWS, REPEATS = 100, 50


@pytest.fixture
def publisher():
    return RecordingPublisher()


@pytest.fixture
def dispatcher(dynbeat, publisher, clock):
    context = dynbeat.context
    return Dispatcher(
        database=context.database, publisher=publisher, clock=clock, settings=context.settings
    )


@pytest.fixture
def late(dynbeat, mine, clock, dispatcher):
    """Give a function that commits a schedule that was due long before the last poll."""
    clock.advance(timedelta(minutes=10))
    dispatcher.run_pass()

    def commit():
        mine.create("late", task="t", trigger=MINUTELY)
        due_at = clock.now() - 2 * due.IN_FLIGHT
        change = update(Schedule).values(next_fire_at=due_at, next_run_at=due_at)
        with dynbeat.context.database.engine.begin() as connection:
            connection.execute(change)

    return commit


def test_a_row_that_is_committed_late_is_sent_within_the_poll_interval(
    dynbeat, late, clock, dispatcher, publisher
):
    late()
    dispatcher.run_pass()
    assert not publisher.sent

    clock.advance(dynbeat.context.settings.poll_interval)
    dispatcher.run_pass()

    assert [run.name for run in publisher.sent] == ["late"]


@each_database
def test_passes_in_between_do_not_delay_the_full_poll(dynbeat, late, clock, dispatcher):
    late()
    interval = dynbeat.context.settings.poll_interval
    clock.advance(interval * 0.9)

    assert dispatcher.run_pass() <= interval * 0.1


def test_an_idle_beat_polls_at_most_once_in_each_poll_interval(
    dynbeat, clock, dispatcher, monkeypatch
):
    polls, read = [], due.read_pending

    def counted(*given, **named):
        polls.append(clock.now())
        return read(*given, **named)

    monkeypatch.setattr(due, "read_pending", counted)
    start, interval = clock.now(), dynbeat.context.settings.poll_interval
    dispatcher.run_pass()
    while clock.now() < start + 12 * interval:
        # Half of each pause: as if an event other than a notification woke beat early.
        clock.advance(max(dispatcher.run_pass() / 2, timedelta(milliseconds=1)))

    assert polls == sorted(polls)
    assert all(later - at >= interval for at, later in pairwise(polls))
    assert len(polls) >= 11


def test_the_pass_after_a_failed_one_polls_again(mine, clock, dispatcher, publisher, monkeypatch):
    clock.advance(timedelta(minutes=10))
    dispatcher.run_pass()
    mine.create("n", task="t", trigger=MINUTELY)
    mine.run_now("n")

    def fail(*_, **__):
        raise OSError("unreachable")

    with monkeypatch.context() as broken:
        broken.setattr(dispatcher, "_run_duties", fail)
        with pytest.raises(OSError, match="unreachable"):
            dispatcher.run_pass()
    dispatcher.run_pass()

    assert [run.name for run in publisher.sent] == ["n"]


@each_database
def test_a_notified_beat_sends_a_late_row_at_once(late, dispatcher, publisher):
    late()
    dispatcher.reset_poller()
    dispatcher.run_pass()

    assert [run.name for run in publisher.sent] == ["late"]


def test_a_notified_beat_claims_before_it_polls(late, dispatcher, publisher, monkeypatch):
    late()
    polls = []
    monkeypatch.setattr(due, "read_pending", lambda *_, **given: polls.append(given))
    dispatcher.on_change()

    assert dispatcher.run_pass() == timedelta(0)
    assert ([run.name for run in publisher.sent], polls) == (["late"], [])


def test_a_notified_beat_also_polls_for_changes_that_are_due_later(
    dynbeat, mine, dispatcher, publisher
):
    mine.create("later", task="t", trigger=MINUTELY)
    dispatcher.on_change()

    assert dispatcher.run_pass() <= dynbeat.context.settings.poll_interval
    assert not publisher.sent


def test_a_beat_that_slept_until_a_fire_time_claims_before_it_polls(
    mine, clock, dispatcher, publisher, monkeypatch
):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(timedelta(seconds=58))
    clock.advance(dispatcher.run_pass())
    polls = []
    monkeypatch.setattr(due, "read_pending", lambda *_, **given: polls.append(given))

    assert dispatcher.run_pass() == timedelta(0)
    assert ([run.name for run in publisher.sent], polls) == (["n"], [])


def test_a_stream_of_notifications_does_not_delay_a_manual_run(mine, dispatcher, publisher):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.run_now("n")
    for _ in range(2):
        dispatcher.on_change()
        dispatcher.run_pass()

    assert [run.name for run in publisher.sent] == ["n"]


@each_database
def test_the_next_poll_is_a_full_one_after_the_clock_was_set_back(
    clock, late, dispatcher, publisher
):
    late()
    clock.advance(timedelta(minutes=-1))
    clock.advance(timedelta(seconds=59))
    dispatcher.run_pass()

    assert [run.name for run in publisher.sent] == ["late"]


@each_database
def test_a_schedule_that_another_beat_had_locked_is_sent_soon_after_its_unlock(
    dynbeat, mine, clock, dispatcher, publisher
):
    mine.create("theirs", task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    engine = dynbeat.context.database.engine
    if engine.dialect.name == "sqlite":
        pytest.skip("one writer at a time")
    with engine.connect() as other:
        other.execute(select(Schedule.id).with_for_update())
        dispatcher.run_pass()
        clock.advance(timedelta(milliseconds=50))
        dispatcher.run_pass()
        assert not publisher.sent
        other.rollback()

    dispatcher.run_pass()

    assert [run.name for run in publisher.sent] == ["theirs"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_cost_of_a_poll_does_not_grow_while_a_transaction_is_open(dynbeat):
    engine = dynbeat.context.database.engine
    given = {"owner": "o", "task": "t", "trigger_kind": "every", "trigger_spec": "PT1S"}
    rows = [{**given, "name": str(number), "next_run_at": START} for number in range(ROWS)]
    with engine.begin() as connection:
        connection.execute(insert(Schedule), rows)
    with engine.connect() as idle:
        idle.execution_options(isolation_level="REPEATABLE READ").execute(select(Schedule.id))
        for seconds in range(1, REPEATS):
            at = START + timedelta(seconds=seconds)
            with engine.begin() as connection:
                connection.execute(update(Schedule).values(next_run_at=at))

        front = due.Watermark(no_due_before=at, no_overdue_before=at)
        everywhere, in_part = (blocks(dynbeat, where) for where in (due.NO_WATERMARK, front))

    assert in_part * 5 < everywhere


def blocks(dynbeat, front):
    """Return how many blocks the database reads for a poll."""
    engine = dynbeat.context.database.engine
    poll = partial(due.read_pending, now=START, until=START, watermark=front)
    with record_selects(engine) as selects:
        dynbeat.context.database.read(poll)
    (statement,) = selects
    compiled = statement.compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        explain = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}".replace(":", r"\:"))
        # Without this, the database scans such a small table sequentially.
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        (plan,) = connection.execute(explain).scalar_one()
    return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
