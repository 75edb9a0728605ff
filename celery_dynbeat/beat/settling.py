"""The duty that corrects the schedules of ended runs (``store.schedules.failing``)."""

from datetime import datetime, timedelta

from celery_dynbeat.beat.duties import NOW, Done
from celery_dynbeat.db.engine import Database
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.store.schedules.failing import RECENT, settle_deferred


class Settling:
    """Corrects all schedules now and then, and those of recent runs when a poll finds some."""

    def __init__(self, database: Database, left_out: LeftOut[str], *, interval: timedelta) -> None:
        self._database, self._left_out, self._interval = database, left_out, interval

    def settle(self, now: datetime) -> Done:
        """Correct the schedules of some ended runs."""
        changed = self._settle(now, since=None)
        return Done(changed, again_after=NOW if changed else None)

    def settle_recent(self, now: datetime) -> Done:
        """Correct the schedules of some runs that ended recently."""
        return Done(self._settle(now, since=now - RECENT))

    def _settle(self, now: datetime, *, since: datetime | None) -> int:
        settled = settle_deferred(
            self._database,
            now=now,
            retry_after=self._interval,
            since=since,
            except_ids=self._left_out.ids(now),
        )
        for end, error in settled.refused.items():
            self._left_out.add(end, error, now=now)
        return settled.corrected
