"""The queue of a message, by its exchange and its routing key."""

import pytest
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

from celery_dynbeat.worker.task_guard import delivered_queue

REPORTS = Exchange("reports", type="topic")
DIRECT = Exchange("celery", type="direct")
QUEUES = [
    Queue("celery", DIRECT, routing_key="celery"),
    Queue("fast", DIRECT, routing_key="speed.high"),
    Queue("reports", REPORTS, routing_key="reports.#"),
    Queue("two", bindings=[binding(Exchange("a"), "x"), binding(Exchange("b"), "y")]),
]
DELAY = "0." * 26 + "1.1."


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("", "celery", "celery"),
        (None, "fast", "fast"),
        ("celery", "celery", "celery"),
        ("celery", "speed.high", "fast"),
        ("reports", "reports.user.42", "reports"),
        ("b", "y", "two"),
        ("celery_delayed_delivery", f"{DELAY}fast", "fast"),
        ("celery_delayed_delivery", f"{DELAY}speed.high", "fast"),
        ("celery", "unknown", None),
        ("other", "unknown", None),
        ("", "deleted", None),
    ],
)
def test_exchange_and_routing_key_give_the_queue(exchange, key, queue):
    assert delivered_queue({"exchange": exchange, "routing_key": key}, QUEUES) == queue


def test_a_worker_with_one_queue_received_each_message_from_it():
    info = {"exchange": "x", "routing_key": f"{DELAY}y"}

    assert delivered_queue(info, QUEUES[:1]) == "celery"


def test_a_broadcast_queue_has_its_alias():
    queues = [QUEUES[0], Broadcast("everyone")]

    assert delivered_queue({"exchange": "everyone", "routing_key": "x"}, queues) == "everyone"


def test_a_task_without_a_message_has_no_queue():
    assert delivered_queue({"is_eager": True}, QUEUES) is None
