"""A job beside the rest: one after the other, and no error is lost."""

import threading

import pytest

from celery_dynbeat.beside import AtOnce, Beside


class AwayError(Exception):
    """The database is away."""


def fail():
    raise AwayError


@pytest.fixture
def beside():
    made = Beside()
    yield made
    made.close()


def test_who_begins_a_job_goes_on_while_it_waits(beside):
    answered, done = threading.Event(), []

    def job():
        assert answered.wait(10)
        done.append(threading.current_thread())

    beside.begin(job)
    assert not done
    answered.set()
    beside.settle()

    assert done
    assert done[0] is not threading.current_thread()


def test_jobs_are_done_one_after_the_other(beside):
    done = []
    for number in range(100):
        beside.begin(lambda number=number: done.append(number))
        assert done[: number - 1] == list(range(max(0, number - 1)))
    beside.settle()

    assert done == list(range(100))


@pytest.mark.parametrize("ask", [Beside.settle, lambda beside: beside.begin(lambda: None)])
def test_what_a_job_raises_is_raised_once_by_who_asks_next(beside, ask):
    beside.begin(fail)
    with pytest.raises(AwayError):
        ask(beside)

    beside.settle()


def test_the_end_waits_for_a_job_and_hears_no_error():
    beside, answered, done = Beside(), threading.Event(), []

    def job():
        assert answered.wait(10)
        done.append(1)
        fail()

    beside.begin(job)
    threading.Timer(0.05, answered.set).start()
    beside.close()

    assert done


def test_at_once_is_done_before_it_goes_on():
    at_once, done = AtOnce(), []
    at_once.begin(lambda: done.append(1))
    assert done
    with pytest.raises(AwayError):
        at_once.begin(fail)

    at_once.settle()
    at_once.close()
