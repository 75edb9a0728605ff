"""The results of the API's calls for alerts."""

from dataclasses import dataclass
from datetime import datetime

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.alert_kinds import words_of
from celery_dynbeat.db.statements import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertInfo(Info):
    """A snapshot of the last alert of one kind of a schedule. Instants are aware and in UTC.

    - ``kind`` is a value of ``AlertKind``. ``cause`` is why the alert opened, and ``next_step``
      what to do.
    - ``owner`` and ``schedule`` of an alert about beats or workers are empty.
    - ``run_id`` is the run that shows the cause, or None.
    - ``recovered_at`` is None while the alert is open. ``reported_at`` is when a message last
      reported the alert, or None.
    """

    id: int
    owner: str
    schedule: str
    task: str
    kind: str
    cause: str
    next_step: str
    run_id: str | None
    opened_at: datetime
    recovered_at: datetime | None
    reported_at: datetime | None

    @classmethod
    def of(cls, row: Row) -> "AlertInfo":
        """Return a snapshot of a row."""
        return cls(
            id=row.id,
            owner=row.owner,
            schedule=row.name,
            task=row.task,
            kind=row.kind,
            cause=row.cause,
            next_step=words_of(row.kind, schedule_id=row.schedule_id).next_step,
            run_id=row.run_id,
            opened_at=row.opened_at,
            recovered_at=row.recovered_at,
            reported_at=row.reported_at,
        )
