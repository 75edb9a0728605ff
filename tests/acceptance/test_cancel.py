"""A real worker drops the messages of cancelled runs."""


def test_the_message_of_a_cancelled_run_starts_no_task(any_site):
    """All messages are in the queue before the worker starts; one of them is for the last run."""
    mine = any_site.mine
    any_site.beat()
    for name in ("one", "many", "last"):
        any_site.create_once(name, task="probe.record")
        any_site.wait_for_run(name, "sent")
    cancelled = mine.cancel_run(mine.runs("one")[0].id)
    assert mine.cancel_runs(name="many") == 1

    worker = any_site.worker()

    last = any_site.wait_for_run("last", "succeeded")
    refused = [cancelled.id, mine.runs("many")[0].id]
    for run_id in refused:
        worker.wait_for_log(f"run {run_id} refused: it has ended as revoked")
    assert [len(any_site.event_log.starts(run_id)) for run_id in (*refused, last.id)] == [0, 0, 1]
    for name in ("one", "many"):
        (run,) = mine.runs(name)
        assert (run.status, run.attempt, run.error) == ("revoked", 0, "the run was cancelled")


def test_the_retry_of_a_cancelled_run_starts_no_task(file_site):
    mine = file_site.mine
    file_site.beat()
    worker = file_site.worker()
    file_site.create_once("retry", kwargs={"countdown": 3})
    run = file_site.wait_for_run("retry", "retrying")

    assert mine.cancel_run(run.id).status == "revoked"

    worker.wait_for_log(f"run {run.id} refused: it has ended as revoked")
    assert mine.get_run(run.id).status == "revoked"
    assert len(file_site.event_log.starts(run.id)) == 1
