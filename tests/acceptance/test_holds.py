"""A real beat and worker during a hold of an owner, and of everything."""

from datetime import timedelta

import pytest

from celery_dynbeat import Every
from tests.support.sites import site
from tests.support.waiting import wait_until


@pytest.fixture
def running(site_folder, postgresql_url, redis_url):
    """Give an installation whose schedule fires every second."""
    with site(site_folder, database_url=postgresql_url, broker_url=redis_url) as made:
        made.mine.create("tick", task="probe.record", trigger=Every(timedelta(seconds=1)))
        made.beat()
        made.worker()
        made.wait_for_run("tick", "succeeded")
        yield made


@pytest.mark.parametrize("scope", ["owner", "everything"])
def test_a_hold_starts_only_manual_runs_until_the_release(running, scope):
    held = running.mine if scope == "owner" else running.dynbeat.schedules
    made = held.hold(reason="r")
    # A batch that was claimed before the commit is still sent.
    wait_until(
        lambda: running.dynbeat.context.clock.now() > made.created_at + timedelta(seconds=2),
        within=5,
    )
    before = {run.id for run in running.runs()}

    manual = running.mine.run_now("tick")
    running.wait_for_run("tick", "succeeded", where=lambda run: run.id == manual.id)
    wait_until(
        lambda: running.dynbeat.context.clock.now() > made.created_at + timedelta(seconds=5),
        within=10,
    )
    assert {run.id for run in running.runs()} == {*before, manual.id}
    scheduled = [run for run in running.runs() if run.origin == "schedule"]
    assert max(run.scheduled_for for run in scheduled) < made.created_at + timedelta(seconds=1)

    held.release()

    after = running.wait_for_run(
        "tick", "succeeded", where=lambda run: run.origin == "schedule" and run.id not in before
    )
    assert after.scheduled_for > made.created_at
    assert running.mine.get("tick").next_run_at is not None
