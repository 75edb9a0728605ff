"""Each run starts once, whatever messages arrive; outcomes belong to the attempt that made them."""

import os
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import NodeKind, Run
from celery_dynbeat.store import nodes
from celery_dynbeat.worker.outcome_recorder import Outcome, apply_outcome
from celery_dynbeat.worker.start_decision import Delivery, StartAction, decide_start
from tests.support.applications import MINUTELY

TIMEOUT = timedelta(seconds=60)


@pytest.fixture
def run(mine, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    made = mine.run_now("n")
    beat.run_until_idle()
    return made


@pytest.fixture
def message(run):
    return Delivery(
        run_id=run.id,
        retries=0,
        expected_attempt=0,
        redelivered=False,
        deferred=False,
        worker="w1",
        main_pid=os.getpid(),
        pid=os.getpid(),
        executes_here=lambda: True,
    )


@pytest.fixture
def deliver(dynbeat, clock):
    def deliver(message):
        decision = dynbeat.context.database.run(
            lambda session: decide_start(session, message, now=clock.now(), timeout=TIMEOUT)
        )
        return decision.action

    return deliver


@pytest.fixture
def alive(dynbeat, clock):
    """Give a function that registers or refreshes a worker node."""

    def alive(name, *, pid=1, started_at=None):
        now = clock.now()
        heartbeat = nodes.NodeHeartbeat(kind=NodeKind.WORKER, name=name, pid=pid, seen_at=now)
        dynbeat.context.database.run(
            lambda session: (
                nodes.refresh(session, heartbeat=heartbeat)
                or nodes.register(session, heartbeat=heartbeat, started_at=started_at or now)
            )
        )

    return alive


@pytest.fixture
def finish(dynbeat, clock, run):
    def finish(status, *, worker="w1", attempt=1, **details):
        outcome = Outcome(
            run_id=run.id,
            attempt=attempt,
            worker=worker,
            status=status,
            at=clock.now(),
            **details,
        )
        return dynbeat.context.database.run(lambda session: apply_outcome(session, outcome))

    return finish


def only(mine):
    (run,) = mine.runs()
    return run


def test_a_run_starts_once_and_its_duplicates_are_refused(mine, message, deliver):
    assert deliver(message) is StartAction.START

    assert deliver(message) is StartAction.REFUSE
    assert deliver(replace(message, worker="w2")) is StartAction.REFUSE
    assert (only(mine).status, only(mine).attempt, only(mine).worker) == ("running", 1, "w1")


def test_of_duplicates_at_the_same_moment_one_starts(message, deliver):
    actions, together = [], threading.Barrier(2)

    def arrive(worker):
        together.wait(10)
        actions.append(deliver(replace(message, worker=worker)))

    threads = [threading.Thread(target=arrive, args=(name,)) for name in ("w1", "w2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(action.name for action in actions) == ["REFUSE", "START"]


def test_each_retry_starts_once(mine, message, deliver, finish):
    deliver(message)
    finish(Status.RETRYING, error="again")
    retry = replace(message, retries=1, expected_attempt=1)

    assert deliver(retry) is StartAction.START
    assert deliver(retry) is StartAction.REFUSE
    assert deliver(message) is StartAction.REFUSE
    assert only(mine).attempt == 2


def test_a_retry_may_overtake_the_outcome_of_its_predecessor(mine, message, deliver, finish):
    deliver(message)

    assert deliver(replace(message, retries=1, expected_attempt=1)) is StartAction.START
    assert finish(Status.RETRYING) is False
    assert only(mine).status == "running"


def test_a_retry_whose_message_names_no_attempt_starts_once(mine, message, deliver):
    deliver(message)
    retry = replace(message, retries=1, expected_attempt=None)

    assert deliver(retry) is StartAction.START
    assert deliver(retry) is StartAction.REFUSE
    assert only(mine).attempt == 2


def test_the_late_retry_of_a_slow_worker_leaves_its_successor_alone(
    mine, clock, message, deliver, finish
):
    deliver(message)
    clock.advance(TIMEOUT)
    deliver(replace(message, worker="w2", redelivered=True))

    assert deliver(replace(message, retries=1, expected_attempt=1)) is StartAction.REFUSE
    assert finish(Status.RETRYING, attempt=1) is False
    assert (only(mine).status, only(mine).worker) == ("running", "w2")


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED])
def test_a_run_that_ended_starts_no_more(message, deliver, finish, status):
    deliver(message)
    finish(status)

    assert deliver(replace(message, redelivered=True)) is StartAction.REFUSE
    assert deliver(replace(message, retries=1, expected_attempt=1)) is StartAction.REFUSE


@pytest.mark.parametrize("cancel", ["pause", "delete"])
def test_a_run_that_was_cancelled_is_refused_wherever_its_message_is(
    mine, clock, beat, message, deliver, cancel
):
    mine.update("n", max_runs=1)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    scheduled = next(run for run in mine.runs() if run.origin == "schedule")

    getattr(mine, cancel)("n")

    assert deliver(replace(message, run_id=scheduled.id)) is StartAction.REFUSE


def test_a_manual_run_survives_a_pause(mine, message, deliver):
    mine.pause("n")

    assert deliver(message) is StartAction.START


def test_a_message_of_an_unknown_run_is_refused(message, deliver):
    unknown = "01a1fd55-7a80-7da9-ade5-7b449e290722"

    assert deliver(replace(message, run_id=unknown)) is StartAction.REFUSE


def test_a_redelivered_run_of_a_dead_node_starts_anew(mine, clock, message, deliver, alive):
    alive("w1")
    deliver(message)
    clock.advance(TIMEOUT)

    again = replace(message, worker="w2", redelivered=True)

    assert deliver(again) is StartAction.START
    assert (only(mine).attempt, only(mine).worker) == (2, "w2")


def test_a_redelivered_run_of_a_node_that_was_replaced_starts_anew(clock, message, deliver, alive):
    alive("w1", pid=1)
    deliver(message)
    clock.advance(timedelta(seconds=1))
    alive("w1", pid=2)

    assert deliver(replace(message, worker="w2", redelivered=True)) is StartAction.START


def test_a_message_that_comes_again_while_its_node_lives_leaves_a_note_and_no_copy(
    dynbeat, mine, clock, message, deliver, alive
):
    alive("w1")
    deliver(message)
    clock.advance(timedelta(seconds=12))
    alive("w1")
    again = replace(message, worker="w2", redelivered=True)

    assert deliver(again) is StartAction.NOTE_REDELIVERY
    # However often it comes.
    assert deliver(again) is StartAction.NOTE_REDELIVERY

    assert (only(mine).status, only(mine).attempt, only(mine).worker) == ("running", 1, "w1")
    assert noted_attempt(dynbeat) == 1


def test_a_run_that_was_noted_is_sent_again_when_its_node_dies_whatever_on_lost_says(
    mine, clock, beat, sent, alive, message, deliver
):
    alive("w1")
    deliver(message)
    deliver(replace(message, worker="w2", redelivered=True))
    clock.advance(2 * TIMEOUT)

    beat.run_until_idle()

    ours = next(run for run in mine.runs() if run.id == message.run_id)
    assert (ours.status, ours.attempt) == ("sent", 1)
    following = next(run for run in sent[::-1] if run.run_id == message.run_id)
    assert (
        deliver(replace(message, worker="w2", expected_attempt=following.attempt))
        is StartAction.START
    )


def test_a_run_that_counts_as_lost_is_its_node_s_again_when_that_lives_and_its_message_comes(
    mine, clock, beat, alive, message, deliver, finish
):
    alive("w1")
    deliver(message)
    clock.advance(2 * TIMEOUT)
    beat.run_until_idle()
    assert next(run for run in mine.runs() if run.id == message.run_id).status == "lost"
    alive("w1")

    assert deliver(replace(message, worker="w2", redelivered=True)) is StartAction.NOTE_REDELIVERY

    ours = next(run for run in mine.runs() if run.id == message.run_id)
    assert (ours.status, ours.attempt, ours.finished_at, ours.error) == ("running", 1, None, None)
    assert finish(Status.SUCCEEDED) is True


def test_a_message_whose_note_meets_the_end_of_the_run_is_refused(
    mine, message, deliver, alive, finish, monkeypatch
):
    alive("w1")
    deliver(message)
    read = nodes.get

    def ends_meanwhile(session, **which):
        session.commit()
        finish(Status.SUCCEEDED)
        return read(session, **which)

    monkeypatch.setattr(nodes, "get", ends_meanwhile)

    assert deliver(replace(message, worker="w2", redelivered=True)) is StartAction.REFUSE
    assert only(mine).status == "succeeded"


def test_a_message_that_came_before_its_run_was_given_back_is_sent_again_at_once(
    clock, beat, sent, alive, message, deliver, finish
):
    alive("w1")
    deliver(message)
    deliver(replace(message, worker="w2", redelivered=True))

    assert finish(Status.SENT, resend_at=clock.now() + 10 * TIMEOUT) is True

    beat.run_until_idle()
    assert [run.run_id for run in sent] == [message.run_id] * 2


def noted_attempt(dynbeat):
    statement = select(Run.redelivered_attempt)
    return dynbeat.context.database.read(lambda session: session.scalar(statement))


@pytest.mark.parametrize(("executes_here", "action"), [(True, "NOTE_REDELIVERY"), (False, "START")])
def test_a_node_knows_what_it_runs_itself(message, deliver, alive, executes_here, action):
    alive("w1", pid=os.getpid())
    deliver(message)

    again = replace(message, redelivered=True, executes_here=lambda: executes_here)

    assert deliver(again).name == action


def test_an_outcome_is_kept_with_its_error(mine, clock, message, deliver, finish):
    deliver(message)

    assert finish(Status.FAILED, error="x" * 2_000, traceback="y" * 9_000 + "the end") is True

    run = only(mine)
    assert (run.status, run.finished_at) == ("failed", clock.now())
    assert (len(run.error), len(run.traceback)) == (1_000, 8_000)
    assert run.traceback.endswith("the end")


def test_a_late_outcome_of_another_worker_is_ignored(mine, clock, message, deliver, finish):
    deliver(message)
    clock.advance(TIMEOUT)
    deliver(replace(message, worker="w2", redelivered=True))

    assert finish(Status.FAILED, attempt=1) is False
    assert only(mine).status == "running"
    assert finish(Status.SUCCEEDED, worker="w2", attempt=2) is True


def test_a_run_that_ended_ends_no_second_time(mine, message, deliver, finish):
    deliver(message)
    finish(Status.SUCCEEDED)

    assert finish(Status.FAILED) is False
    assert finish(Status.REVOKED, started=False) is False
    assert only(mine).status == "succeeded"


def test_a_message_given_back_to_the_broker_may_start_again(mine, clock, message, deliver, finish):
    deliver(message)

    assert finish(Status.SENT, resend_at=clock.now() + TIMEOUT) is True

    assert only(mine).status == "sent"
    assert deliver(replace(message, redelivered=True)) is StartAction.START


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.FAILED, Status.REVOKED])
def test_a_duplicate_that_is_dropped_does_not_touch_the_run_in_progress(
    dynbeat, mine, clock, message, deliver, status
):
    deliver(message)
    dropped = Outcome(
        run_id=message.run_id,
        attempt=0,
        worker="w2",
        status=status,
        at=clock.now(),
        started=False,
        error="dropped",
    )

    changed = dynbeat.context.database.run(lambda session: apply_outcome(session, dropped))

    assert not changed
    assert mine.runs("n")[0].status == "running"


def test_a_stale_message_that_is_dropped_does_not_end_a_run_that_is_retrying(
    mine, message, deliver, finish
):
    deliver(message)
    finish(Status.RETRYING, error="again")

    assert finish(Status.EXPIRED, attempt=0, started=False) is False
    assert finish(Status.REVOKED, attempt=1, started=False) is True
    assert only(mine).status == "revoked"


def test_a_run_that_a_process_was_marked_to_begin_and_did_not_is_sent_again(
    mine, clock, beat, sent, alive, message, deliver, finish
):
    alive("w1")
    deliver(message)
    clock.advance(timedelta(seconds=10))

    assert finish(Status.SENT, attempt=None, started=False, pid=message.pid) is True

    beat.run_until_idle()
    assert [run.run_id for run in sent] == [message.run_id] * 2
    assert deliver(replace(message, expected_attempt=sent[-1].attempt)) is StartAction.START
    assert deliver(replace(message, deferred=True)) is not StartAction.START
    assert only(mine).attempt == 2


def test_what_another_process_began_or_this_one_began_later_is_not_disowned(
    mine, clock, message, deliver, finish
):
    deliver(message)

    assert finish(Status.SENT, attempt=None, started=False, pid=message.pid + 1) is False
    clock.advance(timedelta(seconds=-1))
    assert finish(Status.SENT, attempt=None, started=False, pid=message.pid) is False
    assert only(mine).status == "running"


def test_a_node_that_was_silent_and_has_just_begun_a_run_is_not_taken_for_dead(
    clock, message, deliver, alive
):
    alive("w1")
    clock.advance(2 * TIMEOUT)
    deliver(message)

    again = replace(message, worker="w2", redelivered=True)

    assert deliver(again) is StartAction.NOTE_REDELIVERY
    clock.advance(TIMEOUT)
    assert deliver(again) is StartAction.START


def test_a_slow_worker_ends_the_run_that_waits_for_another_attempt(
    mine, clock, beat, alive, message, deliver, finish
):
    mine.update("n", on_lost="rerun")

    def ours():
        return next(run for run in mine.runs() if run.id == message.run_id)

    alive("w1")
    deliver(message)
    clock.advance(2 * TIMEOUT)
    beat.run_until_idle()
    assert (ours().status, ours().attempt) == ("sent", 1)

    assert finish(Status.SUCCEEDED) is True

    assert deliver(replace(message, expected_attempt=1)) is StartAction.REFUSE
    assert ours().status == "succeeded"


def test_a_refusal_tells_whether_the_run_has_yet_to_end(dynbeat, clock, message, deliver, finish):
    def is_unfinished():
        decision = dynbeat.context.database.run(
            lambda session: decide_start(session, message, now=clock.now(), timeout=TIMEOUT)
        )
        assert decision.action is StartAction.REFUSE
        return decision.unfinished

    deliver(message)
    assert is_unfinished()

    finish(Status.SUCCEEDED)
    assert not is_unfinished()
