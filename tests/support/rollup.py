"""Count the ended runs for the rollup, as a beat does."""

from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat import Dynbeat
from celery_dynbeat.store import rollups


def count_runs(dynbeat: Dynbeat, *, now: datetime) -> None:
    """Count the minutes that a beat has counted at ``now``, those of the last 30 days."""
    step = partial(rollups.count_minutes, now=now, retention=timedelta(days=30))
    while dynbeat.context.database.run(step):
        pass
