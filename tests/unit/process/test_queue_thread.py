"""A slow receiver costs its own thread: ``put`` never waits."""

import threading
import time

from celery_dynbeat.process.queue_thread import QueueThread
from tests.support.waiting import wait_until

LONG = 30.0


def closing(seconds):
    return time.monotonic() + seconds


def test_items_are_handled_in_order_before_the_close():
    handled = []
    queue = QueueThread(handled.append, name="test", size=10)

    assert all(queue.put(number) for number in range(10))

    assert queue.close(deadline=closing(LONG)) == 0
    assert handled == list(range(10))


def test_a_full_queue_refuses_an_item_while_the_receiver_hangs():
    gate, handled = threading.Event(), []

    def handle(item):
        handled.append(item)
        gate.wait(LONG)

    queue = QueueThread(handle, name="test", size=2)
    queue.put("handled")
    wait_until(lambda: handled, within=10)

    assert [queue.put(number) for number in range(4)] == [True, True, False, False]

    # One is handled, two are queued.
    assert queue.close(deadline=closing(0)) == 3
    gate.set()
    wait_until(lambda: not queue._thread.is_alive(), within=10)
    assert handled == ["handled"]


def test_no_thread_starts_without_an_item():
    queue = QueueThread(print, name="test", size=1)

    assert queue.close(deadline=closing(LONG)) == 0
    assert queue._thread is None
