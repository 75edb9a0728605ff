"""The executors run calls in order and lose no error."""

import threading

import pytest

from celery_dynbeat.beat.confirms import BackgroundExecutor, Executor
from celery_dynbeat.common.events import Event
from tests.support.waiting import wait_until


class UnreachableError(Exception):
    """The database is unreachable."""


def fail():
    raise UnreachableError


@pytest.fixture
def executor():
    made = BackgroundExecutor()
    yield made
    made.close()


def test_the_caller_continues_while_the_call_runs_in_another_thread(executor):
    released, done = threading.Event(), []

    def call():
        assert released.wait(10)
        done.append(threading.current_thread())

    executor.submit(call)
    assert not done
    released.set()
    executor.result()

    assert done
    assert done[0] is not threading.current_thread()


def test_calls_run_one_after_the_other(executor):
    done = []
    for number in range(100):
        executor.submit(lambda number=number: done.append(number))
        assert done[: number - 1] == list(range(max(0, number - 1)))
    executor.result()

    assert done == list(range(100))


@pytest.mark.parametrize(
    "wait", [BackgroundExecutor.result, lambda executor: executor.submit(lambda: None)]
)
def test_the_error_of_a_call_is_raised_once_by_the_next_wait(executor, wait):
    executor.submit(fail)
    with pytest.raises(UnreachableError):
        wait(executor)

    executor.result()


def test_check_raises_the_error_of_an_ended_call_once_and_does_not_wait(executor):
    released = threading.Event()

    def call():
        assert released.wait(10)
        fail()

    executor.submit(call)
    executor.check()
    released.set()
    with pytest.raises(UnreachableError):
        wait_for_error(executor)

    executor.check()


def wait_for_error(executor):
    wait_until(lambda: executor.check() is not None, within=5, message="check raised no error")


def test_close_waits_for_the_last_call_and_logs_its_error(caplog):
    executor, released, done = BackgroundExecutor(), threading.Event(), []

    def call():
        assert released.wait(10)
        done.append(1)
        fail()

    executor.submit(call)
    threading.Timer(0.05, released.set).start()
    executor.close()

    assert done
    assert [record.event for record in caplog.records] == [Event.CONFIRM_UNKNOWN]


def test_close_stops_waiting_after_its_timeout(caplog, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.beat.confirms.CLOSE_TIMEOUT", 0.05)
    executor, released = BackgroundExecutor(), threading.Event()
    executor.submit(lambda: released.wait(10) and None)
    executor.close()
    released.set()

    assert [record.event for record in caplog.records] == [Event.CONFIRM_UNKNOWN]


def test_the_inline_executor_runs_a_call_within_submit():
    executor, done = Executor(), []
    executor.submit(lambda: done.append(1))
    assert done
    with pytest.raises(UnreachableError):
        executor.submit(fail)

    executor.check()
    executor.result()
    executor.close()
