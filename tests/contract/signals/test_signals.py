"""Beat, the worker and the API send a signal for each event, after its commit."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, execute

MINUTE = timedelta(minutes=1)


def of(received, name):
    return [event for sent, event in received if sent == name]


@pytest.fixture
def working(dynbeat):
    """Give a beat whose runs are executed, and a task that fails for negative numbers."""

    @dynbeat.app.task(name="root", shared=False)
    def root(number):
        return number**0.5 if number >= 0 else {}["negative"]

    return ManualBeat(dynbeat, run_tasks=True)


def test_a_sent_run_is_reported_with_its_lag(mine, clock, beat, received):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE + timedelta(seconds=2))
    beat.run_until_idle()

    (batch,) = of(received, "runs_sent")
    (run,) = batch.runs
    assert (run.owner, run.schedule, run.task) == ("user:42", "n", "t")
    assert (run.fire_at, run.lag) == (START + MINUTE, timedelta(seconds=2))
    assert not batch.again


def test_a_run_that_did_not_start_is_reported_again(mine, clock, beat, received):
    mine.create("n", task="t", trigger=MINUTELY, expires_after=timedelta(days=1))
    mine.pause("n")
    mine.run_now("n")
    beat.run_until_idle()
    clock.advance(timedelta(hours=2))
    beat.run_until_idle()

    assert [batch.again for batch in of(received, "runs_sent")] == [True, True]


def test_skipped_fire_times_are_reported_with_their_reason(mine, clock, beat, received):
    mine.create("n", task="t", trigger=MINUTELY, catch_up="latest")
    clock.advance(timedelta(minutes=10))
    beat.run_until_idle()

    (skipped,) = of(received, "fire_times_skipped")
    assert (skipped.schedule, skipped.count) == ("n", 9)
    assert skipped.fire_at == START + timedelta(minutes=9)
    assert skipped.reason.startswith("missed")


def test_the_start_and_the_end_of_a_run_are_reported(mine, clock, working, received):
    mine.create("n", task="root", trigger=MINUTELY, args=[4])
    clock.advance(MINUTE)
    working.run_until_idle()

    ((started,), (ended,)) = (of(received, name) for name in ("run_started", "run_ended"))
    assert (started.schedule, started.task, started.attempt) == ("n", "root", 1)
    assert (started.fire_at, started.waited) == (START + MINUTE, timedelta(0))
    assert (ended.run_id, ended.status, ended.error) == (started.run_id, "succeeded", None)
    assert (ended.owner, ended.schedule, ended.attempt) == ("user:42", "n", 1)
    assert timedelta(0) < ended.duration < MINUTE
    assert of(received, "run_failed") == []


def test_a_failed_run_is_reported_with_its_error(mine, clock, working, received):
    mine.create("n", task="root", trigger=MINUTELY, args=[-1])
    clock.advance(MINUTE)
    working.run_until_idle()

    (failed,) = of(received, "run_failed")
    assert of(received, "run_ended") == [failed]
    assert (failed.status, failed.error) == ("failed", "KeyError: 'negative'")


def test_the_first_success_after_failures_is_reported(mine, clock, working, received):
    mine.create("n", task="root", trigger=MINUTELY, args=[-1])
    clock.advance(MINUTE)
    working.run_until_idle()
    failing_since = mine.get("n").failing_since
    mine.update("n", args=[4])
    for _ in range(2):
        clock.advance(MINUTE)
        working.run_until_idle()

    (recovered,) = of(received, "schedule_recovered")
    assert (recovered.owner, recovered.schedule) == ("user:42", "n")
    assert recovered.failing_since == failing_since


def test_an_automatic_pause_is_reported(mine, clock, working, received):
    mine.create("n", task="root", trigger=MINUTELY, args=[-1], pause_after_failures=1)
    for _ in range(2):
        clock.advance(MINUTE)
        working.run_until_idle()

    (paused,) = of(received, "schedule_paused")
    assert (paused.schedule, paused.actor, paused.automatic) == ("n", "dynbeat", True)
    assert paused.reason == mine.get("n").paused_reason


def test_a_pause_of_the_caller_is_reported_with_the_actor(dynbeat, mine, received):
    mine.create("n", task="t", trigger=MINUTELY)
    with dynbeat.acting(actor="alice"):
        mine.pause("n", reason="holiday")

    (paused,) = of(received, "schedule_paused")
    assert (paused.actor, paused.reason, paused.automatic) == ("alice", "holiday", False)


def test_a_quarantine_is_reported(dynbeat, mine, clock, beat, received):
    mine.create("bad", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'never' WHERE name = 'bad'")
    clock.advance(MINUTE)
    beat.run_until_idle()

    (quarantined,) = of(received, "schedule_quarantined")
    assert (quarantined.owner, quarantined.schedule) == ("user:42", "bad")
    assert quarantined.error == mine.get("bad").error


def test_a_lost_run_is_reported(dynbeat, mine, clock, beat, received):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = 'running', overdue_at = NULL, attempt = 1,"
        " worker = 'w@dead', started_at = sent_at",
    )
    clock.advance(timedelta(hours=1))
    mine.pause("n")
    beat.run_until_idle()

    (lost,) = of(received, "run_lost")
    assert (lost.schedule, lost.attempt, lost.worker) == ("n", 1, "w@dead")
    assert (lost.task, lost.sent_again) == ("t", False)
    assert mine.get_run(lost.run_id).status == Status.LOST


def test_holds_are_reported_after_the_commit_of_the_caller(dynbeat, mine, received):
    with Session(dynbeat.context.database.engine) as session:
        mine.bound(session=session).hold(reason="holiday")
        assert received == []
        session.commit()
    mine.release()

    assert [(name, event.owner, event.reason) for name, event in received] == [
        ("hold_started", "user:42", "holiday"),
        ("hold_released", "user:42", "holiday"),
    ]


def test_a_hold_in_a_session_that_was_closed_is_not_reported_later(dynbeat, mine, received):
    with Session(dynbeat.context.database.engine) as session:
        mine.bound(session=session).hold(reason="closed")
        session.close()
        dynbeat.schedules.for_owner("user:2", session=session).hold(reason="kept")
        session.commit()

    assert [event.reason for event in of(received, "hold_started")] == ["kept"]
