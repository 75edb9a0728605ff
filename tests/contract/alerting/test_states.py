"""Alerts of quarantined, auto-paused, silent and frequently running schedules."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import Cron
from celery_dynbeat.alerts import checks
from celery_dynbeat.common.states import Status
from tests.contract.alerting.conftest import evaluation
from tests.support.applications import MINUTELY, execute

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LATER = timedelta(seconds=11)


def run_once(made, clock, status=Status.SUCCEEDED):
    clock.advance(MINUTE)
    made.worker.heartbeat()
    made.beat.run_until_idle()
    run = made.beat.publisher.sent[-1]
    assert made.worker.start(run)
    made.worker.finish(run, status)


def test_a_quarantined_schedule_is_alerted_until_it_is_repaired(alerting, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    execute(made.dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'nonsense'")
    clock.advance(MINUTE)
    made.beat.run_until_idle()
    made.alerts.run()
    (row,) = made.stored()
    assert row.kind == "quarantined"
    assert row.detail == made.mine.get("n").error[: len(row.detail)]

    made.mine.update("n", trigger=MINUTELY)
    clock.advance(LATER)
    made.alerts.run()
    assert made.open() == []


def test_a_quarantined_schedule_is_alerted(alerting, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    execute(made.dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'nonsense'")
    clock.advance(MINUTE)
    made.beat.run_until_idle()
    made.alerts.run()

    assert made.open() == ["quarantined"]


def test_an_automatic_pause_is_alerted_and_a_pause_by_a_caller_is_not(alerting, clock):
    made = alerting(alert_after_failures=0)
    made.mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=1)
    made.mine.create("other", task="t", trigger=HOUR)
    made.mine.pause("other", reason="x")
    run_once(made, clock, Status.FAILED)
    made.alerts.run()
    (row,) = made.stored()
    assert (row.kind, row.name) == ("paused", "n")
    assert row.detail.startswith("1 failures in a row")

    made.mine.resume("n")
    clock.advance(LATER)
    made.alerts.run()
    assert made.open() == []


def test_a_schedule_without_a_run_for_too_long_is_silent(alerting, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.set_rules("n", silent_after=600, watched=True)
    for _ in range(3):
        run_once(made, clock)
        made.alerts.run()
    assert made.stored() == []
    clock.advance(timedelta(minutes=11))
    made.alerts.run()
    (row,) = made.stored()
    assert (row.kind, row.value) == ("silent", 660.0)

    run_once(made, clock)
    clock.advance(LATER)
    made.alerts.run()
    assert made.open() == []


def test_schedules_that_are_older_than_the_setting_are_watched(alerting, clock, monkeypatch):
    monkeypatch.setattr(checks, "WINDOW", 2)
    made = alerting()
    for number in range(5):
        made.mine.create(f"n{number}", task="t", trigger=MINUTELY)
    made.mine.delete("n1")
    made.set_rules("n2", silent_after=0)
    alerts = evaluation(made.dynbeat, alert_silent_after=timedelta(minutes=10))
    clock.advance(timedelta(minutes=11))
    for _ in range(4):
        alerts.run()

    assert [row.name for row in made.stored() if row.kind == "silent"] == ["n0", "n3", "n4"]


def test_a_schedule_whose_runs_no_worker_starts_is_silent(alerting, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.set_rules("n", silent_after=600, watched=True)
    for _ in range(12):
        clock.advance(MINUTE)
        made.beat.run_until_idle()
        made.alerts.run()
    clock.advance(MINUTE)
    made.alerts.run()

    assert made.open() == []
    clock.advance(timedelta(minutes=2))
    made.alerts.run()
    assert made.open() == ["silent"]


def test_skipped_held_paused_and_future_schedules_are_not_silent(alerting, clock):
    made = alerting()
    make = made.mine.create
    make("paused", task="t", trigger=MINUTELY)
    made.mine.pause("paused")
    make("future", task="t", trigger=MINUTELY, start_at=clock.now() + HOUR)
    make("finished", task="t", trigger=MINUTELY, end_at=clock.now() + MINUTE)
    make("skipped", task="t", trigger=MINUTELY, overlap="skip")
    made.dynbeat.schedules.for_owner("held").create("held", task="t", trigger=MINUTELY)
    for name in ("paused", "future", "finished", "skipped", "held"):
        made.set_rules(name, silent_after=600, watched=True)
    made.dynbeat.schedules.for_owner("held").hold(reason="x")
    clock.advance(MINUTE)
    made.worker.heartbeat()
    made.beat.run_until_idle()
    # The run of "skipped" goes on, so its fire times are skipped.
    for run in made.beat.publisher.sent:
        made.worker.start(run)
    for _ in range(30):
        clock.advance(MINUTE)
        made.worker.heartbeat()
        made.beat.run_until_idle()
        made.alerts.run()

    assert made.stored() == []


def test_more_runs_than_the_rule_allows_are_frequent(alerting, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.set_rules("n", frequent_above=3, frequent_within=300, watched=True)
    for _ in range(3):
        run_once(made, clock)
        made.alerts.run()
    assert made.stored() == []
    for _ in range(4):
        run_once(made, clock)
        made.alerts.run()
    (row,) = made.stored()
    assert (row.kind, row.value) == ("frequent", 5.0)

    clock.advance(timedelta(minutes=6))
    made.alerts.run()
    assert made.open() == []


def test_a_watch_whose_rules_are_gone_is_deleted(alerting):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.set_rules("n", watched=True, after_failures=2)
    made.alerts.run()

    assert execute(made.dynbeat, "DELETE FROM dynbeat_alert_check") == 0


@pytest.mark.parametrize("joins", [False, True], ids=["own", "joined"])
def test_a_zone_in_which_a_schedule_never_fires_opens_an_alert_and_is_logged(
    alerting, caplog, joins
):
    made = alerting()
    # 02:00 on Monday in Seoul is on a Sunday in UTC.
    never = Cron("0 9 * * mon").excluding(Cron("0 2 * * mon", timezone="Asia/Seoul"))
    made.mine.create("n", task="t", trigger=never)

    with Session(made.dynbeat.context.database.engine) as session:
        made.mine.set_timezone("Asia/Seoul", session=session if joins else None)
        if joins:
            assert made.mine.get("n", session=session).error is not None
            assert quarantines(caplog) == []
        session.commit()
    made.alerts.run()

    assert made.open() == ["quarantined"]
    assert quarantines(caplog) == ["n"]


def quarantines(caplog):
    """Return the schedules that were logged as quarantined."""
    records = (vars(record) for record in caplog.records)
    return [each["schedule"] for each in records if each.get("event") == "schedule_quarantined"]


def test_a_rollback_of_the_caller_leaves_no_fact_and_no_record(alerting, caplog):
    made = alerting()
    never = Cron("0 9 * * mon").excluding(Cron("0 2 * * mon", timezone="Asia/Seoul"))
    made.mine.create("n", task="t", trigger=never)

    with Session(made.dynbeat.context.database.engine) as session:
        made.mine.set_timezone("Asia/Seoul", session=session)
        session.rollback()

    assert (made.facts(), quarantines(caplog)) == ([], [])
