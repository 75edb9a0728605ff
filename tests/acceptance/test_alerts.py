"""Two beats report alerts, and one of them is killed while it sends a message."""

import time
from datetime import timedelta

from sqlalchemy import select

from celery_dynbeat.db.models import Lock
from tests.support.applications import execute
from tests.support.sinks import HttpSink
from tests.support.waiting import wait_until

ALERT = "stopped of schedule 'report' of owner 'user:1'"


def alert_of(site):
    (found,) = site.mine.alerts(only_open=False)
    return found


def texts(beats):
    return "\n".join(beat.text for beat in beats)


def test_a_message_is_repeated_after_its_beat_was_killed_and_the_recovery_is_reported_once(
    redis_site,
):
    site = redis_site
    with HttpSink().serving() as sink:
        sink.gate.clear()
        site.config |= {"dynbeat_alert_urls": [sink.url]}
        site.constants |= {
            "celery_dynbeat.alerts.checks.EVERY": 0.5,
            "celery_dynbeat.alerts.sending.EVERY": 0.5,
            "celery_dynbeat.alerts.sending.INTERVAL": 0,
            "celery_dynbeat.alerts.sending.TIMEOUT": 5,
            "celery_dynbeat.alerts.sending.LEASE_MARGIN": 5,
        }
        site.mine.create("report", task="probe.record", trigger=timedelta(hours=1))
        set_aside = "UPDATE dynbeat_schedule SET error = 'bad', next_run_at = NULL"
        execute(site.dynbeat, set_aside)
        beats = [site.beat(), site.beat()]

        wait_until(lambda: sink.received, within=30)
        with site.dynbeat.context.database.engine.connect() as connection:
            name = connection.scalar(select(Lock.leased_by).where(Lock.name == "alerts"))
        (sender,) = (beat for beat in beats if name.endswith(f":{beat.pid}"))
        sender.kill()
        sink.gate.set()
        left = [beat for beat in beats if beat is not sender]
        wait_until(lambda: alert_of(site).reported_at is not None, within=30)
        left.append(site.beat())
        left[-1].wait_for_log("beat started")

        opened = "report of user:1 is stopped"
        assert [body["title"] for body in sink.received] == [f"[proj] {opened}"] * 2
        assert texts(beats).count(f"alert {ALERT}\n") == 1

        site.mine.update("report", trigger=timedelta(hours=2))
        wait_until(lambda: len(sink.received) > 2, within=10)
        # The time of several passes of both beats.
        time.sleep(3)

        titles = [body["title"] for body in sink.received[2:]]
        assert titles == ["[proj] report of user:1 is no longer stopped"]
        assert texts(left).count(f"alert {ALERT} has ended") == 1
