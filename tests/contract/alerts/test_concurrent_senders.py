"""Beats with their own connections send at the same time."""

import threading
from collections import Counter

from celery_dynbeat.alerts.messages import Messages
from tests.contract.alerts.test_messages import DELAY, INTERVAL, stored

TARGETS = [f"t{number}" for number in range(12)]
BEATS = 3


def send_at_the_same_time(beats):
    """Make each beat look for work at the same time, twice."""
    start, errors = threading.Barrier(BEATS), []

    def work(messages):
        try:
            start.wait(10)
            messages.run_once()
            messages.run_once()
        except Exception as error:  # noqa: BLE001 - the assertion shows it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in beats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_beats_that_send_at_the_same_time_send_each_message_once(
    limited, add_alerts, clock, deliveries
):
    urls = {"default": [], **{name: [f"json://{name}"] for name in TARGETS}}
    # Each has its own connections.
    applications = [limited(alert_urls=urls) for _ in range(BEATS)]
    beats = [
        Messages(
            database=each.context.database,
            clock=clock,
            settings=each.context.settings,
            node=f"beat{number}",
            deliver=deliveries,
        )
        for number, each in enumerate(applications)
    ]
    for count in (1, 2):
        for name in TARGETS:
            add_alerts(applications[0], 2, prefix=f"{name}-{count}-", target=name, at=clock.now())
        clock.advance(INTERVAL if count > 1 else DELAY)
        send_at_the_same_time(beats)

        sent = Counter(each.urls[0] for each in deliveries.made)
        assert sent == dict.fromkeys((f"json://{name}" for name in TARGETS), count)
        assert {each.content.total for each in deliveries.made} == {2}
    assert {each.attempts for each in stored(applications[0])} == {1}
