"""Quarantine: log the error of a schedule and store it, so that beat no longer claims the schedule.

The functions that take a row only log. They return the text for its ``error`` column, and the
caller writes it with ``next_run_at`` None. An edit or a resume ends the quarantine.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.beat.reporting import report_quarantined
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.events import Event
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.runtime import alert_facts
from celery_dynbeat.store import due
from celery_dynbeat.store.rows import UnreadableRow, format_error, names_of

logger = logging.getLogger(__name__)


def log_quarantined(schedule: Any, error: Exception) -> str:
    """Log that a schedule cannot be planned. Return the text for its ``error`` column."""
    logger.error(
        "schedule %r of owner %r is quarantined: %s",
        schedule.name,
        schedule.owner,
        error,
        exc_info=error,
        extra={
            "event": Event.SCHEDULE_QUARANTINED,
            "owner": schedule.owner,
            "schedule": schedule.name,
            "schedule_id": schedule.id,
        },
    )
    return format_error(error)


def log_unpublishable(run: Any, error: Exception, *, run_id: str) -> None:
    """Log that a run has failed because it cannot be published, and its schedule is quarantined."""
    logger.error(
        "run %s has failed and schedule %r of owner %r is quarantined: %s",
        run_id,
        run.name,
        run.owner,
        error,
        extra={
            "event": Event.RUN_UNPUBLISHABLE,
            "owner": run.owner,
            "schedule": run.name,
            "run_id": run_id,
            # Of the attempt that the message was to start.
            "attempt": run.attempt + 1,
        },
    )


def add_facts(session: Session, schedule_ids: Iterable[int], *, now: datetime) -> None:
    """Store that these schedules are quarantined, for their alerts."""
    kind = AlertKind.QUARANTINED
    alert_facts.add(session, [alert_facts.fact(kind, each, at=now) for each in schedule_ids])


def quarantine_unreadable(
    session: Session, unreadable: Sequence[UnreadableRow], *, now: datetime
) -> None:
    """Quarantine locked schedules whose rows cannot be read."""
    names = names_of(session, Schedule, [row.id for row in unreadable])
    for row in unreadable:
        # No exc_info: the traceback may contain the value that cannot be read.
        logger.error(
            "schedule %s is quarantined: %s",
            row.id,
            row,
            extra={
                "event": Event.SCHEDULE_QUARANTINED,
                "owner": names[row.id].owner,
                "schedule": names[row.id].name,
                "schedule_id": row.id,
            },
        )
        report_quarantined(session, schedule_id=row.id, owner=None, name=None, error=str(row))
    due.store_unreadable_errors(session, unreadable)
    add_facts(session, [row.id for row in unreadable], now=now)
