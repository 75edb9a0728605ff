"""Poll the database for pending work, and compute how long beat may sleep."""

from datetime import UTC, datetime, timedelta
from functools import partial

from celery_dynbeat.db.engine import Database
from celery_dynbeat.store.schedules import due

#: Beat polls again after this time if other beats have locked all due rows.
LOCKED_PAUSE = timedelta(milliseconds=50)
#: An instant before any instant that a clock shows.
_ALWAYS = datetime.min.replace(tzinfo=UTC)


class DuePoller:
    """Polls the database for pending work, and computes how long beat may sleep.

        full poll (once per interval) -> watermark: nothing was due before it
        other polls                   -> start at the watermark
        nothing due, no notification  -> the last result is used again, without a query

    A full poll finds rows that were committed late, with an instant before the watermark.
    """

    def __init__(self, *, database: Database, interval: timedelta) -> None:
        self._database = database
        self._interval = interval
        self._watermark = due.NO_WATERMARK
        self._full_poll_at: datetime | None = None
        self._expected_at: datetime | None = None
        self._idle: due.PendingWork | None = None

    @property
    def watermark(self) -> due.Watermark:
        """The instants before which the last poll found nothing."""
        return self._watermark

    def reset(self) -> None:
        """Make the next poll a full poll, because a row that is committed late may be due."""
        self._watermark, self._full_poll_at, self._idle = due.NO_WATERMARK, None, None

    def on_change(self) -> None:
        """Expect due rows after a change of a schedule, and make the next poll a full poll."""
        self.reset()
        self._expected_at = _ALWAYS

    def expects_due(self, now: datetime) -> bool:
        """Return whether a schedule should be due, so that a claim without a poll is worth it.

        The result is True once after each ``next_wait`` or ``on_change``.
        """
        expected_at, self._expected_at = self._expected_at, None
        return is_due(expected_at, now)

    def poll(
        self,
        now: datetime,
        *,
        except_ids: frozenset[int] = frozenset(),
        except_runs: frozenset[str] = frozenset(),
    ) -> due.PendingWork:
        """Return the pending work without the schedules and the runs that beat leaves out."""
        idle, self._idle = self._idle, None
        if not self._is_fresh(now):
            self._watermark, self._full_poll_at = due.NO_WATERMARK, now
        elif idle is not None and not is_due(idle.earliest(), now):
            return idle
        until = now + self._interval
        read = partial(
            due.read_pending,
            now=now,
            until=until,
            watermark=self._watermark,
            except_ids=except_ids,
            except_runs=except_runs,
        )
        pending = self._database.read(read)
        self._watermark = pending.watermark
        return pending

    def _is_fresh(self, now: datetime) -> bool:
        at = self._full_poll_at
        # ``now`` is before ``at`` when the clock was set back.
        return at is not None and at <= now < at + self._interval

    def next_wait(self, pending: due.PendingWork, now: datetime) -> timedelta:
        """Return how long beat may sleep after a pass that has left only ``pending``."""
        earliest = pending.earliest()
        if is_due(earliest, now):
            return LOCKED_PAUSE
        self._idle, self._expected_at = pending, pending.next_run_at
        full_poll_at = None if self._full_poll_at is None else self._full_poll_at + self._interval
        return min([self._interval, *(at - now for at in (earliest, full_poll_at) if at)])


def is_due(instant: datetime | None, now: datetime) -> bool:
    """Return whether ``instant`` is not after ``now``. None is never due."""
    return instant is not None and instant <= now
