"""A real worker drops the retry of a cancelled run."""


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
