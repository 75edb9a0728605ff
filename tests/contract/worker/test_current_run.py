"""What ``current_run()`` returns, in a task and elsewhere."""

from datetime import timedelta

import pytest
from celery._state import pop_current_task, push_current_task
from celery.app.task import Context
from sqlalchemy import event

from celery_dynbeat import Once, current_run
from celery_dynbeat.broker import admit
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def beat(dynbeat):
    return ManualBeat(dynbeat, run_tasks=True)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def define(dynbeat):
    """Return a function that registers a task."""

    def define(name, body, **options):
        # Celery generates code with the name of the function: a lambda has none.
        body.__name__ = "body"
        return dynbeat.app.task(name=name, shared=False, **options)(body)

    return define


def test_a_task_knows_its_run(define, seen, beat, clock, mine):
    define("t", lambda: seen.append(current_run()))
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)

    beat.run_until_idle()

    (run,) = mine.runs("n")
    (known,) = seen
    assert (known.run_id, known.owner, known.schedule) == (run.id, "user:42", "n")
    assert known.fire_at == run.fire_at == START + MINUTE
    assert (known.attempt, known.origin) == (1, "schedule")


def test_a_retry_is_a_new_attempt_of_the_same_run(define, seen, beat, clock, mine):
    def body(self):
        seen.append(current_run())
        if len(seen) == 1:
            raise self.retry(countdown=30)

    define("t", body, bind=True)
    mine.create("n", task="t", trigger=Once(START + MINUTE))
    for _ in range(2):
        clock.advance(MINUTE)
        beat.run_until_idle()

    first, second = seen
    assert (first.attempt, second.attempt) == (1, 2)
    assert (first.run_id, first.fire_at) == (second.run_id, second.fire_at)


def test_the_last_success_is_the_newest_fire_time_that_succeeded(define, seen, beat, clock, mine):
    def body():
        seen.append(current_run().last_success_at)
        if len(seen) == 2:
            raise ValueError

    define("t", body)
    mine.create("n", task="t", trigger=MINUTELY)
    mine.create("another", task="t", trigger=Once(START + timedelta(seconds=90)))
    mine.pause("another")
    for _ in range(4):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert seen == [None, START + MINUTE, START + MINUTE, START + 3 * MINUTE]


def test_the_last_success_is_read_once_and_only_when_it_is_used(
    dynbeat, define, seen, beat, clock, mine
):
    def count(*_):
        statements.append(1)

    def body():
        before = len(statements)
        run = current_run()
        seen.append(len(statements) - before)
        assert run.last_success_at == current_run().last_success_at == START + MINUTE
        seen.append(sum(1 for _ in statements[before:]))

    define("first", lambda: None)
    define("t", body)
    statements = []
    mine.create("n", task="first", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    mine.update("n", task="t")
    clock.advance(MINUTE)
    engine = dynbeat.context.database.engine
    event.listen(engine, "before_cursor_execute", count)
    beat.run_until_idle()
    event.remove(engine, "before_cursor_execute", count)

    assert mine.runs("n")[0].status == "succeeded"
    # PostgreSQL: a SET LOCAL comes with the query.
    assert seen in ([0, 1], [0, 2])


def test_there_is_no_current_run_outside_a_task():
    assert current_run() is None


def test_a_task_that_no_schedule_sent_has_no_current_run(define, seen):
    task = define("t", lambda: seen.append(current_run()))

    task.apply()
    task()

    assert seen == [None, None]


def test_a_task_that_a_scheduled_task_sends_has_no_current_run(
    dynbeat, define, seen, beat, clock, mine
):
    def body(depth=0):
        seen.append(current_run() is not None)
        if depth == 0:
            task.delay(1)
            task.apply_async([1], headers=task.request.headers)
            seen.append(current_run() is not None)

    dynbeat.app.conf.task_always_eager = True
    task = define("t", body)
    mine.create("n", task="t", trigger=Once(START + MINUTE))
    clock.advance(MINUTE)

    beat.run_until_idle()

    assert mine.runs("n")[0].status == "succeeded"
    assert seen == [True, False, False, True]


def test_a_message_that_a_scheduled_task_sends_has_no_run_headers(
    dynbeat, define, beat, clock, mine
):
    define("t", lambda: dynbeat.app.send_task("t"))
    mine.create("n", task="t", trigger=Once(START + MINUTE))
    clock.advance(MINUTE)
    # All tests of a process share the memory transport.
    with dynbeat.app.connection_for_write() as connection:
        connection.default_channel.queue_declare("celery")
        connection.default_channel.queue_purge("celery")

    beat.run_until_idle()

    with dynbeat.app.connection_for_read() as connection, connection.channel() as channel:
        message = channel.basic_get("celery", no_ack=True)
    assert message.headers["task"] == "t"
    assert [name for name in message.headers if name.startswith("dynbeat_")] == []


def test_a_task_that_is_called_as_a_function_belongs_to_the_run_of_its_caller(
    define, seen, beat, clock, mine
):
    def body(depth=0):
        seen.append(current_run().schedule)
        if depth == 0:
            task(1)
            inner()

    task = define("t", body)
    inner = define("inner", lambda: seen.append(current_run().schedule))
    mine.create("n", task="t", trigger=Once(START + MINUTE))
    clock.advance(MINUTE)

    beat.run_until_idle()

    assert seen == ["n", "n", "n"]


@pytest.fixture
def received(define):
    """Return a function that makes a message the present one, as a worker does."""
    task, run_id = define("received", lambda: None), "01900000-0000-7000-8000-000000000000"

    def receive(**headers):
        headers |= {
            "dynbeat_run_id": run_id,
            "dynbeat_schedule": "n",
            "dynbeat_owner": "user:42",
            "dynbeat_fire_at": START.isoformat(),
        }
        request = Context(headers, id=run_id, headers=headers, called_directly=False)
        task.push_request(**vars(request))
        push_current_task(task)
        return task.request

    yield receive
    pop_current_task()
    task.pop_request()


def test_without_its_header_the_origin_is_the_schedule(received):
    # A beat of a version that does not know the header.
    received(dynbeat_attempt=0)

    assert current_run().origin == "schedule"


def test_before_the_guard_decides_the_attempt_is_the_one_that_the_message_asks_for(received):
    request = received(dynbeat_attempt=1)
    before = current_run()
    # The guard of a requeued message.
    admit(request, 3)

    assert (before.attempt, current_run().attempt) == (2, 3)
