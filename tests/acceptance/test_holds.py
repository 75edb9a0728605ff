"""A real beat and worker during a hold."""

from datetime import timedelta

import pytest

from celery_dynbeat import ConflictError, Every
from tests.support.waiting import wait_until


@pytest.fixture
def ticking(running):
    """Return an installation whose schedule fires every second."""
    running.mine.create("tick", task="probe.record", trigger=Every(timedelta(seconds=1)))
    running.wait_for_run("tick", "succeeded")
    return running


def test_a_hold_starts_no_run_until_the_release(ticking):
    made = ticking.mine.hold(reason="r")
    # A batch that was claimed before the commit is still sent.
    wait_until(
        lambda: ticking.dynbeat.context.clock.now() > made.created_at + timedelta(seconds=2),
        within=5,
    )
    before = {run.id for run in ticking.runs()}

    with pytest.raises(ConflictError, match="is held"):
        ticking.mine.run_now("tick")
    wait_until(
        lambda: ticking.dynbeat.context.clock.now() > made.created_at + timedelta(seconds=5),
        within=10,
    )
    assert {run.id for run in ticking.runs()} == before
    scheduled = [run for run in ticking.runs() if run.origin == "schedule"]
    assert max(run.fire_at for run in scheduled) < made.created_at + timedelta(seconds=1)

    ticking.mine.release()

    after = ticking.wait_for_run(
        "tick", "succeeded", where=lambda run: run.origin == "schedule" and run.id not in before
    )
    assert after.fire_at > made.created_at
    assert ticking.mine.get("tick").next_run_at is not None
