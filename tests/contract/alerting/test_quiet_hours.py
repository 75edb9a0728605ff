"""Quiet hours make no run late and no schedule silent."""

from datetime import timedelta

import pytest

from celery_dynbeat import Cron
from celery_dynbeat.common.states import Status
from tests.support.applications import START

MINUTE, SECOND, HOUR = timedelta(minutes=1), timedelta(seconds=1), timedelta(hours=1)
#: An open alert is checked again after this time.
LATER = timedelta(seconds=11)


def fire(made):
    """Send the due run and execute it."""
    made.worker.heartbeat()
    made.beat.run_until_idle()
    run = made.beat.publisher.sent[-1]
    assert made.worker.start(run)
    made.worker.finish(run, Status.SUCCEEDED)


def test_a_late_alert_recovers_with_a_run_in_time_after_the_quiet_hours(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=Cron("0 10 * * *"))
    made.mine.set_quiet_hours(["09:30-12:00"])
    clock.move_to(START + 3 * HOUR + 20 * SECOND)
    fire(made)
    made.alerts.run()
    assert made.open() == ["late"]

    clock.move_to(START + 27 * HOUR)
    fire(made)
    clock.advance(LATER)
    made.alerts.run()

    assert made.open() == []


@pytest.mark.parametrize("policy", ["after", "skip"])
def test_a_schedule_is_not_silent_in_quiet_hours(alerting, clock, policy):
    made = alerting()
    made.mine.create("n", task="t", trigger=Cron("*/30 * * * *"))
    made.set_rules("n", silent_after=7200, watched=True)
    made.mine.set_quiet_hours(["22:00-07:00"], policy=policy)
    clock.move_to(START + 12 * HOUR + 30 * MINUTE)
    fire(made)

    for _ in range(19):
        clock.advance(30 * MINUTE)
        made.worker.heartbeat()
        made.beat.run_until_idle()
        clock.advance(LATER)
        made.alerts.run()
        assert made.open() == []


def test_a_schedule_that_does_not_run_after_quiet_hours_is_silent(alerting, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=Cron("*/30 * * * *"))
    made.set_rules("n", silent_after=7200, watched=True)
    made.mine.set_quiet_hours(["22:00-07:00"])
    clock.move_to(START + 12 * HOUR + 30 * MINUTE)
    fire(made)
    made.alerts.run()

    # Beat does not work from 21:30 on.
    clock.move_to(START + 22 * HOUR - LATER)
    made.alerts.run()
    assert "silent" not in made.open()
    clock.advance(LATER + 2 * MINUTE)
    made.alerts.run()

    assert "silent" in made.open()
