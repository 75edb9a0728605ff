"""The results of the API's calls for runs."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.states import Origin, Status

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Info):
    """A snapshot of a run. Instants are aware and in UTC.

    - ``id`` is the Celery task id.
    - A ``skipped`` run represents ``fire_count`` fire times, and ``scheduled_for`` is the newest.
    - ``schedule_id`` is None after the schedule has been deleted.
    - ``request_id`` is the id of the request that created the run, or None for other runs.
    - ``rerun_of`` is the id of the run that a rerun repeats. The ``scheduled_for`` of a rerun is
      the fire time of that run.
    - ``note`` is the text that the task passed to ``note()``, or None.
    - ``retry_at`` is when the next attempt of a ``retrying`` run is due, or None for other runs.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("lag", "queue_time", "duration")

    id: str
    schedule_id: int | None
    owner: str
    name: str
    task: str
    scheduled_for: datetime
    fire_count: int
    status: str
    origin: str
    request_id: int | None
    rerun_of: str | None
    attempt: int
    retries: int
    created_at: datetime
    sent_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    retry_at: datetime | None
    worker: str | None
    error: str | None
    traceback: str | None
    note: str | None

    @classmethod
    def of(cls, row: "Run") -> "RunInfo":
        """Return a snapshot of a row."""
        special: dict[str, Any] = {
            "scheduled_for": row.nominal_at or row.scheduled_for,
            # On an ended run the column is an instant for maintenance.
            "retry_at": row.retry_at if row.status == Status.RETRYING else None,
        }
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

    @property
    def lag(self) -> timedelta | None:
        """The time from the fire time until the run was sent, or None if it was not sent.

        For a rerun, a run of a backfill and a manual run, it counts from ``created_at`` instead.
        """
        if self.sent_at is None:
            return None
        since = self.scheduled_for if self.origin == Origin.SCHEDULE else self.created_at
        return self.sent_at - since

    @property
    def queue_time(self) -> timedelta | None:
        """The time from the first send to the start of the last attempt, or None before a start.

        It is 0 if a worker started the run before beat recorded that it had been sent.
        """
        return _elapsed(self.sent_at, self.started_at)

    @property
    def duration(self) -> timedelta | None:
        """The time from the start of the last attempt to the end of the run; None until then.

        It is never negative, even if the clock was set back during the run.
        """
        return _elapsed(self.started_at, self.finished_at)


def _elapsed(since: datetime | None, until: datetime | None) -> timedelta | None:
    if since is None or until is None:
        return None
    return max(timedelta(0), until - since)
