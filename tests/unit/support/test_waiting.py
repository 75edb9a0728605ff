import time

import pytest

from tests.support.waiting import wait_until


def test_returns_the_first_truthy_value():
    values = iter([None, 0, "", "here", "later"])

    assert wait_until(lambda: next(values), within=5) == "here"


def test_the_error_contains_the_message_and_the_last_value():
    with pytest.raises(
        AssertionError, match=r"no run was sent \(within 0.05 s; last value: \[\]\)"
    ):
        wait_until(list, within=0.05, message="no run was sent")


def test_calls_the_condition_once_more_after_the_deadline():
    answers = iter([False, True])

    assert wait_until(lambda: time.sleep(0.05) or next(answers), within=0.01)


def test_exceptions_of_the_condition_propagate():
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, within=5)
