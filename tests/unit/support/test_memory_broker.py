"""Each test starts with an empty ``memory://`` broker, which all tests of a process share."""

import kombu
import pytest


@pytest.mark.parametrize("order", ["first", "second"])
def test_the_memory_broker_has_no_message_of_an_earlier_test(order):
    with kombu.Connection("memory://") as connection:
        queue = connection.SimpleQueue("celery")
        assert queue.qsize() == 0
        queue.put(order)
        assert queue.qsize() == 1
