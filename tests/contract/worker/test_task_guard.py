"""Each run starts once, whatever messages arrive. An outcome changes only its own attempt."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import NodeKind, Run
from celery_dynbeat.store import nodes
from celery_dynbeat.worker.outcomes import Outcome, apply_outcome
from celery_dynbeat.worker.start_decision import Delivery, StartAction, decide_start
from tests.support.applications import MINUTELY, execute
from tests.support.suites import each_database

TIMEOUT = timedelta(seconds=60)


@pytest.fixture
def run(mine, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    created = mine.run_now("n")
    beat.run_until_idle()
    return created


@pytest.fixture
def message(run):
    return Delivery(
        run_id=run.id,
        retries=0,
        expected_attempt=0,
        redelivered=False,
        acks_late=True,
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
    """Return a function that registers a worker node or refreshes its row."""

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


@each_database
def test_of_two_simultaneous_duplicates_one_starts(message, deliver):
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


def test_a_retry_starts_before_the_outcome_of_the_previous_attempt_is_written(
    mine, message, deliver, finish
):
    deliver(message)

    assert deliver(replace(message, retries=1, expected_attempt=1)) is StartAction.START
    assert finish(Status.RETRYING) is False
    assert only(mine).status == "running"


@pytest.mark.parametrize("is_recorded", [True, False])
@each_database
def test_a_replacement_starts_once_whether_or_not_the_end_before_it_is_recorded(
    mine, message, deliver, finish, is_recorded
):
    deliver(message)
    replacement = replace(message, expected_attempt=1, replaces=True, worker="w2")
    if is_recorded:
        finish(Status.RETRYING)
    assert deliver(message) is StartAction.REFUSE

    assert deliver(replacement) is StartAction.START
    assert deliver(replacement) is StartAction.REFUSE
    assert deliver(message) is StartAction.REFUSE
    assert finish(Status.RETRYING) is False
    assert finish(Status.FAILED, worker="w2", attempt=2) is True
    assert (only(mine).status, only(mine).attempt) == ("failed", 2)


def test_a_retry_whose_message_names_no_attempt_starts_once(mine, message, deliver):
    deliver(message)
    retry = replace(message, retries=1, expected_attempt=None)

    assert deliver(retry) is StartAction.START
    assert deliver(retry) is StartAction.REFUSE
    assert only(mine).attempt == 2


@pytest.mark.parametrize("cancel", ["pause", "delete"])
def test_the_message_of_a_cancelled_run_is_refused(mine, clock, beat, message, deliver, cancel):
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


def test_a_redelivered_run_of_a_replaced_node_starts_a_new_attempt(clock, message, deliver, alive):
    alive("w1", pid=1)
    deliver(message)
    clock.advance(timedelta(seconds=1))
    alive("w1", pid=2)

    assert deliver(replace(message, worker="w2", redelivered=True)) is StartAction.START


@each_database
def test_a_redelivered_message_of_a_living_node_is_noted_and_leaves_no_copy(
    dynbeat, mine, clock, message, deliver, alive
):
    alive("w1")
    deliver(message)
    clock.advance(timedelta(seconds=12))
    alive("w1")
    again = replace(message, worker="w2", redelivered=True)

    assert deliver(again) is StartAction.NOTE_REDELIVERY
    # Each further redelivery has the same result.
    assert deliver(again) is StartAction.NOTE_REDELIVERY

    assert (only(mine).status, only(mine).attempt, only(mine).worker) == ("running", 1, "w1")
    assert noted_attempt(dynbeat) == 1


def test_a_run_with_a_noted_redelivery_is_sent_again_when_its_node_dies_with_any_on_lost(
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


def test_a_redelivered_message_is_refused_if_the_run_ends_before_it_is_noted(
    mine, message, deliver, alive, finish, monkeypatch
):
    alive("w1")
    deliver(message)
    read = nodes.get

    def finish_before_read(session, **which):
        session.commit()
        finish(Status.SUCCEEDED)
        return read(session, **which)

    monkeypatch.setattr(nodes, "get", finish_before_read)

    assert deliver(replace(message, worker="w2", redelivered=True)) is StartAction.REFUSE
    assert only(mine).status == "succeeded"


@each_database
def test_a_run_requeued_after_its_redelivery_was_noted_is_sent_again_at_once(
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
def test_a_node_notes_a_redelivery_only_if_it_executes_the_run_itself(
    message, deliver, alive, executes_here, action
):
    alive("w1", pid=os.getpid())
    deliver(message)

    again = replace(message, redelivered=True, executes_here=lambda: executes_here)

    assert deliver(again).name == action


def test_a_redelivered_run_of_an_ended_process_of_the_same_node_starts_a_new_attempt(
    message, deliver, alive, ended_pid
):
    alive("w1", pid=os.getpid())
    deliver(replace(message, pid=ended_pid))

    assert deliver(replace(message, redelivered=True)) is StartAction.START


@pytest.fixture
def ended_pid():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    return ended.pid


@pytest.mark.parametrize("owner", ["alive", "silent", "replaced", "unknown", "ended process"])
@pytest.mark.parametrize("lost", [False, True], ids=["running", "lost"])
def test_without_acks_late_a_redelivered_message_of_a_started_run_is_refused_and_not_noted(
    dynbeat, mine, clock, message, deliver, alive, finish, ended_pid, owner, lost
):
    if owner != "unknown":
        alive("w1", pid=os.getpid() if owner == "ended process" else 1)
    first = replace(message, acks_late=False)
    deliver(replace(first, pid=ended_pid) if owner == "ended process" else first)
    if lost:
        execute(dynbeat, "UPDATE dynbeat_run SET status = 'lost', finished_at = started_at")
    clock.advance(2 * TIMEOUT if owner == "silent" else timedelta(seconds=1))
    if owner == "replaced":
        alive("w1", pid=2)
    again = replace(first, redelivered=True, executes_here=lambda: False)

    assert deliver(again) is StartAction.REFUSE
    assert deliver(replace(again, worker="w2")) is StartAction.REFUSE

    assert (only(mine).status, only(mine).attempt) == ("lost" if lost else "running", 1)
    assert noted_attempt(dynbeat) is None
    # A worker that was only slow still reports the end.
    assert finish(Status.SUCCEEDED) is True


def test_an_outcome_is_stored_with_its_error_and_the_end_of_its_traceback(
    mine, clock, message, deliver, finish
):
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


def test_a_run_that_has_ended_does_not_end_again(mine, message, deliver, finish):
    deliver(message)
    finish(Status.SUCCEEDED)

    assert finish(Status.FAILED) is False
    assert finish(Status.REVOKED, started=False) is False
    assert only(mine).status == "succeeded"


def test_a_requeued_message_may_start_again(mine, clock, message, deliver, finish):
    deliver(message)

    assert finish(Status.SENT, resend_at=clock.now() + TIMEOUT) is True

    assert only(mine).status == "sent"
    assert deliver(replace(message, redelivered=True)) is StartAction.START


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.FAILED, Status.REVOKED])
def test_a_dropped_duplicate_does_not_change_the_running_run(
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


def test_a_dropped_stale_message_does_not_end_a_retrying_run(mine, message, deliver, finish):
    deliver(message)
    finish(Status.RETRYING, error="again")

    assert finish(Status.EXPIRED, attempt=0, started=False) is False
    assert finish(Status.REVOKED, attempt=1, started=False) is True
    assert only(mine).status == "revoked"


def test_the_start_of_another_process_or_a_later_start_is_not_undone(
    mine, clock, message, deliver, finish
):
    deliver(message)

    assert finish(Status.SENT, attempt=None, started=False, pid=message.pid + 1) is False
    clock.advance(timedelta(seconds=-1))
    assert finish(Status.SENT, attempt=None, started=False, pid=message.pid) is False
    assert only(mine).status == "running"


def test_a_refusal_has_its_reason(dynbeat, clock, message, finish):
    def refusal(**changes):
        decision = dynbeat.context.database.run(
            lambda session: decide_start(
                session, replace(message, **changes), now=clock.now(), timeout=TIMEOUT
            )
        )
        return decision.reason

    unknown = refusal(run_id="01900000-0000-7000-8000-000000000000")
    assert refusal() == ""
    running = refusal()
    finish(Status.FAILED)
    ended = refusal()
    execute(dynbeat, "UPDATE dynbeat_run SET cancelled_at = finished_at")

    assert unknown == "its row was deleted"
    assert running == "attempt 1 is running on w1"
    assert ended == "it has ended as failed"
    assert refusal() == "a newer run replaced it"
