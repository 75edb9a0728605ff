"""Beat claims the next batch while the confirm of the last one runs, and never loses its error."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import AssertionPool, StaticPool, create_engine
from sqlalchemy.exc import OperationalError

from celery_dynbeat import Every, Once
from celery_dynbeat.beat import refused
from celery_dynbeat.beat.confirms import BackgroundExecutor
from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import runs
from celery_dynbeat.testing import FrozenClock, RecordingPublisher
from tests.support.applications import MINUTELY, application

MINUTE = timedelta(minutes=1)
BATCH = 2
NAMES = ["a", "b", "c"]


class LazyExecutor:
    """Runs a call when its result is needed. While ``is_unreachable``, the call fails instead."""

    def __init__(self):
        self.call = None
        self.is_unreachable = self.has_ended = False

    def submit(self, call):
        self.result()
        self.call = call

    def check(self):
        if self.has_ended:
            self.result()

    def result(self):
        call, self.call = self.call, None
        if call is None:
            return
        if self.is_unreachable:
            raise OperationalError("UPDATE", {}, OSError("unreachable"))
        call()

    def close(self):
        self.result()


@pytest.fixture
def executor():
    return LazyExecutor()


@pytest.fixture
def publisher():
    return RecordingPublisher()


@pytest.fixture
def mine(limited, monkeypatch):
    monkeypatch.setattr(refused, "BATCH_SIZE", BATCH)
    return limited().schedules.for_owner("user:42")


@pytest.fixture
def dispatcher(mine, clock, publisher, executor):
    """Give a dispatcher that has two batches before it."""
    for name in NAMES:
        mine.create(name, task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    return made(mine, clock, publisher, executor)


def made(mine, clock, publisher, executor):
    context = mine._context
    return Dispatcher(
        database=context.database,
        publisher=publisher,
        clock=clock,
        settings=context.settings,
        executor=executor,
    )


def idle(dispatcher):
    """Make passes until beat would sleep."""
    while dispatcher.run_pass() <= timedelta(0):
        pass


def states(mine):
    return sorted(run.status for run in mine.runs())


def test_the_next_batch_is_claimed_before_the_confirm_ends_and_sent_after_it(
    mine, dispatcher, publisher, executor, monkeypatch
):
    dispatcher.run_pass()
    assert states(mine) == ["pending"] * BATCH
    seen, publish = [], publisher.publish
    monkeypatch.setattr(publisher, "publish", lambda b: (seen.append(states(mine)), publish(b))[1])
    assert executor.call

    dispatcher.run_pass()

    assert seen == [["pending", "sent", "sent"]]
    assert sorted(run.name for run in publisher.sent) == NAMES


def test_the_confirm_ends_before_beat_sleeps(mine, dispatcher, executor):
    idle(dispatcher)

    assert executor.call is None
    assert states(mine) == ["sent"] * len(NAMES)


def test_a_batch_that_was_claimed_before_the_confirm_failed_is_sent_and_nothing_is_lost(
    mine, dispatcher, publisher, executor, clock
):
    dispatcher.run_pass()
    executor.is_unreachable = True
    with pytest.raises(OperationalError):
        dispatcher.run_pass()
    assert sorted(run.name for run in publisher.sent) == NAMES
    assert states(mine) == ["pending"] * len(NAMES)
    executor.is_unreachable = False

    clock.advance(mine._context.settings.dispatch_timeout)
    idle(dispatcher)

    assert states(mine) == ["sent"] * len(NAMES)
    assert {run.run_id for run in publisher.sent} == {run.id for run in mine.runs()}


def test_nothing_is_claimed_after_a_confirm_has_failed(mine, dispatcher, publisher, executor):
    dispatcher.run_pass()
    executor.is_unreachable = executor.has_ended = True
    with pytest.raises(OperationalError):
        dispatcher.run_pass()

    assert states(mine) == ["pending"] * BATCH
    assert len(publisher.sent) == BATCH


def test_what_is_being_confirmed_is_not_taken_for_overdue(
    mine, dispatcher, publisher, executor, clock
):
    mine.delete("c")
    dispatcher.run_pass()
    assert executor.call
    # No other run is due then. Sending one would wait for the confirm.
    for name in ("a", "b"):
        mine.update(name, trigger=Once(clock.now() + timedelta(days=1)), on_lost="record")
    dispatcher.reset_poller()
    clock.advance(mine._context.settings.dispatch_timeout)
    idle(dispatcher)

    assert sorted(run.name for run in publisher.sent) == ["a", "b"]


def test_a_run_that_is_being_confirmed_does_not_count_as_buffered(
    limited, clock, publisher, executor
):
    mine = limited().schedules.for_owner("user:42")
    mine.create("n", task="t", trigger=Every(1), overlap="buffer_one")
    dispatcher = made(mine, clock, publisher, executor)
    clock.advance(timedelta(seconds=1.95))
    dispatcher.run_pass()
    clock.advance(timedelta(seconds=0.1))
    idle(dispatcher)

    assert states(mine) == ["pending", "sent"]


def test_a_beat_on_postgresql_confirms_in_the_background_thread(postgresql_url):
    with application(postgresql_url) as dynbeat:
        assert dynbeat.context.database.supports_concurrent_writes
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=Every(1))
        executor = BackgroundExecutor()
        threads, confirm = set(), runs.mark_sent
        clock = dynbeat.context.clock
        assert isinstance(clock, FrozenClock)
        dispatcher = made(mine, clock, RecordingPublisher(), executor)
        with pytest.MonkeyPatch.context() as patched:

            def marked(*given, **named):
                threads.add(threading.current_thread().name)
                return confirm(*given, **named)

            patched.setattr(runs, "mark_sent", marked)
            for _ in range(20):
                clock.advance(timedelta(seconds=1))
                idle(dispatcher)
        dispatcher.close()

    assert threads == {"dynbeat-confirm"}


@pytest.mark.parametrize("pool", [StaticPool, AssertionPool])
def test_a_pool_that_shares_one_connection_does_not_support_concurrent_writes(postgresql_url, pool):
    engine = create_engine(postgresql_url, poolclass=pool)
    assert not Database(engine=engine).supports_concurrent_writes
