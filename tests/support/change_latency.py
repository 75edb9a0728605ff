"""Measure how fast beat acts on a change that polling would find too late."""

from datetime import timedelta

from celery_dynbeat import Once
from tests.support.sites import Site


def create_one_off(site: Site, name: str) -> None:
    """Create a one-off that beat finds in time only if it is notified."""
    site.mine.upsert(name, task="probe.record", trigger=Once.after(timedelta(seconds=1)))


def lag_of(site: Site, name: str) -> float:
    """Return the lag of that one-off in seconds."""
    statuses = ("sent", "running", "succeeded")
    # A worker may be faster than beat, which writes sent_at.
    lag = site.wait_for_run(name, *statuses, where=lambda run: run.sent_at is not None).lag
    assert lag is not None
    return lag.total_seconds()


def change_latency(site: Site, name: str) -> float:
    """Create a one-off and return its lag in seconds."""
    create_one_off(site, name)
    return lag_of(site, name)
