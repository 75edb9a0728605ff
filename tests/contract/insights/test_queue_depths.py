"""How many messages wait in the queues of the schedules, on real brokers."""

import socket

import pytest
from celery import Celery

from celery_dynbeat import Dynbeat
from celery_dynbeat.health import queue_depths
from celery_dynbeat.health.probes import collect_queue_depths
from celery_dynbeat.health.queue_depths import QueueDepth
from celery_dynbeat.testing import FrozenClock
from tests.support.applications import MINUTELY, START


@pytest.fixture
def installation(sqlite_url):
    """Return a function that makes an application with this broker, and its schedules' owner."""
    made = []

    def make(broker_url, **settings):
        app = Celery("depths", broker=broker_url, set_as_current=False)
        app.conf.update(
            dynbeat_database_url=sqlite_url,
            dynbeat_create_tables=True,
            dynbeat_notifier="polling",
            **settings,
        )
        made.append(Dynbeat(app, clock=FrozenClock(START)))
        mine = made[-1].schedules.for_owner("user:42")
        for name, queue in (("a", "mail"), ("b", "mail"), ("c", "empty"), ("d", None)):
            mine.create(name, task="t", trigger=MINUTELY, **({"queue": queue} if queue else {}))
        return app

    yield make
    for dynbeat in made:
        dynbeat.context.database.dispose()


@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_the_messages_of_each_queue_of_the_schedules_are_counted(request, installation, broker):
    app = installation(request.getfixturevalue(f"{broker}_url"))
    for queue, count in (("mail", 3), ("celery", 1), ("other", 2)):
        for _ in range(count):
            app.send_task("t", queue=queue)
    with app.connection_for_write() as connection:
        app.amqp.queues.select_add("empty")(connection.default_channel).declare()

    found = collect_queue_depths(app)

    expected = {"mail": 3, "celery": 1, "empty": 0}
    assert {each.name: each.messages for each in found.queues} == expected
    assert found.queues[0].name == "mail"
    assert (found.error, found.is_cut) == (None, False)


def test_a_queue_that_does_not_exist_says_so_and_others_are_counted(installation, amqp_url):
    app = installation(amqp_url)
    app.send_task("t", queue="mail")

    found = {each.name: each for each in collect_queue_depths(app).queues}

    assert found["mail"].messages == 1
    error = "the broker has no such queue"
    assert found["empty"] == QueueDepth(name="empty", messages=None, error=error)


def test_messages_of_each_priority_count(installation, redis_url):
    app = installation(redis_url)
    for priority in (0, 9):
        app.send_task("t", queue="mail", priority=priority)

    [mail, *_] = collect_queue_depths(app).queues

    assert mail.messages == 2


def test_a_broker_that_does_not_answer_has_unknown_numbers_in_time(installation, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.health.probes.BROKER_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        app = installation(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")

        found = collect_queue_depths(app)

    assert {each.messages for each in found.queues} == {None}
    assert len(found.queues) == 3
    assert found.error


def test_the_number_of_queues_is_bounded(installation, redis_url, monkeypatch):
    monkeypatch.setattr(queue_depths, "MAX_QUEUES", 1)

    found = collect_queue_depths(installation(redis_url))

    assert ([each.name for each in found.queues], found.is_cut) == (["mail"], True)
