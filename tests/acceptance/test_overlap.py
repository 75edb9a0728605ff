"""Overlap policies with real beats and workers."""

from celery_dynbeat import Every


def statuses(site, name):
    """Return the statuses of the runs of a schedule, oldest first."""
    return [run.status for run in reversed(site.runs(name))]


def test_cancel_previous_terminates_the_previous_run(running):
    fields = {"kwargs": {"gate": "/nowhere"}, "overlap": "cancel_previous"}
    running.mine.create("takes-over", task="probe.hold", trigger=Every(2), **fields)
    first = running.wait_for_run("takes-over", "running")

    second = running.wait_for_run("takes-over", "running", where=lambda found: found.id != first.id)
    running.mine.pause("takes-over")
    running.app.control.revoke(second.id, terminate=True)

    running.wait_for_run("takes-over", "revoked")
    ended = {run.id: (run.status, run.error) for run in running.runs("takes-over")}
    assert ended[first.id] == ("revoked", "terminated")


def test_buffer_one_sends_the_buffered_run_when_the_other_run_ends(running):
    gate = running.gate("buffer")
    fields = {"kwargs": {"gate": str(gate)}, "overlap": "buffer_one"}
    running.mine.create("waits", task="probe.hold", trigger=Every(1), **fields)
    running.wait_for_run("waits", "skipped")
    assert statuses(running, "waits")[:3] == ["running", "pending", "skipped"]

    gate.touch()

    # Much sooner than dynbeat_dispatch_timeout, when the sweep would send it.
    running.wait_for_run(
        "waits", "succeeded", within=10, where=lambda _: "pending" not in statuses(running, "waits")
    )
    running.mine.delete("waits")
