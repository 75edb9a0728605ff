"""A slow call serves many callers, and a call that hangs blocks none of them."""

import threading
import time

from celery_dynbeat.metrics.exporting import CachedCall
from tests.support.waiting import wait_until


def test_callers_within_the_maximal_age_share_one_call():
    numbers = iter(range(10))
    cached = CachedCall(lambda: next(numbers), timeout=5, max_age=60)

    assert [cached.result(), cached.result()] == [0, 0]


def test_a_call_that_hangs_is_waited_for_once_and_not_repeated():
    calls, gate = [], threading.Event()

    def hang():
        calls.append(1)
        gate.wait(30)
        return "late"

    cached = CachedCall(hang, timeout=0.2, max_age=60)
    assert cached.result() is None
    began = time.monotonic()
    assert [cached.result() for _ in range(100)] == [None] * 100
    assert time.monotonic() - began < 0.2
    assert len(calls) == 1

    gate.set()
    wait_until(lambda: cached.result() == "late", within=5)
