"""A dispatched message is that of ``apply_async``; each difference has a reason."""

import json
from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery.app.task import Context
from celery.worker.strategy import proto1_to_proto2
from kombu import Exchange, Queue

from celery_dynbeat.broker import run_id_of
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.planning.plan import OutgoingRun
from tests.support.probe_applications import NOW, backwards_serializer, probe_application
from tests.support.versions import needs_celery

# Celery deprecates the priority and queue attributes of a task, and still reads them.
pytestmark = pytest.mark.filterwarnings("ignore:(?s).*task attribute is deprecated")

RUN_ID = "019e0000-0000-7000-8000-000000000001"
QUEUES = ("celery", "other", "bound")

#: Headers that only a dispatched message has, with the reason.
OWN_HEADERS = {
    "dynbeat_run_id": "the guard finds the run by it",
    "dynbeat_schedule": "the task and its logs see which schedule",
    "dynbeat_owner": "the task and its logs see the owner",
    "dynbeat_fire_at": "the task sees its fire time",
    "dynbeat_attempt": "the guard lets one message start the next attempt",
    "dynbeat_sent_at": "signals and metrics report how long a run waited",
    "celery_beat_task": "other tools recognise a scheduled task by it, as from Celery's own beat",
    "periodic_task_name": "other tools name the schedule by it",
}
#: Why a run with ``expires_after`` leaves Celery's header out.
EXPIRY = "the guard uses the database's clock, Celery the clock of the worker's host"

#: name: configuration, options of the task, options of the schedule.
CASES = {
    "plain": ({}, {}, {}),
    "ignore_result of the task": ({}, {"ignore_result": True}, {}),
    "task_ignore_result": ({"task_ignore_result": True}, {}, {}),
    "ignore_result of the task, wanted by the schedule": (
        {},
        {"ignore_result": True},
        {"ignore_result": False},
    ),
    "ignore_result of the schedule": ({}, {}, {"ignore_result": True}),
    "task_store_errors_even_if_ignored": (
        {"task_store_errors_even_if_ignored": True, "task_ignore_result": True},
        {},
        {},
    ),
    "task_annotations": (
        {"task_annotations": {"probe": {"ignore_result": True, "priority": 3, "time_limit": 9}}},
        {},
        {},
    ),
    "priority of the task": ({}, {"priority": 7}, {}),
    "priority of the schedule": ({}, {"priority": 7}, {"priority": 0}),
    "task_default_priority": ({"task_default_priority": 4}, {}, {}),
    "task_inherit_parent_priority": ({"task_inherit_parent_priority": True}, {}, {"priority": 1}),
    "task_queue_max_priority": ({"task_queue_max_priority": 10}, {"priority": 2}, {}),
    "expires of the task": ({}, {"expires": 90}, {}),
    "expires of the task, of parts of a second": ({}, {"expires": 0.5}, {}),
    "expires of the task at an instant": ({}, {"expires": NOW + timedelta(hours=1)}, {}),
    "expires of the task in the past": ({}, {"expires": NOW - timedelta(hours=1)}, {}),
    "time limits of the task": ({}, {"time_limit": 60, "soft_time_limit": 30}, {}),
    "time limits of the configuration": ({"task_time_limit": 5, "task_soft_time_limit": 4}, {}, {}),
    "time limits of the schedule": ({}, {"time_limit": 60}, {"time_limit": 7}),
    "serializer of the task": ({}, {"serializer": "backwards"}, {}),
    "a serializer of one's own": ({"task_serializer": "backwards"}, {}, {}),
    "serializer of the schedule": ({}, {}, {"serializer": "backwards"}),
    "compression of the task": ({}, {"compression": "gzip"}, {}),
    "task_compression": ({"task_compression": "zlib"}, {}, {}),
    "queue of the task": ({}, {"queue": "other"}, {}),
    "queue of the schedule": ({}, {"queue": "celery"}, {"queue": "other"}),
    "exchange and routing key": ({}, {}, {"exchange": "topics", "routing_key": "a.b"}),
    "task_routes": ({"task_routes": {"probe": {"queue": "other", "priority": 8}}}, {}, {}),
    "task_routes and the task": (
        {"task_routes": {"probe": {"queue": "other", "priority": 8}}},
        {"priority": 2},
        {},
    ),
    "a router": ({"task_routes": (lambda *_args, **_more: "other",)}, {}, {}),
    "delivery_mode": ({}, {"delivery_mode": 1}, {}),
    "task_default_delivery_mode": ({"task_default_delivery_mode": "transient"}, {}, {}),
    "shadow": ({}, {}, {"shadow": "nicer"}),
    "countdown": ({}, {}, {"countdown": 12}),
    "headers": ({}, {}, {"headers": {"tenant": "blue"}}),
    "track_started": ({"task_track_started": True}, {}, {}),
    "rate_limit and max_retries": ({}, {"rate_limit": "1/s", "max_retries": 9}, {}),
    "task_send_sent_event": ({"task_send_sent_event": True}, {}, {}),
    "task_repr_maxlevels": ({"task_repr_maxlevels": 1}, {}, {}),
    "enable_utc": ({"enable_utc": False, "timezone": "Asia/Seoul"}, {"expires": 60}, {}),
}


@pytest.fixture(autouse=True)
def _serializer():
    with backwards_serializer():
        yield


@pytest.fixture(params=[1, 2], ids=["protocol 1", "protocol 2"])
def protocol(request):
    return request.param


@pytest.mark.parametrize("case", CASES)
def test_a_message_is_that_of_apply_async_but_for_our_headers(case, protocol):
    configuration, of_task, options = CASES[case]
    app = application({**configuration, "task_protocol": protocol}, of_task)

    ours, theirs = sent_by_us(app, options), sent_by_celery(app, options)

    assert {name for name in ours["headers"] if name not in theirs["headers"]} == set(OWN_HEADERS)
    assert without_own_headers(ours) == theirs


@needs_celery(5, 7, "send_task without a value for ignore_result")
def test_a_task_that_beat_does_not_know_is_sent_as_by_send_task():
    app = application({"task_ignore_result": True}, {})

    ours = sent_by_us(app, {}, task="elsewhere")
    app.send_task("elsewhere", [1, "b"], {"key": [1, [2, [3]]]}, task_id=RUN_ID)

    # None: the worker looks at its own task.
    assert ours["headers"]["ignore_result"] is None
    assert without_own_headers(ours) == received(app)


def test_expires_after_leaves_celerys_own_expiry_out():
    app = application({}, {"expires": 5})
    expires_at = NOW + timedelta(minutes=2)

    ours, theirs = sent_by_us(app, {}, expires_at=expires_at), sent_by_celery(app, {"expires": 120})

    assert ours["headers"].pop("dynbeat_expires_at") == expires_at.isoformat()
    assert ours["headers"].pop("expires") is None, EXPIRY
    assert theirs["headers"].pop("expires") == expires_at.isoformat()
    assert without_own_headers(ours) == theirs


def test_a_worker_finds_the_run_in_a_message_of_protocol_1():
    app = application({"task_protocol": 1}, {})
    ours = sent_by_us(app, {})
    message = SimpleNamespace(headers=ours["headers"])

    _, request, *_ = proto1_to_proto2(message, json.loads(ours["body"]))

    assert run_id_of(Context(request, called_directly=False)) == RUN_ID


def application(configuration, of_task):
    bound = Queue("bound", Exchange("topics", type="topic"), routing_key="a.*")
    return probe_application("memory://", configuration, of_task, queues=[bound])


def sent_by_us(app, options, *, task="probe", expires_at=None):
    run = OutgoingRun(
        run_id=RUN_ID,
        schedule_id=1,
        owner="user:42",
        name="digest",
        version=1,
        task=task,
        args=[1, "b"],
        kwargs={"key": [1, [2, [3]]]},
        options=options,
        fire_at=NOW,
        expires_at=expires_at,
    )
    publisher = Publisher(app, now=lambda: NOW)
    try:
        assert publisher.publish([run]).sent == [RUN_ID]
    finally:
        publisher.close()
    return received(app)


def sent_by_celery(app, options):
    task = app.tasks["probe"]
    task.apply_async([1, "b"], {"key": [1, [2, [3]]]}, task_id=RUN_ID, **options)
    return received(app)


def received(app):
    """Return all that the only message says, in whichever queue it is."""
    with app.connection_for_read() as connection:
        found = [
            message
            for name in QUEUES
            if (message := connection.default_channel.basic_get(name, no_ack=True))
        ]
    (message,) = found
    properties = {key: value for key, value in message.properties.items() if key != "delivery_tag"}
    return {
        "headers": dict(message.headers),
        "properties": properties,
        "body": message.body,
        "content": (message.content_type, message.content_encoding),
    }


def without_own_headers(message):
    headers = {key: value for key, value in message["headers"].items() if key not in OWN_HEADERS}
    return {**message, "headers": headers}
