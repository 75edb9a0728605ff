"""Runs that are ended from outside. Only the prefork pool supports that."""

import pytest


def test_soft_time_limit(running):
    fields = {"kwargs": {"gate": "/nowhere"}, "options": {"soft_time_limit": 1}}
    running.create_once("soft", task="probe.hold", **fields)

    assert "SoftTimeLimitExceeded" in running.wait_for_run("soft", "failed").error


def test_hard_time_limit(running):
    fields = {"kwargs": {"gate": "/nowhere"}, "options": {"time_limit": 1}}
    running.create_once("hard", task="probe.hold", **fields)

    run = running.wait_for_run("hard", "failed")

    assert "TimeLimitExceeded" in run.error
    assert run.finished_at is not None


def test_terminated_by_remote_control(running):
    running.create_once("terminated", task="probe.hold", kwargs={"gate": "/nowhere"})
    run = running.wait_for_run("terminated", "running")

    running.app.control.revoke(run.id, terminate=True)

    assert running.wait_for_run("terminated", "revoked").error == "terminated"


@pytest.mark.parametrize("task", ["crash", "leave"])
def test_a_lost_child_is_a_failure(running, task):
    running.create_once(task)

    run = running.wait_for_run(task, "failed")

    assert "WorkerLostError" in run.error
    assert len(running.event_log.starts(run.id)) == 1


def test_a_lost_child_with_late_acknowledgement_is_a_new_attempt(running):
    running.create_once("crash_late")

    run = running.wait_for_run("crash_late", "succeeded")

    assert run.attempt == 2
    assert len(running.event_log.starts(run.id)) == 2
