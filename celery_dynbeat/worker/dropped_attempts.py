"""End the attempts that a worker holds and does not execute."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.runtime.dead_attempts import EndedAttempts, end_attempts
from celery_dynbeat.store import stuck_runs


def end_dropped(
    session: Session,
    *,
    worker: str,
    attempts: Mapping[str, int],
    now: datetime,
    settings: Settings,
) -> EndedAttempts:
    """Deal with the attempts, one for each run id, that ``worker`` says it does not execute.

    A run that has ended meanwhile, or begun another attempt, is not touched.
    """
    found = stuck_runs.lock_attempts(session, worker=worker, attempts=attempts)
    return end_attempts(
        session, found, now=now, settings=settings, reason="its pool process is gone"
    )
