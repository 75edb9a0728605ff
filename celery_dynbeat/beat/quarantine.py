"""Quarantine a schedule: store its error, so that beat no longer claims it.

An edit or a resume ends the quarantine.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import due
from celery_dynbeat.store.rows import UnreadableRow, format_error, names_of
from celery_dynbeat.telemetry.emitting import emit_on_commit
from celery_dynbeat.telemetry.events import ScheduleQuarantined


class NamedSchedule(Protocol):
    """A row of a schedule."""

    @property
    def id(self) -> int:
        """The id of the row."""

    @property
    def owner(self) -> str:
        """The owner."""

    @property
    def name(self) -> str:
        """The name."""


def quarantine_of(
    schedule: NamedSchedule, error: Exception, *, now: datetime
) -> ScheduleQuarantined:
    """Return the quarantine of a schedule that cannot be planned.

    The caller stores its ``error`` with ``next_run_at`` None, and emits it.
    """
    return ScheduleQuarantined(
        schedule_id=schedule.id,
        owner=schedule.owner,
        schedule=schedule.name,
        error=format_error(error),
        exception=error,
        at=now,
    )


def quarantine_unreadable(
    session: Session, unreadable: Sequence[UnreadableRow], *, now: datetime
) -> None:
    """Quarantine locked schedules whose rows cannot be read."""
    if not unreadable:
        return
    names = names_of(session, Schedule, [row.id for row in unreadable])
    quarantined = [
        ScheduleQuarantined(
            schedule_id=row.id,
            owner=names[row.id].owner,
            schedule=names[row.id].name,
            error=str(row),
            at=now,
        )
        for row in unreadable
    ]
    due.store_unreadable_errors(session, unreadable)
    emit_on_commit(session, *quarantined)
