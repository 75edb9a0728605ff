"""Late and slow runs: reported by claims and workers, and by what beat reads while they last."""

from datetime import timedelta

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.store.alerts.facts import MAX_FACTS
from celery_dynbeat.worker.outcome_recorder import Outcome, Subject
from tests.support.applications import MINUTELY, START

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
LATER = timedelta(seconds=11)


@pytest.fixture
def claim_late(clock):
    """Return a function that claims the run of 09:01 with a delay, and starts it."""

    def claim_late(made, delay):
        clock.move_to(START + MINUTE + delay)
        made.worker.heartbeat()
        made.beat.run_until_idle()
        run = made.beat.publisher.sent[-1]
        made.worker.start(run)
        return run

    return claim_late


def finish(made, run, *, seconds):
    """Record the success of a run whose body took some seconds."""
    outcome = Outcome(
        run_id=run.run_id,
        attempt=1,
        worker="w1",
        status=Status.SUCCEEDED,
        at=made.dynbeat.context.clock.now(),
        subject=Subject(duration=timedelta(seconds=seconds)),
    )
    made.worker._recorder.record(outcome)


def kinds_and_names(made):
    return [(row.kind, row.name) for row in made.stored()]


def start_all(made):
    for run in made.beat.publisher.sent:
        made.worker.start(run)


def test_a_run_that_is_claimed_late_opens_the_alert(alerting, claim_late, reported):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    run = claim_late(made, 7 * SECOND)
    made.alerts.run()

    (row,) = made.stored()
    assert (row.kind, row.run_id, row.value) == ("late", run.run_id, 7.0)
    assert [name for name, _ in reported] == ["alert_opened", "run_late"]
    assert reported[1][1].value == 7 * SECOND


def test_a_run_in_time_recovers_it(alerting, clock, claim_late):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    claim_late(made, 7 * SECOND)
    made.alerts.run()
    clock.advance(LATER)
    made.alerts.run()
    assert made.open() == ["late"]

    claim_late(made, MINUTE)
    clock.advance(LATER)
    made.alerts.run()
    assert made.open() == []


@pytest.mark.parametrize(("own", "kinds"), [(3, ["late"]), (30, []), (0, [])])
def test_the_own_rule_comes_before_the_setting(alerting, claim_late, own, kinds):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.set_rules("n", late_after=own)
    claim_late(made, 4 * SECOND if own == 3 else 7 * SECOND)
    made.alerts.run()

    assert made.open() == kinds


def test_an_own_rule_that_cannot_be_read_quarantines_no_schedule(alerting, claim_late):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.set_rules("n", late_after={"late_after": [1]})
    claim_late(made, 7 * SECOND)
    made.alerts.run()

    assert made.mine.get("n").error is None
    assert made.open() == ["late"]


def test_jitter_is_not_late(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY, jitter=50)
    due_at = made.mine.get("n").next_run_at
    assert due_at > START + MINUTE + 7 * SECOND
    clock.move_to(due_at)
    made.beat.run_until_idle()

    assert made.facts() == []


def test_after_a_hold_no_run_is_late(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.mine.hold(reason="x")
    clock.advance(MINUTE)
    made.beat.run_until_idle()
    clock.advance(timedelta(seconds=30))
    made.mine.release()
    made.beat.run_until_idle()
    start_all(made)
    made.alerts.run()
    assert len(made.beat.publisher.sent) == 1
    assert kinds_and_names(made) == []

    made.dynbeat.schedules.hold(reason="x")
    for _ in range(5):
        clock.advance(MINUTE)
        made.worker.heartbeat()
        made.beat.run_until_idle()
        made.alerts.run()
    made.dynbeat.schedules.release()
    made.beat.run_until_idle()
    start_all(made)
    made.alerts.run()

    assert len(made.beat.publisher.sent) == 2
    assert kinds_and_names(made) == []


def test_runs_that_are_late_again_do_not_recover_it_with_any_number_of_them(alerting, clock):
    made = alerting(alert_late_after=5, batch_size=500)
    row = {"owner": "user:42", "task": "t", "trigger": MINUTELY}
    number = MAX_FACTS + 20
    made.dynbeat.schedules.create_many([{**row, "name": f"n{each}"} for each in range(number)])
    clock.advance(MINUTE + 7 * SECOND)
    # What is overdue opens the alert of each, not only of those whose claim stores a fact.
    made.alerts.run()
    assert len(made.open()) == number
    for lateness in (7 * SECOND, 7 * SECOND):
        made.worker.heartbeat()
        made.beat.run_until_idle()
        start_all(made)
        clock.advance(LATER)
        made.alerts.run()
        assert len(made.open()) == number
        clock.advance(MINUTE + lateness - LATER)


def test_a_run_that_jitter_delays_recovers_it(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY, jitter=50)

    def claim_and_start(*, late):
        clock.move_to(made.mine.get("n").next_run_at + late)
        made.worker.heartbeat()
        made.beat.run_until_idle()
        made.worker.start(made.beat.publisher.sent[-1])
        made.alerts.run()

    claim_and_start(late=7 * SECOND)
    assert made.open() == ["late"]
    claim_and_start(late=0 * SECOND)
    clock.advance(LATER)
    made.alerts.run()

    assert made.open() == []


def test_a_burst_of_late_runs_stores_a_bounded_number_of_facts(alerting, clock):
    made = alerting(alert_late_after=5, batch_size=500)
    row = {"owner": "user:42", "task": "t", "trigger": MINUTELY}
    made.dynbeat.schedules.create_many([{**row, "name": f"n{each}"} for each in range(300)])
    clock.advance(MINUTE + 7 * SECOND)
    made.beat.run_until_idle()

    assert len(made.facts()) == MAX_FACTS
    assert {fact.value for fact in made.facts()} == {7.0}


def test_an_overdue_schedule_is_late_while_the_broker_is_away(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.mine.create("paused", task="t", trigger=MINUTELY)
    made.mine.pause("paused")
    clock.advance(MINUTE + 7 * SECOND)
    made.alerts.run()

    (row,) = made.stored()
    assert (row.kind, row.name, row.value) == ("late", "n", 7.0)


def test_an_overdue_schedule_of_a_held_owner_is_not_late(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    made.mine.hold(reason="x")
    clock.advance(5 * MINUTE)
    made.alerts.run()
    assert made.stored() == []

    made.mine.release()
    made.dynbeat.schedules.hold(reason="x")
    clock.advance(5 * MINUTE)
    made.alerts.run()
    made.dynbeat.schedules.release()
    clock.advance(LATER - 7 * SECOND)
    made.alerts.run()
    assert made.stored() == []


def test_a_run_that_no_worker_starts_is_late(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY, max_runs=1)
    clock.advance(MINUTE)
    made.beat.run_until_idle()
    made.alerts.run()
    assert made.stored() == []
    clock.advance(LATER)
    made.alerts.run()

    assert made.open() == ["late"]


def test_the_retry_of_a_run_is_not_late(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY, max_runs=1, retry={"times": 1, "delay": 60})
    clock.advance(MINUTE)
    made.beat.run_until_idle()
    (run,) = made.beat.publisher.sent
    made.worker.start(run)
    retry_at = clock.now() + MINUTE
    made.worker.finish(run, Status.RETRYING, retry_at=retry_at, sent_by_beat=True)
    made.alerts.run()
    assert made.facts() == []
    clock.advance(MINUTE)
    made.beat.run_until_idle()
    retry = made.beat.publisher.sent[-1]
    assert retry.retries == 1

    clock.advance(LATER)
    made.alerts.run()

    assert made.open() == []
    made.worker.start(retry)
    made.worker.finish(retry, Status.FAILED)
    made.alerts.run()
    assert made.open() == ["failed"]


def test_a_buffered_run_is_not_late(alerting, clock):
    made = alerting(alert_late_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one")
    clock.advance(MINUTE)
    made.worker.heartbeat()
    made.beat.run_until_idle()
    made.worker.start(made.beat.publisher.sent[0])
    clock.advance(MINUTE)
    made.worker.heartbeat()
    made.beat.run_until_idle()
    clock.advance(LATER)
    made.alerts.run()

    assert kinds_and_names(made) == []


def test_a_slow_run_opens_the_alert_and_a_fast_one_recovers_it(
    alerting, clock, claim_late, reported
):
    made = alerting(alert_slow_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    run = claim_late(made, 0 * SECOND)
    clock.advance(6 * SECOND)
    finish(made, run, seconds=6)
    made.alerts.run()
    (row,) = made.stored()
    assert (row.kind, row.run_id, row.value) == ("slow", run.run_id, 6.0)
    assert [name for name, _ in reported] == ["alert_opened", "run_slow"]

    run = claim_late(made, MINUTE)
    clock.advance(2 * SECOND)
    finish(made, run, seconds=2)
    clock.advance(LATER)
    made.alerts.run()
    assert made.open() == []


def test_a_running_run_is_slow_before_it_ends_and_counts_once(alerting, clock, claim_late):
    made = alerting(alert_slow_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY, max_runs=1)
    run = claim_late(made, 0 * SECOND)
    for _ in range(3):
        clock.advance(LATER)
        made.alerts.run()
    assert made.open() == ["slow"]
    finish(made, run, seconds=33)
    made.alerts.run()

    (row,) = made.stored()
    assert (row.fact_count, row.value) == (1, 33.0)


def test_an_own_slow_rule_needs_no_setting(alerting, claim_late):
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    finish(made, claim_late(made, 0 * SECOND), seconds=6)
    assert made.facts() == []

    made.set_rules("n", slow_after=5)
    finish(made, claim_late(made, MINUTE), seconds=6)
    made.alerts.run()
    assert made.open() == ["slow"]


def test_a_lost_run_does_not_end_the_alert_of_a_slow_one(alerting, clock, claim_late):
    made = alerting(alert_slow_after=5)
    made.mine.create("n", task="t", trigger=MINUTELY)
    finish(made, claim_late(made, 0 * SECOND), seconds=6)
    made.alerts.run()
    assert made.open() == ["slow"]

    claim_late(made, MINUTE)
    # The worker is gone.
    clock.advance(10 * MINUTE)
    made.beat.run_until_idle()
    clock.advance(LATER)
    made.alerts.run()
    assert made.open() == ["lost", "slow"]
