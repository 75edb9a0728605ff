"""The thread of alerts: it wakes after a fact, survives errors, and ends with its beat."""

import sys
import threading

import pytest

from celery_dynbeat.alerts.threads import AlertThread, AlertThreads
from celery_dynbeat.telemetry import emit, events
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def switch_interval():
    """Restore the interval after the test, and return it."""
    interval = sys.getswitchinterval()
    yield interval
    sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("before", "after"),
    [(0.005, 0.0005), (0.0001, 0.0001)],
)
def test_a_pass_of_beat_waits_half_a_millisecond_for_the_interpreter(sqlite_url, before, after):
    sys.setswitchinterval(before)
    with application(sqlite_url) as dynbeat:
        dynbeat.context.prepare()
        threads = AlertThreads(
            database=dynbeat.context.database,
            clock=dynbeat.context.clock,
            settings=dynbeat.context.settings,
            node="beat@test",
        )
        threads.start()
        threads.close()

    # Python counts whole microseconds.
    assert sys.getswitchinterval() == pytest.approx(after, abs=2e-6)


def test_a_fact_of_this_process_wakes_the_thread():
    passes = []
    thread = AlertThread(lambda: passes.append(1), interval=60.0)
    thread.start()
    try:
        wait_until(lambda: len(passes) == 1, within=5)
        emit(events.AlertFactsStored())
        wait_until(lambda: len(passes) == 2, within=5)
    finally:
        thread.close()

    assert not [each for each in threading.enumerate() if each.name == "dynbeat-alerts"]


def test_an_error_is_logged_once_and_the_thread_continues(caplog):
    passes = []

    def fail_twice():
        passes.append(1)
        if len(passes) <= 2:
            raise RuntimeError("secret")

    thread = AlertThread(fail_twice, interval=0.01, first_back_off=0.01)
    thread.start()
    try:
        wait_until(lambda: len(passes) > 3, within=5)
    finally:
        thread.close()

    events = [getattr(record, "event", None) for record in caplog.records]
    assert events.count("alert_pass_failed") == 1
    assert "secret" not in caplog.text


def test_close_does_not_wait_for_a_pass_that_hangs():
    hanging, release = threading.Event(), threading.Event()

    def hang():
        hanging.set()
        release.wait(30)

    thread = AlertThread(hang, close_timeout=0.05)
    thread.start()
    assert hanging.wait(5)
    thread.close()
    thread.close()
    release.set()


def test_a_pass_rests_after_each_transaction_and_ends_with_its_thread(alerting):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    execute(
        made.dynbeat,
        "INSERT INTO dynbeat_alert_fact (kind, schedule_id, at)"
        f" SELECT 'failed', id, '{START:%Y-%m-%d %H:%M:%S}' FROM dynbeat_schedule",
    )
    rests = []

    def rest(seconds):
        rests.append(seconds)
        return True

    made.alerts.run(rest=rest)

    assert made.open() == ["failed"]
    (seconds,) = rests
    assert seconds > 0
