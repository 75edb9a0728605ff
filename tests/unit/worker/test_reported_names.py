"""The queues and the tasks that a worker reports."""

import json

import pytest
from celery import Celery
from kombu import Queue
from kombu.common import Broadcast

from celery_dynbeat.worker.bootsteps import MAX_NAMES_LENGTH, reported_names


@pytest.fixture
def app():
    return Celery("proj", broker="memory://", set_as_current=False)


def queues_of(app):
    return json.loads(reported_names(app).queues)


def test_a_worker_without_a_choice_consumes_all_queues(app):
    assert queues_of(app) == ["celery"]

    app.conf.task_queues = [Queue("b"), Queue("a")]
    app.amqp.__dict__.pop("queues")

    assert queues_of(app) == ["a", "b"]


def test_queues_that_are_chosen_added_and_cancelled(app):
    # As -Q, and as the remote control commands add_consumer and cancel_consumer.
    app.amqp.queues.select(["b", "a"])
    chosen = queues_of(app)
    app.amqp.queues.select_add("c")
    app.amqp.queues.deselect(["a"])

    assert (chosen, queues_of(app)) == (["a", "b"], ["b", "c"])


def test_a_broadcast_queue_is_reported_by_its_alias(app):
    app.conf.task_queues = [Broadcast("all")]

    assert queues_of(app) == ["all"]


def test_the_tasks_are_those_of_the_registry(app):
    @app.task(name="mail.send", shared=False)
    def send():
        pass

    app.finalize()

    assert "mail.send" in json.loads(reported_names(app).tasks)
    assert "celery.backend_cleanup" in json.loads(reported_names(app).tasks)


def test_a_list_that_is_too_long_is_not_reported(app):
    app.amqp.queues.select(["x" * MAX_NAMES_LENGTH])

    assert reported_names(app).queues is None
    assert reported_names(app).tasks is not None
