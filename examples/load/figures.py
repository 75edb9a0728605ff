"""Read the figures of a load run from the tables, and delete its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from celery_dynbeat import Dynbeat
from celery_dynbeat.db.models import Run, Schedule

OWNER_PREFIX = "load:"
UNFINISHED = ("pending", "sent", "running", "retrying")

mine = Run.owner.startswith(OWNER_PREFIX)


@dataclass
class Figures:
    """The figures of a load run. ``read`` updates them and reads only lags of new runs."""

    dynbeat: Dynbeat
    since: datetime
    statuses: Mapping[str, int] = field(default_factory=dict)
    due: int = 0
    lags: list[float] = field(default_factory=list)

    def read(self) -> None:
        """Count the runs by status and the due schedules, and collect new lags."""
        self.dynbeat.context.database.read(self._read)

    def _read(self, session: Session) -> None:
        now = self.dynbeat.context.clock.now()
        counted = select(Run.status, func.count()).where(mine).group_by(Run.status)
        self.statuses = dict(session.execute(counted).tuples().all())
        due = select(func.count()).where(Schedule.next_run_at <= now)
        self.due = session.scalar(due) or 0
        # Transactions of the last second may not be visible yet. The next call reads their runs.
        until = now - timedelta(seconds=1)
        # A worker may start a run before beat has marked it sent. Then its start counts.
        sent_at = func.coalesce(Run.sent_at, Run.started_at)
        sent = select(sent_at, Run.fire_at).where(mine, sent_at > self.since, sent_at <= until)
        for at, due_at in session.execute(sent):
            self.lags.append((at - due_at).total_seconds())
        self.since = max(self.since, until)

    @property
    def dispatched(self) -> int:
        """The number of runs that were not skipped."""
        return sum(self.statuses.values()) - self.statuses.get("skipped", 0)

    @property
    def succeeded(self) -> int:
        """The number of runs that succeeded."""
        return self.statuses.get("succeeded", 0)

    @property
    def unfinished(self) -> int:
        """The number of runs that have not ended."""
        return sum(self.statuses.get(status, 0) for status in UNFINISHED)

    def lag(self, quantile: float) -> float:
        """Return a quantile of the lag in milliseconds, or 0.0 before the first run is sent."""
        ordered = sorted(self.lags)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] * 1000 if ordered else 0


def erase(dynbeat: Dynbeat) -> None:
    """Delete the schedules and the history of all owners of a load run."""

    def work(session: Session) -> None:
        session.execute(delete(Run).where(mine))
        session.execute(delete(Schedule).where(Schedule.owner.startswith(OWNER_PREFIX)))

    dynbeat.context.prepare()
    dynbeat.context.database.run(work)
