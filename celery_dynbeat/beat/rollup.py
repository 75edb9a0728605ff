"""The duty of beat that counts the ended runs, for the pages and the metrics (``store.rollups``).

It has a thread, so no pass of beat waits while many runs are counted.
"""

from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import rollups

EVERY = timedelta(seconds=15)


class RollupDuty:
    """Counts the ended runs of each minute."""

    def __init__(self, *, database: Database, retention: timedelta) -> None:
        self._database = database
        self._retention = retention
        #: When to count, or None before the first contact with the database after an outage.
        self._counts_from: datetime | None = None

    def run(self, now: datetime) -> None:
        """Count the minutes that are not counted yet.

        After the start of beat and after an outage of the database, workers write the outcomes that
        they have buffered. The duty waits SETTLED_AFTER for them.
        """
        try:
            self._count(now)
        except BaseException:
            self._counts_from = None
            raise

    def _count(self, now: datetime) -> None:
        counted = self._database.read(rollups.counted_until)
        if self._counts_from is None:
            self._counts_from = now + rollups.SETTLED_AFTER
        # Later than that means that the clock was set back.
        if now < self._counts_from <= now + rollups.SETTLED_AFTER:
            return
        if counted == rollups.floor(now - rollups.SETTLED_AFTER):
            return
        step = partial(rollups.count_minutes, now=now, retention=self._retention)
        while self._database.run(step):
            pass
