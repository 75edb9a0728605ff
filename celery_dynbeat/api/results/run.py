"""The results of the API's calls for runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.states import Origin, Status, Wait, lag_of

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Info):
    """A snapshot of a run. Instants are aware and in UTC.

    - ``id`` is the Celery task id.
    - A ``skipped`` run represents ``fire_count`` fire times, and ``scheduled_for`` is the newest.
    - ``schedule_id`` is None after the schedule has been deleted.
    - ``batch_id`` is the id of the batch that the run belongs to, or None for other runs.
    - ``rerun_of`` is the id of the run that a rerun repeats. The ``scheduled_for`` of a rerun is
      the fire time of that run.
    - ``earlier_errors`` has a text for each earlier attempt that failed or was lost, the oldest
      first, such as ``attempt 1, 2026-11-21T09:00:05Z: KeyError: 17``. Of very many attempts, the
      first ones are kept.
    - ``note`` is the text that the task passed to ``note()``, or None.
    - ``waited_for`` is what the run waits or last waited for: ``place``, ``hold``, ``quiet``,
      ``previous``, ``batch`` for its turn in a batch or, if its task has postponed it,
      ``postponed``. None means that it has not
      waited. ``ready_at`` is when it could be sent, or None if it did not wait or still waits.
    - ``retry_at`` is when the next attempt of a run is due that is ``retrying`` or that its task
      has postponed, or None for other runs.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("wait", "lag", "queue_time", "duration")

    id: str
    schedule_id: int | None
    owner: str
    name: str
    task: str
    scheduled_for: datetime
    fire_count: int
    status: str
    origin: str
    batch_id: str | None
    rerun_of: str | None
    attempt: int
    retries: int
    created_at: datetime
    sent_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    waited_for: str | None
    ready_at: datetime | None
    retry_at: datetime | None
    worker: str | None
    error: str | None
    traceback: str | None
    earlier_errors: Sequence[str]
    note: str | None

    @classmethod
    def of(cls, row: "Run") -> "RunInfo":
        """Return a snapshot of a row."""
        is_postponed = (row.status, row.waited_for) == (Status.PENDING, Wait.POSTPONED)
        postponed_until = row.overdue_at if is_postponed and row.ready_at is None else None
        special: dict[str, Any] = {
            "scheduled_for": row.nominal_at or row.scheduled_for,
            # On an ended run the column is an instant for maintenance.
            "earlier_errors": tuple((row.earlier_errors or "").splitlines()),
            "retry_at": row.retry_at if row.status == Status.RETRYING else postponed_until,
        }
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for what ``waited_for`` names."""
        is_pending = self.status == Status.PENDING
        return is_pending and self.waited_for is not None and self.ready_at is None

    @property
    def due_at(self) -> datetime:
        """The fire time; for a rerun, a run of a backfill and a manual run, ``created_at``."""
        return self.scheduled_for if self.origin == Origin.SCHEDULE else self.created_at

    @property
    def wait(self) -> timedelta | None:
        """The time that the first attempt waited for ``waited_for``, from ``due_at``.

        None means that it did not wait, that it still waits, or that a later attempt has waited.
        """
        is_retry = self.sent_at and self.ready_at and self.ready_at > self.sent_at
        return None if is_retry else _elapsed(self.due_at, self.ready_at)

    @property
    def lag(self) -> timedelta | None:
        """The time from ``due_at`` until the run was sent, or None if it was not sent.

        For a run that waited, it counts from ``ready_at``.
        """
        if self.sent_at is None:
            return None
        return lag_of(sent_at=self.sent_at, due_at=self.due_at, ready_at=self.ready_at)

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
