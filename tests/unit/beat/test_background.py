"""A call beside the rest: one after the other, and no error is lost."""

import threading

import pytest

from celery_dynbeat.beat.background import AtOnce, Beside
from celery_dynbeat.common.events import Event
from tests.support.waiting import wait_until


class AwayError(Exception):
    """The database is away."""


def fail():
    raise AwayError


@pytest.fixture
def beside():
    made = Beside()
    yield made
    made.close()


def test_who_begins_a_call_goes_on_while_it_waits(beside):
    answered, done = threading.Event(), []

    def call():
        assert answered.wait(10)
        done.append(threading.current_thread())

    beside.begin(call)
    assert not done
    answered.set()
    beside.settle()

    assert done
    assert done[0] is not threading.current_thread()


def test_calls_are_made_one_after_the_other(beside):
    done = []
    for number in range(100):
        beside.begin(lambda number=number: done.append(number))
        assert done[: number - 1] == list(range(max(0, number - 1)))
    beside.settle()

    assert done == list(range(100))


@pytest.mark.parametrize("ask", [Beside.settle, lambda beside: beside.begin(lambda: None)])
def test_what_a_call_raises_is_raised_once_by_who_asks_next(beside, ask):
    beside.begin(fail)
    with pytest.raises(AwayError):
        ask(beside)

    beside.settle()


def test_what_a_call_has_raised_is_there_to_see_without_a_wait(beside):
    answered = threading.Event()

    def call():
        assert answered.wait(10)
        fail()

    beside.begin(call)
    beside.check()
    answered.set()
    with pytest.raises(AwayError):
        wait_for_error(beside)

    beside.check()


def wait_for_error(beside):
    wait_until(lambda: beside.check() is not None, within=5, message="no error came")


def test_the_end_waits_for_a_call_and_tells_of_its_error(caplog):
    beside, answered, done = Beside(), threading.Event(), []

    def call():
        assert answered.wait(10)
        done.append(1)
        fail()

    beside.begin(call)
    threading.Timer(0.05, answered.set).start()
    beside.close()

    assert done
    assert [record.event for record in caplog.records] == [Event.CONFIRM_UNKNOWN]


def test_the_end_does_not_wait_for_ever(caplog, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.beat.background.CLOSE_TIMEOUT", 0.05)
    beside, answered = Beside(), threading.Event()
    beside.begin(lambda: answered.wait(10) and None)
    beside.close()
    answered.set()

    assert [record.event for record in caplog.records] == [Event.CONFIRM_UNKNOWN]


def test_at_once_is_done_before_it_goes_on():
    at_once, done = AtOnce(), []
    at_once.begin(lambda: done.append(1))
    assert done
    with pytest.raises(AwayError):
        at_once.begin(fail)

    at_once.check()
    at_once.settle()
    at_once.close()
