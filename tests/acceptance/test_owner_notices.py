"""Real beats and a worker tell an owner that a schedule fails, and that it works again."""

import pytest

from celery_dynbeat import Every
from tests.support.sinks import HttpSink
from tests.support.sites import OWNER
from tests.support.waiting import wait_until


@pytest.fixture
def sink(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HttpSink().serving() as sink:
        yield sink


@pytest.fixture
def notifying_site(redis_site, sink):
    """Return an installation with one owner who has a URL, and one whose notices are tasks."""
    settings = {
        "dynbeat_recipient": "tests.support.proj.recipient_of",
        "dynbeat_alert_delay": 0,
        "dynbeat_alert_interval": 0,
        "probe_recipients": {OWNER: [sink.url], "user:2": "probe.notice"},
    }
    redis_site.config |= settings
    redis_site.app.conf.update(settings)
    return redis_site


def wait_for_runs(calls, status, number):
    wait_until(lambda: len(calls.runs("n", status=status)) >= number, within=30)


def test_a_schedule_that_fails_and_recovers_is_two_notices(notifying_site, sink):
    site = notifying_site
    both = (site.mine, site.dynbeat.schedules.for_owner("user:2"))
    for _ in range(2):
        site.beat().wait_for_log("beat started")
    site.worker(pool="threads").wait_for_log("ready.")
    for calls in both:
        calls.create("n", task="probe.fail", trigger=Every(1))

    def notices():
        return site.event_log.read("notice")

    wait_until(lambda: sink.bodies and notices(), within=60)
    for calls in both:
        wait_for_runs(calls, "failed", 3)
        calls.update("n", task="probe.record")
    wait_until(lambda: len(sink.bodies) == 2 and len(notices()) == 2, within=60)
    for calls in both:
        wait_for_runs(calls, "succeeded", len(calls.runs("n", status="succeeded")) + 3)

    sent = [each for body in sink.bodies for each in body["alert"]["notices"]]
    assert [(each["owner"], each["kind"]) for each in sent] == [
        (OWNER, "failing"),
        (OWNER, "works_again"),
    ]
    assert [(each["owner"], each["kind"]) for each in notices()] == [
        ("user:2", "failing"),
        ("user:2", "works_again"),
    ]
    assert sink.bodies[0]["title"] == "n fails"
    assert sink.bodies[0]["message"].startswith("n has been failing since ")
    shown = str([sink.bodies, notices()])
    assert "probe." not in shown
    assert "ValueError" not in shown
