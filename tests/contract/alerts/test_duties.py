"""The checks and the sending are duties with threads of their own."""

import threading
from datetime import timedelta

import pytest

from celery_dynbeat.alerts import checks
from celery_dynbeat.beat.alerting import CHECK_NODES, CHECK_SCHEDULES, SEND, AlertDuties
from tests.support.applications import MINUTELY
from tests.support.refusals import execute_ddl
from tests.support.sinks import HttpSink
from tests.support.waiting import wait_until

# The plug-ins of Apprise import deprecated modules of Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MINUTE = timedelta(minutes=1)


def fail(each, clock, name):
    each.mine.create(name, task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    each.run(succeeds=False)


def test_a_url_that_does_not_answer_delays_no_check(alerting, clock, monkeypatch):
    monkeypatch.setattr(checks, "EVERY", timedelta(milliseconds=50))
    with HttpSink().serving() as sink:
        sink.gate.clear()
        each = alerting(alert_urls=[sink.url])
        fail(each, clock, "first")
        each.check()
        duties = AlertDuties(each.dynbeat.context, node="b1")
        duties.start()
        try:
            wait_until(lambda: sink.received, within=20)
            fail(each, clock, "second")
            wait_until(lambda: ("failing", "second") in each.open, within=5)
            assert sink.bodies == []
        finally:
            sink.gate.set()
            duties.close()


def test_a_duty_about_alerts_that_fails_is_reported_and_ends_no_thread(alerting):
    each = alerting()
    execute_ddl(each.dynbeat, "ALTER TABLE dynbeat_alert RENAME TO moved")
    duties = AlertDuties(each.dynbeat.context, node="b1")
    duties.start()

    reported = wait_until(lambda: len(duties.report()) == 3 and duties.report(), within=20)

    assert {name for _, name, *_ in reported} == {CHECK_NODES, CHECK_SCHEDULES, SEND}
    assert {kind for kind, *_ in reported} == {"duty"}
    running = {each.name for each in threading.enumerate()}
    assert {f"dynbeat-{name}" for name in (CHECK_NODES, CHECK_SCHEDULES, SEND)} <= running
    duties.close()
