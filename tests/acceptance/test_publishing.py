"""Messages that a real broker accepts and refuses."""

import contextlib
import json
from datetime import timedelta

import pytest

from celery_dynbeat import Once
from tests.support.applications import execute
from tests.support.waiting import wait_until

POISONS = {
    "unserialisable": {"serializer": "no-such"},
    "unroutable": {"exchange": "nobody-declared-it", "routing_key": "x"},
}


def create_good_around(site, options):
    trigger = Once.after(timedelta(seconds=2))
    for name in ("a-good", "m-poison", "z-good"):
        site.mine.create(name, task="probe.record", trigger=trigger)
    # With SQL: the API rejects an unknown serializer.
    poison = "UPDATE dynbeat_schedule SET options = :options WHERE name = 'm-poison'"
    execute(site.dynbeat, poison, options=json.dumps(options))


def poison_is_quarantined_and_good_is_sent(site):
    for name in ("a-good", "z-good"):
        site.wait_for_run(name, "succeeded")
    failed = site.wait_for_run("m-poison", "failed")
    assert "cannot be sent" in failed.error
    assert "DispatchError" in site.mine.get("m-poison").error


@pytest.mark.parametrize("kind", POISONS)
def test_a_poison_message_on_rabbitmq_affects_no_other_run(rabbitmq_site, kind):
    create_good_around(rabbitmq_site, POISONS[kind])
    # A missing exchange may be declared within 91 s; this test shortens that to 3 s.
    rabbitmq_site.constants["celery_dynbeat.broker.outages.MAX_TRIES"] = 3

    beat = rabbitmq_site.beat()
    rabbitmq_site.worker()

    poison_is_quarantined_and_good_is_sent(rabbitmq_site)
    assert "pass failed" not in beat.text


def test_a_poison_message_on_redis_affects_no_other_run(redis_site):
    create_good_around(redis_site, POISONS["unserialisable"])

    redis_site.beat()
    redis_site.worker()

    poison_is_quarantined_and_good_is_sent(redis_site)


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
