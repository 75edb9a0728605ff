"""Messages that a real broker accepts and refuses."""

import contextlib
from datetime import timedelta

import pytest

from celery_dynbeat import Once
from tests.support.waiting import wait_until


@pytest.fixture(params=["redis_site", "rabbitmq_site"])
def eventful_site(request):
    made = request.getfixturevalue(request.param)
    made.config["task_send_sent_event"] = True
    return made


def test_the_signals_and_events_of_publishing_are_sent(eventful_site):
    events = []
    count = 20
    eventful_site.dynbeat.schedules.create_many(
        {
            "owner": "user:1",
            "name": f"noted-{n}",
            "task": "probe.record",
            "trigger": Once.after(timedelta(seconds=4)),
        }
        for n in range(count)
    )
    with eventful_site.app.connection() as connection:
        receiver = eventful_site.app.events.Receiver(connection, {"task-sent": events.append})
        with receiver.consumer_context() as (consuming, _channel, _consumers):
            eventful_site.beat()
            wait_until(lambda: collected(consuming, events, count), within=20)

    runs = [eventful_site.wait_for_run(f"noted-{n}", "sent") for n in range(count)]
    ids = {run.id for run in runs}
    assert {event["uuid"] for event in events} == ids
    for signal in ("before_publish", "after_publish"):
        assert {entry["run_id"] for entry in eventful_site.event_log.read(signal)} == ids


def collected(connection, events, count):
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.2)
    return len(events) >= count
