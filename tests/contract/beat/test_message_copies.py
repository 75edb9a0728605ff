"""A message that is copied on Redis equals the one that Celery and kombu build for the run."""

import json
from datetime import timedelta
from operator import itemgetter

import pytest
import redis
from celery.signals import after_task_publish, before_task_publish
from kombu import Exchange, Queue

from celery_dynbeat import Retry
from celery_dynbeat.broker.message_copies import MessageCopy
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.planning.plan import OutgoingRun
from tests.support.probe_applications import NOW, backwards_serializer, probe_application
from tests.support.versions import needs_celery

# Celery deprecates the priority and queue attributes of a task, and still reads them.
pytestmark = pytest.mark.filterwarnings("ignore:(?s).*task attribute is deprecated")

#: name: configuration, options of the task. The messages of the task are copied.
COPIED = {
    "plain": ({}, {}),
    "ignore_result": ({}, {"ignore_result": True}),
    "priority": ({}, {"priority": 7}),
    "time limits": ({}, {"time_limit": 60, "soft_time_limit": 30}),
    "queue of the task": ({}, {"queue": "other"}),
    "task_routes": ({"task_routes": {"pro*": {"queue": "other", "priority": 8}}}, {}),
    "exchange of the task": ({}, {"exchange": "other", "routing_key": "other"}),
    "delivery_mode": ({}, {"delivery_mode": 1}),
    "global_keyprefix": ({"broker_transport_options": {"global_keyprefix": "us:"}}, {}),
}
#: The same for tasks whose messages Celery builds one by one.
BUILT = {
    "protocol 1": ({"task_protocol": 1}, {}),
    "compression": ({"task_compression": "zlib"}, {}),
    "another serializer": ({"task_serializer": "backwards"}, {}),
    "expires of the task": ({}, {"expires": 90}),
    "a router": ({"task_routes": (lambda *_args, **_more: "other",)}, {}),
    "task_send_sent_event": ({"task_send_sent_event": True}, {}),
}


@pytest.fixture(autouse=True)
def _serializer():
    with backwards_serializer():
        yield


@pytest.fixture
def copies(monkeypatch):
    """Give the ids of the runs whose messages were copied."""
    ids = []
    add = MessageCopy.add

    def recorded(self, pipeline, run_id, **content):
        ids.append(run_id)
        add(self, pipeline, run_id, **content)

    monkeypatch.setattr(MessageCopy, "add", recorded)
    return ids


@needs_celery(5, 7, "a kombu that sends batches to Redis")
@pytest.mark.parametrize("case", COPIED)
def test_a_copied_message_equals_a_built_one(redis_url, case, copies):
    runs = [outgoing(number) for number in range(5)]
    app = probe_application(redis_url, *COPIED[case])

    together = sent(app, redis_url, runs)
    copied = list(copies)
    separately = [message for run in runs for message in sent(app, redis_url, [run])]

    assert copied == [run.run_id for run in runs[2:]] == copies
    assert together == separately


@pytest.mark.parametrize("case", BUILT)
def test_a_message_that_may_depend_on_the_run_is_built(redis_url, case, copies):
    runs = [outgoing(number) for number in range(4)]
    app = probe_application(redis_url, *BUILT[case])

    together = sent(app, redis_url, runs)
    separately = [message for run in runs for message in sent(app, redis_url, [run])]

    assert not copies
    assert together == separately


@pytest.mark.parametrize(
    "payload",
    [
        {"args": [1, "b"], "kwargs": {"key": None}},
        {"kwargs": {"name": 'it\'s "Jos\u00e9" \\ \U0001f600\n'}},
        {"kwargs": {"nested": {"deep": [1, [2]]}}},
        {"args": ["a" * 5_000]},
        {"name": 'say "hi"\\', "owner": "\u65e5\u672c"},
        {"pings": True, "origin": "manual", "overlap": "buffer_one", "attempt": 3},
        {"options": {"priority": 3, "headers": {"tenant": "blue"}}},
        {"expires_at": NOW + timedelta(hours=1)},
        {"retries": 2},
        {"retry": Retry(max_retries=3, until_next_fire=True), "next_fire_at": NOW},
    ],
    ids=repr,
)
def test_each_run_of_a_batch_has_its_own_content(redis_url, payload):
    runs = [outgoing(0), outgoing(1), outgoing(2), outgoing(3, **payload), outgoing(4)]
    app = probe_application(redis_url, {}, {})

    together = sent(app, redis_url, runs)

    separately = [message for run in runs for message in sent(app, redis_url, [run])]
    assert together == sorted(separately, key=itemgetter("queue"))


def test_no_two_messages_have_the_same_delivery_tag(redis_url):
    runs = [outgoing(number) for number in range(600)]
    app = probe_application(redis_url, {}, {})

    publish(app, runs)

    messages = stored(redis_url)
    assert [message["headers"]["id"] for message in messages] == [run.run_id for run in runs]
    assert len({message["properties"]["delivery_tag"] for message in messages}) == len(runs)


@needs_celery(5, 7, "a kombu that sends batches to Redis")
def test_messages_after_a_pipeline_that_kombu_executed_early_are_sent(redis_url):
    # A message to a queue that expires takes five commands, and kombu executes a thousand at once.
    expiring = Queue("expiring", Exchange("expiring"), routing_key="expiring", expires=3600)
    routes = {"slow": {"queue": "expiring"}}
    app = probe_application(redis_url, {"task_routes": routes}, {}, queues=[expiring])
    tasks = ["a", "a", "b", "b", "c", *["slow"] * 199, *["a"] * 30, *["b"] * 16]
    runs = [outgoing(number, task=task) for number, task in enumerate(tasks)]

    publish(app, runs)

    assert {message["headers"]["id"] for message in stored(redis_url)} == {
        run.run_id for run in runs
    }


@pytest.mark.parametrize("signal", [before_task_publish, after_task_publish])
def test_a_receiver_of_a_signal_gets_each_message(redis_url, signal):
    runs = [outgoing(number) for number in range(4)]
    received = []

    def receive(headers, **_):
        received.append(headers["id"])

    signal.connect(receive)
    try:
        publish(probe_application(redis_url, {}, {}), runs)
    finally:
        signal.disconnect(receive)

    assert received == [run.run_id for run in runs]


def test_a_replaced_method_of_celery_gets_each_message(redis_url):
    runs = [outgoing(number) for number in range(4)]
    app = probe_application(redis_url, {}, {})
    send, sent_tasks = app.amqp.send_task_message, []

    def replaced(producer, name, message, **options):
        sent_tasks.append(message.headers["id"])
        return send(producer, name, message, **options)

    app.amqp.send_task_message = replaced
    publish(app, runs)

    assert sent_tasks == [run.run_id for run in runs]


def outgoing(number, **fields):
    values = {
        "run_id": f"019e0000-0000-7000-8000-{number:012}",
        "schedule_id": number,
        "owner": f"user:{number}",
        "name": f"digest {number}",
        "version": 1,
        "task": "probe",
        "args": [],
        "kwargs": {"user_id": number},
        "options": {},
        "fire_at": NOW - timedelta(seconds=number),
    }
    return OutgoingRun(**{**values, **fields})


def publish(app, runs):
    publisher = Publisher(app, now=lambda: NOW)
    try:
        assert publisher.publish(runs).sent == [run.run_id for run in runs]
    finally:
        publisher.close()


def sent(app, redis_url, runs):
    """Publish the runs and return their messages without what is new in each message."""
    publish(app, runs)
    messages = stored(redis_url)
    for message in messages:
        del message["properties"]["delivery_tag"]
    return messages


def stored(redis_url):
    """Return the messages in all queues, oldest first, and remove them."""
    with redis.Redis.from_url(redis_url) as client:
        queues = sorted(key for key in client.scan_iter() if client.type(key) == b"list")
        texts = [(key, text) for key in queues for text in reversed(client.lrange(key, 0, -1))]
        for key in queues:
            client.delete(key)
    return [{"queue": key, **json.loads(text)} for key, text in texts]
