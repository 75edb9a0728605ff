"""How soon beat acts upon a change that it would find too late by polling."""

from datetime import timedelta

from celery_dynbeat import Once
from tests.support.sites import Site


def create_one_off(site: Site, name: str) -> None:
    """Create a one-off that beat finds in time only if it is told."""
    site.mine.upsert(name, task="probe.record", trigger=Once.after(timedelta(seconds=1)))


def lag_of(site: Site, name: str) -> float:
    """Return how late that one-off was sent, in seconds."""
    ends = ("sent", "running", "succeeded")
    # A worker may be faster than beat, which says when it sent the run.
    found = site.wait_for_run(name, *ends, where=lambda run: run.sent_at is not None).lag
    assert found is not None
    return found.total_seconds()


def change_latency(site: Site, name: str) -> float:
    """Make a change and return by how many seconds beat was late."""
    create_one_off(site, name)
    return lag_of(site, name)
