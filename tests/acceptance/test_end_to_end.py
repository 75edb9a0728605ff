"""From a row to a finished run, with a real beat and worker, on each combination.

The tests share the processes of a combination. A test that needs messages in a queue uses another
queue, and a worker that starts later.
"""

from datetime import datetime, timedelta

import pytest

from celery_dynbeat import Cron, Every, Once

SECOND = timedelta(seconds=1)


#: What beat and the worker decide by the rows. Another test has each broker and database.
one_combination = pytest.mark.parametrize("each_running", ["postgresql-redis"], indirect=True)


@pytest.mark.quick("sqlite-sqlalchemy", "postgresql-redis")
def test_each_kind_of_trigger_runs_and_has_a_complete_history(each_running):
    triggers = {"cron": Cron("* * * * * *"), "every": Every(SECOND), "once": Once.after(SECOND)}
    for name, trigger in triggers.items():
        each_running.mine.create(name, task="probe.record", trigger=trigger)

    for name in triggers:
        # A worker may start the run before beat records sent_at.
        run = each_running.wait_for_run(
            name, "succeeded", where=lambda run: run.sent_at is not None
        )
        assert run.fire_at <= run.started_at <= run.finished_at
        assert (run.worker, run.attempt, run.error) == ("w1@test", 1, None)
        assert len(each_running.event_log.starts(run.id)) == 1
    assert each_running.mine.get("once").finished_at is not None
    for name in triggers:
        each_running.mine.delete(name)


def test_the_task_finds_its_run_in_the_headers(each_running):
    each_running.create_once("digest", task="probe.record", options={"headers": {"tenant": "blue"}})

    run = each_running.wait_for_run("digest", "succeeded")
    (start,) = each_running.event_log.starts(run.id)
    assert run.fire_at < datetime.fromisoformat(start["headers"]["dynbeat_sent_at"])
    assert start["headers"] == {
        "tenant": "blue",
        "dynbeat_run_id": run.id,
        "dynbeat_schedule": "digest",
        "dynbeat_owner": "user:1",
        "dynbeat_fire_at": run.fire_at.isoformat(),
        "dynbeat_attempt": 1,
        "dynbeat_sent_at": start["headers"]["dynbeat_sent_at"],
        "celery_beat_task": True,
        "periodic_task_name": "digest",
    }


@one_combination
def test_an_edit_takes_effect_while_beat_and_worker_run(each_running):
    mine = each_running.mine
    mine.create("edited", task="probe.unwanted", trigger=Every(timedelta(hours=1)))

    mine.update("edited", task="probe.record", trigger=Every(SECOND), args=[2])

    assert each_running.wait_for_run("edited", "succeeded").task == "probe.record"
    mine.delete("edited")


@one_combination
def test_a_deleted_one_off_never_starts(each_running):
    mine = each_running.mine
    mine.create("later", task="probe.record", trigger=Once.after(2 * SECOND))
    mine.create("after-later", task="probe.record", trigger=Once.after(3 * SECOND))

    mine.delete("later")

    each_running.wait_for_run("after-later", "succeeded")
    started = {start["headers"]["dynbeat_schedule"] for start in each_running.event_log.starts()}
    assert "after-later" in started
    assert "later" not in started
    assert not each_running.runs("later")


@one_combination
def test_a_pause_revokes_a_run_whose_message_is_in_the_queue(each_running):
    for name in ("paused", "after-paused"):
        each_running.create_once(name, task="probe.record", queue="paused")
        each_running.wait_for_run(name, "sent")

    each_running.mine.pause("paused")
    worker = each_running.worker("-Q", "paused", name="w2@test")

    witness = each_running.wait_for_run("after-paused", "succeeded")
    worker.wait_for_log("refused: it has ended as revoked")
    (revoked,) = each_running.runs("paused")
    starts = [each_running.event_log.starts(run.id) for run in (revoked, witness)]
    assert list(map(len, starts)) == [0, 1]
    assert revoked.status == "revoked"
    worker.terminate()


@one_combination
def test_the_message_of_a_cancelled_run_starts_no_task(each_running):
    """All messages are in the queue before the worker starts; one of them is for the last run."""
    mine = each_running.mine
    for name in ("one", "many", "last"):
        each_running.create_once(name, task="probe.record", queue="cancelled")
        each_running.wait_for_run(name, "sent")
    cancelled = mine.cancel_run(mine.runs("one")[0].id)
    assert mine.cancel_runs(name="many") == 1

    worker = each_running.worker("-Q", "cancelled", name="w3@test")

    last = each_running.wait_for_run("last", "succeeded")
    refused = [cancelled.id, mine.runs("many")[0].id]
    for run_id in refused:
        worker.wait_for_log(f"run {run_id} refused: it has ended as revoked")
    starts = [each_running.event_log.starts(run_id) for run_id in (*refused, last.id)]
    assert list(map(len, starts)) == [0, 0, 1]
    for name in ("one", "many"):
        (run,) = mine.runs(name)
        assert (run.status, run.attempt, run.error) == ("revoked", 0, "the run was cancelled")
    worker.terminate()
