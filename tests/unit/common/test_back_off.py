"""Each delay of a back-off is twice the last one, up to a maximum."""

import random

import pytest

from celery_dynbeat.common.clock import BackOff
from celery_dynbeat.notify import reconnect_back_off

LISTENER_DELAYS = [1, 2, 4, 8, 16, 30, 30, 30]


def within(pauses, limits):
    return all(0.75 * limit <= pause <= limit for pause, limit in zip(pauses, limits, strict=True))


def test_each_delay_of_a_listener_is_twice_the_last_up_to_half_a_minute():
    back_off = reconnect_back_off()

    assert within([back_off.next_delay() for _ in LISTENER_DELAYS], LISTENER_DELAYS)


def test_after_a_success_the_delays_start_again():
    back_off = reconnect_back_off()
    for _ in LISTENER_DELAYS:
        back_off.next_delay()

    back_off.reset()

    assert within([back_off.next_delay()], [1])


@pytest.mark.parametrize("jitter", [0.25, 0.5])
def test_jitter_only_shortens_a_delay(jitter):
    delays = [BackOff(first=1.0, maximum=1.0, jitter=jitter).next_delay() for _ in range(1_000)]

    assert 1 - jitter <= min(delays) < max(delays) <= 1


def test_a_delay_leaves_the_random_numbers_of_the_application_alone():
    before = random.getstate()

    BackOff(first=1.0, maximum=8.0, jitter=0.5).next_delay()

    assert random.getstate() == before
