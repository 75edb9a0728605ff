"""Where beat looks for work, how often, and what it may still believe of the look before."""

from datetime import UTC, datetime, timedelta
from functools import partial

from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import pending_work

#: When all that is due is in the hands of other beats, look again after this.
ELSEWHERE_PAUSE = timedelta(milliseconds=50)
ALREADY = datetime.min.replace(tzinfo=UTC)


class DuePoller:
    """Asks the database what there is to do: everywhere once in ``interval``, else from its front.

    A pass that is made for something else, when nothing was due and nobody told of a change, asks
    nothing.
    """

    def __init__(self, *, database: Database, interval: timedelta) -> None:
        self._database = database
        self._interval = interval
        self._front = pending_work.NO_WATERMARK
        self._everywhere_at: datetime | None = None
        self._due_at: datetime | None = None
        self._idle: pending_work.PendingWork | None = None

    @property
    def front(self) -> pending_work.Watermark:
        """Where the last look found that nothing was due before."""
        return self._front

    def everywhere(self) -> None:
        """Let the next look be one everywhere: what was committed late may be due since long."""
        self._front, self._everywhere_at, self._idle = pending_work.NO_WATERMARK, None, None

    def on_change(self) -> None:
        """Let the next pass look everywhere, behind a claim: what changed may be due by now."""
        self.everywhere()
        self._due_at = ALREADY

    def expects_due(self, now: datetime) -> bool:
        """Return, once for each rest, whether something should be due: then a claim goes first."""
        due_at, self._due_at = self._due_at, None
        return is_due(due_at, now)

    def look(self, now: datetime) -> pending_work.PendingWork:
        """Return what there is to do."""
        idle, self._idle = self._idle, None
        if not self._is_fresh(now):
            self._front, self._everywhere_at = pending_work.NO_WATERMARK, now
        elif idle is not None and not is_due(idle.earliest(), now):
            return idle
        look = partial(
            pending_work.read, now=now, until=now + self._interval, watermark=self._front
        )
        todo = self._database.read(look)
        self._front = todo.watermark
        return todo

    def _is_fresh(self, now: datetime) -> bool:
        at = self._everywhere_at
        # Before it: the clock was set back.
        return at is not None and at <= now < at + self._interval

    def rest(self, todo: pending_work.PendingWork, now: datetime) -> timedelta:
        """Note that a pass found nothing to do but ``todo``, and return how long that may wait."""
        earliest = todo.earliest()
        if is_due(earliest, now):
            return ELSEWHERE_PAUSE
        self._idle, self._due_at = todo, todo.next_run_at
        next_at = None if self._everywhere_at is None else self._everywhere_at + self._interval
        return min([self._interval, *(at - now for at in (earliest, next_at) if at is not None)])


def is_due(instant: datetime | None, now: datetime) -> bool:
    """Return whether ``instant`` has come; None never does."""
    return instant is not None and instant <= now
