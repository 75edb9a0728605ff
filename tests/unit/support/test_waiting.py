import time

import pytest

from tests.support.waiting import wait_until


def test_returns_the_first_truthy_value():
    values = iter([None, 0, "", "here", "later"])

    assert wait_until(lambda: next(values), within=5) == "here"


def test_says_what_was_awaited_and_what_came_instead():
    with pytest.raises(
        AssertionError, match=r"no run was sent \(within 0.05 s; last value: \[\]\)"
    ):
        wait_until(list, within=0.05, message="no run was sent")


def test_asks_once_more_after_the_deadline_has_passed():
    answers = iter([False, True])

    assert wait_until(lambda: time.sleep(0.05) or next(answers), within=0.01)


def test_leaves_the_error_of_the_condition_to_the_caller():
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, within=5)
