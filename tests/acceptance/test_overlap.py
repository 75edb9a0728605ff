"""Overlap and lost runs with real beats and workers: what is revoked, released, begun anew."""

from celery_dynbeat import Every


def statuses(site, name):
    """Return the states of the runs of a schedule, the oldest first."""
    return [run.status for run in reversed(site.runs(name))]


def test_cancel_previous_terminates_the_run_before(running):
    fields = {"kwargs": {"gate": "/nowhere"}, "overlap": "cancel_previous"}
    running.mine.create("takes-over", task="probe.hold", trigger=Every(2), **fields)
    first = running.wait_for_run("takes-over", "running")

    second = running.wait_for_run("takes-over", "running", where=lambda found: found.id != first.id)
    running.mine.pause("takes-over")
    running.app.control.revoke(second.id, terminate=True)

    running.wait_for_run("takes-over", "revoked")
    ended = {run.id: (run.status, run.error) for run in running.runs("takes-over")}
    assert ended[first.id] == ("revoked", "terminated")


def test_buffer_one_sends_the_run_that_waits_when_the_worker_ends_the_other(running):
    gate = running.gate("buffer")
    fields = {"kwargs": {"gate": str(gate)}, "overlap": "buffer_one"}
    running.mine.create("waits", task="probe.hold", trigger=Every(1), **fields)
    running.wait_for_run("waits", "skipped")
    assert statuses(running, "waits")[:3] == ["running", "pending", "skipped"]

    gate.touch()

    # Far sooner than dynbeat_dispatch_timeout, after which beat would have looked by itself.
    running.wait_for_run(
        "waits", "succeeded", within=10, where=lambda _: "pending" not in statuses(running, "waits")
    )
    running.mine.delete("waits")
