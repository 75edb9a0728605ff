"""From a row to a finished run, with real beats and workers, on each combination."""

from datetime import datetime, timedelta

import pytest

from celery_dynbeat import Cron, Every, Once
from tests.support.waiting import wait_until

pytestmark = pytest.mark.empty_database


@pytest.mark.quick("sqlite-sqlalchemy", "postgresql-redis")
def test_each_kind_of_trigger_runs_and_has_a_complete_history(any_site):
    triggers = {
        "cron": Cron("* * * * * *"),
        "every": Every(timedelta(seconds=1)),
        "once": Once.after(timedelta(seconds=1)),
    }
    for name, trigger in triggers.items():
        any_site.mine.create(name, task="probe.record", trigger=trigger)

    any_site.beat()
    any_site.worker()

    for name in triggers:
        # A worker may start the run before beat records sent_at.
        run = any_site.wait_for_run(name, "succeeded", where=lambda run: run.sent_at is not None)
        assert run.scheduled_for <= run.started_at <= run.finished_at
        assert (run.worker, run.attempt, run.error) == ("w1@test", 1, None)
        assert len(any_site.event_log.starts(run.id)) == 1
    assert any_site.mine.get("once").finished_at is not None


def test_the_task_finds_its_run_in_the_headers(any_site):
    any_site.mine.create(
        "digest",
        task="probe.record",
        trigger=Once.after(timedelta(seconds=1)),
        options={"headers": {"tenant": "blue"}},
    )

    any_site.beat()
    any_site.worker()

    run = any_site.wait_for_run("digest", "succeeded")
    (start,) = any_site.event_log.starts(run.id)
    assert run.scheduled_for < datetime.fromisoformat(start["headers"]["dynbeat_sent_at"])
    assert start["headers"] == {
        "tenant": "blue",
        "dynbeat_run_id": run.id,
        "dynbeat_schedule": "digest",
        "dynbeat_owner": "user:1",
        "dynbeat_scheduled_for": run.scheduled_for.isoformat(),
        "dynbeat_attempt": 1,
        "dynbeat_sent_at": start["headers"]["dynbeat_sent_at"],
        "celery_beat_task": True,
        "periodic_task_name": "digest",
    }


def test_an_edit_takes_effect_while_beat_and_worker_run(any_site):
    any_site.beat().wait_for_log("beat started")
    any_site.worker()
    any_site.mine.create("edited", task="probe.unwanted", trigger=Every(timedelta(hours=1)))

    any_site.mine.update(
        "edited", task="probe.record", trigger=Every(timedelta(seconds=1)), args=[2]
    )

    assert any_site.wait_for_run("edited", "succeeded").task == "probe.record"


def test_a_cancelled_one_off_never_starts(any_site):
    any_site.beat().wait_for_log("beat started")
    any_site.worker()
    any_site.mine.create("later", task="probe.record", trigger=Once.after(timedelta(seconds=2)))
    any_site.mine.create("witness", task="probe.record", trigger=Once.after(timedelta(seconds=3)))

    any_site.mine.delete("later")

    any_site.wait_for_run("witness", "succeeded")
    assert len(any_site.event_log.starts()) == 1
    assert not any_site.runs("later")


def test_a_pause_revokes_a_run_whose_message_is_in_the_queue(any_site):
    any_site.mine.create("queued", task="probe.record", trigger=Once.after(timedelta(seconds=0.5)))
    any_site.mine.create("witness", task="probe.record", trigger=Once.after(timedelta(seconds=1)))
    any_site.beat()
    any_site.wait_for_run("queued", "sent")
    any_site.wait_for_run("witness", "sent")

    any_site.mine.pause("queued")
    worker = any_site.worker()

    witness = any_site.wait_for_run("witness", "succeeded")
    worker.wait_for_log("refused: it has ended as revoked")
    assert [start["run_id"] for start in any_site.event_log.starts()] == [witness.id]
    wait_until(lambda: any_site.runs("queued")[0].status == "revoked", within=5)
