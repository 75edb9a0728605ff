"""Pause a schedule: by a call of the API, or because its runs fail."""

import logging
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import runs, schedules, stuck_runs

logger = logging.getLogger(__name__)


def pause(session: Session, row: Schedule, *, reason: str, now: datetime) -> None:
    """Pause a locked schedule and revoke its runs that have not started, except manual runs.

    ``next_fire_at`` stays unchanged: a resume records the fire times missed since then.
    """
    row.enabled, row.paused_reason = False, reason
    row.next_run_at = None
    row.version += 1
    row.updated_at = now
    session.flush()
    runs.revoke_unstarted(
        session,
        schedule_ids=[row.id],
        now=now,
        reason="the schedule was paused",
        keep_manual=True,
    )


def pause_if_failing(session: Session, *, schedule_id: int, limit: int, now: datetime) -> bool:
    """Pause a schedule whose last ``limit`` runs all failed or were lost; return whether it did.

    Runs that ended before the last edit or resume do not count. Call it in its own transaction: it
    locks the schedule, and a schedule is locked before its runs.
    """
    row = schedules.lock_id(session, schedule_id=schedule_id)
    if row is None or not row.enabled:
        return False
    ends = stuck_runs.latest_outcomes(session, schedule_id=schedule_id, limit=limit)
    failures = [
        end for end in ends if end.status != Status.SUCCEEDED and end.finished_at > row.updated_at
    ]
    if len(failures) < limit:
        return False
    rule = f"{limit} failures in a row"
    reason = f"{rule}; the last: {failures[0].error}"
    pause(session, row, reason=reason, now=now)
    logger.warning(
        "schedule %r of owner %r is paused: %s",
        row.name,
        row.owner,
        # Not the reason: the error of a task can contain its arguments.
        rule,
        extra={"event": Event.SCHEDULE_PAUSED, "schedule_id": row.id},
    )
    return True


def pause_all_failing(database: Database, limits: Mapping[int, int], *, now: datetime) -> None:
    """Pause each schedule whose last runs failed as often as its limit says, one by one."""
    for schedule_id, limit in limits.items():
        database.run(partial(pause_if_failing, schedule_id=schedule_id, limit=limit, now=now))
