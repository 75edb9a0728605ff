"""The pass opens an alert for each state that needs attention, and ends it with the state."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from celery_dynbeat.broker import outages
from celery_dynbeat.process.left_out import RETRY_AFTER
from celery_dynbeat.store import alerts
from tests.support.applications import MINUTELY, execute
from tests.support.lock_waits import wait_for_lock_wait
from tests.support.refusals import accept, refuse
from tests.support.suites import each_database

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@each_database
def test_a_failing_schedule_is_an_alert_until_a_run_succeeds(alerting, clock, reported):
    each = alerting()
    each.mine.create("digest", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    each.run(succeeds=False)
    each.check()

    (alert,) = each.alerts()
    assert (alert.kind, alert.schedule, alert.cause) == ("failing", "digest", "ValueError: no")
    assert alert.run_id == each.mine.runs("digest").items[0].id

    each.run(succeeds=True)
    each.check()

    assert each.open == []
    assert [(name, event.owner, event.schedule) for name, event in reported] == [
        ("alert_opened", "user:42", "digest"),
        ("alert_recovered", "user:42", "digest"),
    ]


def test_a_schedule_that_its_failures_paused_is_stopped_until_it_is_resumed(alerting, clock):
    each = alerting()
    each.mine.create("digest", task="t", trigger=MINUTELY, pause_after_failures=1)
    clock.advance(MINUTE)
    each.run(succeeds=False)
    clock.advance(MINUTE)
    each.send_runs()
    each.check()

    assert each.open == [("stopped", "digest")]

    each.mine.resume("digest")
    each.check()

    assert ("stopped", "digest") not in each.open


def test_a_quarantined_schedule_is_stopped_until_an_edit(alerting):
    each = alerting()
    each.mine.create("digest", task="t", trigger=MINUTELY)
    execute(each.dynbeat, "UPDATE dynbeat_schedule SET error = 'bad', next_run_at = NULL")
    each.check()

    assert [(alert.kind, alert.cause) for alert in each.alerts()] == [("stopped", "bad")]

    each.mine.update("digest", trigger=MINUTELY)
    each.check()

    assert each.open == []


def test_an_overdue_schedule_is_late_until_it_is_sent(alerting, clock):
    each = alerting(alert_late_after=MINUTE)
    each.mine.create("digest", task="t", trigger=MINUTELY)
    clock.advance(5 * MINUTE)
    each.check()

    (alert,) = each.alerts()
    assert (alert.kind, alert.cause) == ("late", "due, and not sent")

    each.run(succeeds=True)
    each.passes[0] = each.new_pass()
    each.passes[0].run()

    assert each.open == []


@each_database
def test_a_run_that_no_worker_starts_is_late(alerting, clock):
    each = alerting(alert_late_after=MINUTE)
    each.mine.create("digest", task="t", trigger="0 10 * * *")
    clock.advance(timedelta(hours=1))
    (run,) = each.send_runs()
    clock.advance(MINUTE)
    each.check()

    assert [(alert.cause, alert.run_id) for alert in each.alerts()] == [
        ("sent, and not started", run.run_id)
    ]

    each.worker.start(run)
    each.check()

    assert each.open == []


def test_the_runs_of_one_schedule_hide_no_other_late_schedule(alerting, clock, monkeypatch):
    monkeypatch.setattr(alerts, "LIMIT", 2)
    each = alerting(alert_late_after=2 * MINUTE)
    for name in ("often", "rare"):
        each.mine.create(name, task="t", trigger=MINUTELY, overlap="allow")
    each.mine.update("rare", trigger=timedelta(hours=1))
    for _ in range(70):
        clock.advance(MINUTE)
        each.beat.run_until_idle()
    clock.advance(3 * MINUTE)
    each.beat.run_until_idle()
    each.check()
    each.check()

    assert sorted(name for kind, name in each.open if kind == "late") == ["often", "rare"]


def test_a_run_that_does_not_finish_within_its_time_is_late(alerting, clock):
    each = alerting()
    each.mine.create("digest", task="t", trigger="0 10 * * *", finish_within=5 * MINUTE)
    clock.advance(timedelta(hours=1))
    (run,) = each.send_runs()
    assert each.worker.start(run)
    each.check()
    assert each.open == []

    clock.advance(5 * MINUTE)
    each.check()

    (alert,) = each.alerts()
    assert alert.cause == "not finished within 5 min of its fire time"
    assert alert.run_id == run.run_id

    each.worker.finish(run)
    each.check()

    assert each.open == []


def test_a_late_alert_says_how_long_the_last_runs_waited_and_took(alerting, clock):
    each = alerting(alert_late_after=MINUTE)
    each.mine.create("digest", task="t", trigger=MINUTELY, overlap="skip")
    clock.advance(MINUTE)
    (run,) = each.send_runs()
    clock.advance(timedelta(seconds=10))
    each.worker.start(run)
    clock.advance(3 * MINUTE)
    each.worker.finish(run)
    each.check()

    (alert,) = each.alerts()
    assert alert.cause == (
        "due, and not sent; of its last 1 runs, each waited 10 s for a worker and took 3 min"
        " on average"
    )


def beat_for(each, clock, duration, *, every=MINUTE):
    """Let beat make passes while no worker starts a run."""
    for _ in range(duration // every):
        clock.advance(every)
        each.worker.heartbeat()
        each.beat.run_until_idle()


@pytest.mark.parametrize("starts", ["never", "hangs"])
@each_database
def test_a_schedule_whose_fire_times_start_no_run_is_silent_until_a_run_starts(
    alerting, clock, starts
):
    each = alerting(alert_silent_after=10 * MINUTE)
    overlap = "skip" if starts == "hangs" else "allow"
    each.mine.create("digest", task="t", trigger=MINUTELY, overlap=overlap)
    each.mine.create("weekly", task="t", trigger="0 9 * * MON")
    clock.advance(MINUTE)
    (run,) = each.send_runs()
    if starts == "hangs":
        assert each.worker.start(run)
    beat_for(each, clock, 9 * MINUTE)
    each.check()
    assert each.open == []

    beat_for(each, clock, 3 * MINUTE)
    each.check()
    assert each.open == [("silent", "digest")]

    if starts == "hangs":
        each.worker.finish(run)
        clock.advance(MINUTE)
        (run,) = each.send_runs()
    assert each.worker.start(run)
    each.check()
    assert each.open == []


@pytest.mark.parametrize("waits_for", ["skip", "quiet hours", "hold", "pause"])
def test_a_schedule_that_does_not_run_on_purpose_is_not_silent(alerting, clock, waits_for):
    each = alerting(alert_silent_after=10 * MINUTE)
    each.mine.create("digest", task="t", trigger="0 * * * *")
    (fire_time,) = each.mine.upcoming("digest", count=1)
    if waits_for == "skip":
        each.mine.skip("digest", fire_time.fire_at)
    elif waits_for == "hold":
        each.mine.hold()
    elif waits_for == "pause":
        each.mine.pause("digest", until=70 * MINUTE)
    else:
        each.mine.set_quiet_hours([f"{clock.now():%H:%M}-{fire_time.fire_at + 2 * HOUR:%H:%M}"])
    beat_for(each, clock, 90 * MINUTE, every=10 * MINUTE)
    each.check()

    assert clock.now() > fire_time.fire_at + 20 * MINUTE
    assert each.open == []


@pytest.mark.parametrize("state", ["new", "open"])
@each_database
def test_two_beats_at_once_report_an_alert_and_its_recovery_once(alerting, clock, reported, state):
    each = alerting()
    if each.database.capabilities.embedded:
        pytest.skip("SQLite has one writer")
    each.passes.append(each.new_pass())
    each.mine.create("digest", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    each.run(succeeds=False)
    if state == "open":
        each.check()
        each.run(succeeds=True)
        reported.clear()
    clock.advance(MINUTE)
    table = "dynbeat_alert" if state == "open" else "dynbeat_lock"
    with ThreadPoolExecutor(2) as pool:
        with each.database.engine.begin() as connection:
            # Both have read the state when one of them may write it.
            each.database.run(alerts.lock)
            connection.exec_driver_sql(f"SELECT * FROM {table} FOR UPDATE")
            ended = [pool.submit(one.run) for one in each.passes]
            wait_for_lock_wait(each.database.engine, sessions=2)
        for future in ended:
            future.result()

    kind = "alert_recovered" if state == "open" else "alert_opened"
    assert [name for name, _ in reported] == [kind]


@pytest.mark.parametrize("after", [1, 2])
@each_database
def test_the_number_of_statements_does_not_depend_on_the_number_of_failing_schedules(
    alerting, clock, executed, after
):
    each = alerting(alert_after_failures=after)

    def failing_with(*names):
        each.mine.create_many([{"name": name, "task": "t", "trigger": MINUTELY} for name in names])
        for _ in range(after):
            clock.advance(MINUTE)
            each.run(succeeds=False)
        before = len(executed)
        each.check()
        return len(executed) - before

    executed(each.database)
    assert failing_with("a") == failing_with("b", "c", "d", "e")
    assert len(each.open) == 5


@each_database
def test_an_alert_that_the_database_refuses_delays_no_other(alerting, clock):
    each = alerting()
    for name in ("a", "bad", "c"):
        each.mine.create(name, task="t", trigger=MINUTELY)
    refuse(each.dynbeat, action="INSERT", table="dynbeat_alert", when="NEW.name = 'bad'")
    clock.advance(MINUTE)
    each.run(succeeds=False)
    each.check_and_send()

    assert each.open == [("failing", "a"), ("failing", "c")]
    assert each.servers.titles == ["[contract] 2 schedules are failing"]
    (warning,) = each.left_out.report(clock.now())
    assert "'bad' of 'user:42'" in warning.name

    accept(each.dynbeat, table="dynbeat_alert")
    clock.advance(RETRY_AFTER)
    each.check()
    assert ("failing", "bad") in each.open


@pytest.mark.usefixtures("at_once")
@each_database
def test_an_end_and_a_report_that_the_database_refuses_delay_no_other(alerting, clock):
    each = alerting()
    for name in ("a", "bad", "c"):
        each.mine.create(name, task="t", trigger=MINUTELY)
    refuse(each.dynbeat, action="UPDATE", table="dynbeat_alert", when="NEW.name = 'bad'")
    clock.advance(MINUTE)
    each.run(succeeds=False)
    each.check_and_send()
    reported = {alert.schedule: alert.reported_at is not None for alert in each.alerts()}
    assert reported == {"a": True, "bad": False, "c": True}

    each.run(succeeds=True)
    clock.advance(RETRY_AFTER)
    each.check_and_send()

    assert each.open == [("failing", "bad")]
    assert each.servers.titles[1:] == ["[contract] 2 schedules no longer fail"]


def test_a_killed_beat_is_an_alert_at_once_until_another_one_starts(alerting):
    each = alerting()
    each.live_for(10 * MINUTE, "b1", "b2", every=MINUTE)
    each.live_for(100 * timedelta(seconds=1), "b1")
    each.send()

    assert each.open == [("beats_missing", "")]
    assert each.servers.titles == ["[contract] beats are missing"]

    each.heartbeat("b3")
    each.live_for(MINUTE, "b1", "b3")
    each.send()

    assert each.open == []
    assert each.servers.titles[1:] == ["[contract] no beat is missing any more"]
    assert "b2" not in each.servers.messages[1].body


def test_a_beat_with_a_duty_that_fails_can_send(alerting):
    each = alerting()
    duty = outages.ReportedOutage("duty", "prune runs", "", "IntegrityError")
    report = outages.Outages(each.clock.now).report([duty])
    each.live_for(10 * MINUTE, "b1", outages=report)

    assert each.open == []


def test_a_beat_whose_broker_is_away_is_stopped(alerting):
    each = alerting()
    each.live_for(10 * MINUTE, "b1", every=MINUTE)
    each.live_for(MINUTE, "b1", error="the broker is unreachable")
    each.send()

    (alert,) = each.alerts()
    assert (alert.kind, alert.schedule) == ("stopped", "")
    assert alert.cause == "b1: the broker is unreachable"
    assert each.servers.titles == ["[contract] a beat cannot send runs"]

    each.live_for(MINUTE, "b1")

    assert each.open == []


def test_a_failure_counts_from_the_number_that_the_setting_names(alerting, clock):
    each = alerting(alert_after_failures=2)
    each.mine.create("digest", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    each.run(succeeds=False)
    each.check()
    assert each.open == []

    each.run(succeeds=False)
    each.check()

    assert each.open == [("failing", "digest")]
