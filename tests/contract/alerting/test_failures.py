"""Alerts of failed and lost runs: opened once, counted, recovered, opened again."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from celery_dynbeat.alerts import alert_pass, checks
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Schedule
from tests.contract.alerting.conftest import evaluation
from tests.support.applications import MINUTELY, START, execute

MINUTE = timedelta(minutes=1)


@pytest.fixture
def end_run(clock):
    """Return a function that ends the next run of the application's only schedule."""

    def end_run(made, status=Status.FAILED):
        clock.advance(MINUTE)
        made.worker.heartbeat()
        made.beat.run_until_idle()
        run = made.beat.publisher.sent[-1]
        assert made.worker.start(run)
        made.worker.finish(run, status)
        # Beat notes the recovery of a schedule.
        made.beat.run_until_idle()
        return run

    return end_run


def test_a_failed_run_opens_one_alert_with_its_error(alerting, clock, end_run, reported):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    run = end_run(made)
    made.alerts.run()
    made.alerts.run()

    (row,) = made.stored()
    assert (row.kind, row.owner, row.name, row.target) == ("failed", "user:42", "n", "default")
    assert (row.run_id, row.detail, row.fact_count) == (run.run_id, "ValueError: no", 1)
    assert (row.opened_at, row.unsent, row.recovered_at) == (clock.now(), "opened", None)
    assert made.facts() == []
    ((name, event),) = reported
    assert (name, event.kind, event.schedule, event.task) == ("alert_opened", "failed", "n", "t")
    assert (event.run_id, event.detail) == (run.run_id, "ValueError: no")


def test_more_failures_are_counted_and_open_nothing(alerting, end_run, reported):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(3):
        run = end_run(made)
        made.alerts.run()

    (row,) = made.stored()
    assert (row.fact_count, row.run_id) == (3, run.run_id)
    assert [name for name, _ in reported] == ["alert_opened"]


def test_a_success_recovers_and_the_next_failure_is_a_new_opening(
    alerting, clock, end_run, reported
):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    made.alerts.run()
    sent = "UPDATE dynbeat_alert SET unsent = NULL, unsent_at = NULL"
    execute(made.dynbeat, sent)
    end_run(made, Status.SUCCEEDED)
    made.alerts.run()

    (row,) = made.stored()
    assert (row.recovered_at, row.unsent, row.checked_at) == (clock.now(), "recovered", None)

    clock.advance(timedelta(minutes=5))
    end_run(made)
    made.alerts.run()
    (row,) = made.stored()
    assert (row.recovered_at, row.unsent, row.opened_at) == (None, "opened", clock.now())
    assert row.fact_count == 1
    assert [name for name, _ in reported] == ["alert_opened", "alert_recovered", "alert_opened"]


def test_a_flapping_schedule_is_one_alert_that_counts(alerting, end_run, reported):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    made.alerts.run()
    (opened,) = made.stored()
    execute(made.dynbeat, "UPDATE dynbeat_alert SET unsent = NULL, unsent_at = NULL")
    for _ in range(5):
        for status in (Status.SUCCEEDED, Status.FAILED):
            end_run(made, status)
            made.alerts.run()

    (row,) = made.stored()
    # The messages know one opening, and no recovery.
    assert (row.recovered_at, row.unsent, row.opened_at) == (None, None, opened.opened_at)
    assert row.fact_count == 6
    assert len(reported) == 11


def test_an_opening_that_recovers_before_its_message_is_still_reported(alerting, end_run):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    made.alerts.run()
    end_run(made, Status.SUCCEEDED)
    made.alerts.run()

    (row,) = made.stored()
    assert row.recovered_at is not None
    assert row.unsent == "opened"


def test_a_failure_is_not_recovered_before_failing_since_is_written(alerting, clock, end_run):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    # The worker died between the end of the run and this column.
    made.dynbeat.context.database.run(
        lambda session: session.execute(update(Schedule).values(failing_since=None))
    )
    made.alerts.run()
    clock.advance(timedelta(seconds=11))
    made.alerts.run()

    assert made.open() == ["failed"]


def test_n_failures_in_a_row_open_the_alert(alerting, end_run):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.set_rules("n", after_failures=3)
    for status in (Status.FAILED, Status.FAILED, Status.SUCCEEDED, Status.FAILED, Status.FAILED):
        end_run(made, status)
        made.alerts.run()
        assert made.stored() == []
    end_run(made)
    made.alerts.run()

    assert made.open() == ["failed"]


def test_a_streak_that_has_ended_before_the_evaluation_opens_the_alert(alerting, end_run):
    made = alerting(alert_after_failures=2)
    made.mine.create("n", task="t", trigger=MINUTELY)
    for status in (Status.FAILED, Status.FAILED, Status.SUCCEEDED):
        end_run(made, status)
    made.alerts.run()

    assert [row.kind for row in made.stored()] == ["failed"]


def test_a_lost_run_opens_the_alert_lost_and_its_success_recovers_it(alerting, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY, max_runs=1)
    clock.advance(MINUTE)
    made.worker.heartbeat()
    made.beat.run_until_idle()
    (run,) = made.beat.publisher.sent
    made.worker.start(run)
    clock.advance(10 * MINUTE)
    made.beat.run_until_idle()
    made.alerts.run()
    assert made.open() == ["lost"]

    clock.advance(MINUTE)
    made.worker.finish(run)
    made.beat.run_until_idle()
    made.alerts.run()
    assert made.open() == []


def test_a_rule_of_zero_or_false_opens_nothing(alerting, end_run):
    made = alerting(alert_lost=False)
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.set_rules("n", after_failures=0)
    end_run(made)
    made.alerts.run()

    assert (made.stored(), made.facts()) == ([], [])


def test_an_alert_whose_rule_is_removed_closes_without_a_message(alerting, clock, end_run):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    made.alerts.run()
    made.set_rules("n", after_failures=0)
    clock.advance(timedelta(seconds=11))
    made.alerts.run()

    (row,) = made.stored()
    assert (row.recovered_at, row.unsent) == (clock.now(), None)


@pytest.mark.parametrize("point", ["locked", "applied", "deleted", "committed"])
def test_a_crash_at_any_point_neither_loses_nor_doubles_an_alert(
    alerting, end_run, reported, point
):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)

    def crash(reached):
        if reached == point:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluation(made.dynbeat, crash).run()
    made.alerts.run()

    (row,) = made.stored()
    assert (row.fact_count, made.facts()) == (1, [])
    assert [name for name, _ in reported] == ["alert_opened"]


def test_a_fact_of_a_deleted_schedule_is_only_deleted(alerting, end_run):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    made.mine.delete("n")
    made.alerts.run()

    assert (made.stored(), made.facts()) == ([], [])


def test_the_alert_of_a_deleted_schedule_is_deleted(alerting, clock, end_run):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    made.alerts.run()
    execute(made.dynbeat, "DELETE FROM dynbeat_run")
    execute(made.dynbeat, "DELETE FROM dynbeat_schedule")
    clock.advance(timedelta(seconds=11))
    made.alerts.run()

    assert made.stored() == []


def test_bad_rules_are_logged_once_and_the_settings_apply(alerting, end_run, caplog):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    execute(made.dynbeat, """UPDATE dynbeat_schedule SET alerts = '{"after_failures": "x"}'""")
    for _ in range(2):
        end_run(made)
        made.alerts.run()

    (row,) = made.stored()
    assert row.fact_count == 2
    events = [getattr(record, "event", None) for record in caplog.records]
    assert events.count("alert_rules_invalid") == 1


def test_an_unknown_target_becomes_the_default_one(alerting, end_run, caplog):
    made = alerting(alert_urls=["json://127.0.0.1"])
    made.mine.create("n", task="t", trigger=MINUTELY)
    execute(made.dynbeat, """UPDATE dynbeat_schedule SET alerts = '{"to": "gone"}'""")
    end_run(made)
    made.alerts.run()

    (row,) = made.stored()
    assert row.target == "default"
    assert "gone" in caplog.text


def add_fact(made, *, at):
    execute(
        made.dynbeat,
        "INSERT INTO dynbeat_alert_fact (kind, schedule_id, at)"
        f" SELECT 'failed', id, '{at:%Y-%m-%d %H:%M:%S}' FROM dynbeat_schedule",
    )


def test_an_older_fact_does_not_open_a_recovered_alert_again(alerting, end_run):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    made.alerts.run()
    end_run(made, Status.SUCCEEDED)
    made.alerts.run()
    # The outcome of an earlier run, written late.
    add_fact(made, at=START + timedelta(seconds=30))
    made.alerts.run()

    assert (made.open(), made.facts()) == ([], [])


def test_a_failure_after_the_clock_was_set_back_opens_a_recovered_alert(alerting, end_run, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    made.alerts.run()
    end_run(made, Status.SUCCEEDED)
    made.alerts.run()
    clock.move_to(START + timedelta(seconds=30))
    add_fact(made, at=clock.now())
    made.alerts.run()

    assert made.open() == ["failed"]


def test_a_schedule_that_was_created_before_the_clock_was_set_back_has_alerts(alerting, clock):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    clock.move_to(START - timedelta(hours=1))
    add_fact(made, at=clock.now())
    made.alerts.run()
    clock.advance(timedelta(seconds=11))
    made.alerts.run()

    assert made.open() == ["failed"]


def test_without_a_success_a_failure_never_recovers(alerting, clock, end_run):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    end_run(made)
    # The worker died between the end of the run and this column.
    made.dynbeat.context.database.run(
        lambda session: session.execute(update(Schedule).values(failing_since=None))
    )
    made.alerts.run()
    clock.advance(timedelta(hours=1))
    made.alerts.run()
    assert made.open() == ["failed"]

    end_run(made, Status.SUCCEEDED)
    made.alerts.run()
    assert made.open() == []


def test_one_pass_checks_more_open_alerts_than_one_transaction(alerting, clock, monkeypatch):
    monkeypatch.setattr(checks, "OPEN_WINDOW", 2)
    # A stalled machine must not end the pass after its first transactions.
    monkeypatch.setattr(alert_pass, "RECOVERY_BUDGET", 60.0)
    made = alerting()
    for number in range(5):
        made.mine.create(f"n{number}", task="t", trigger=MINUTELY)
    add_fact(made, at=clock.now())
    made.alerts.run()
    assert made.open() == ["failed"] * 5
    clock.advance(timedelta(seconds=11))
    for number in range(5):
        made.set_rules(f"n{number}", after_failures=0)
    made.alerts.run()

    assert made.open() == []
