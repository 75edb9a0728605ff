"""Real beats send the messages about failed runs, and one of them is killed."""

import os
import signal

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat import AlertRules
from celery_dynbeat.db.alert_models import AlertMessage
from tests.support.sinks import HttpSink
from tests.support.waiting import wait_until

FAILING = [f"n{number}" for number in range(3)]


@pytest.fixture
def sinks(monkeypatch):
    """Yield a server that answers and one that does not."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HttpSink().serving() as answering, HttpSink().serving() as holding:
        holding.gate.clear()
        yield answering, holding


@pytest.fixture
def alerting_site(redis_site, sinks):
    """Return an installation whose schedules fail, with a target for each server."""
    answering, holding = sinks
    settings = {
        "dynbeat_alert_urls": {"default": [answering.url], "held": [holding.url]},
        # All alerts are in one message.
        "dynbeat_alert_delay": 5,
        "dynbeat_alert_timeout": 10,
    }
    redis_site.config |= settings
    redis_site.app.conf.update(settings)
    # The lease ends seconds after the kill of its beat, not a minute.
    redis_site.constants |= {
        "celery_dynbeat.alerts.sending.START_TIMEOUT": 1,
        "celery_dynbeat.alerts.sending.LEASE_MARGIN": 1,
    }
    return redis_site


def messages(site):
    with Session(site.dynbeat.context.database.engine) as session:
        return session.scalars(select(AlertMessage).order_by(AlertMessage.target)).all()


def named_in(bodies):
    """Return the schedules that each message names."""
    return [[name for name in FAILING if name in body["message"]] for body in bodies]


@pytest.mark.parametrize("with_delivery", [True, False], ids=["whole-beat", "only-beat"])
def test_the_messages_of_a_killed_beat_arrive_with_one_duplicate_at_most(
    alerting_site, sinks, with_delivery
):
    answering, holding = sinks
    beat = alerting_site.beat().wait_for_log("beat started")
    alerting_site.worker(pool="threads").wait_for_log("ready.")
    for name in FAILING:
        alerting_site.create_once(name, task="probe.fail")
        rules = AlertRules(to="held")
        alerting_site.create_once(f"held-{name}", task="probe.fail", alerts=rules)
    wait_until(lambda: holding.received, within=60)
    wait_until(
        lambda: [each.sent_at is None for each in messages(alerting_site)] == [False, True],
        within=30,
    )

    if with_delivery:
        beat.kill()
    else:
        # The process of the delivery continues, and its result is lost.
        os.kill(beat.pid, signal.SIGKILL)
    alerting_site.beat().wait_for_log("beat started")
    holding.gate.set()
    wait_until(lambda: all(each.sent_at for each in messages(alerting_site)), within=60)

    assert named_in(answering.bodies) == [FAILING]
    assert named_in(holding.received) == [FAILING, FAILING]
    assert [each.attempts for each in messages(alerting_site)] == [1, 2]
