"""End the attempts that a worker has started and does not execute."""

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
    """End the ``attempts``, one for each run id, that ``worker`` does not execute.

    A run that has ended, or has started another attempt, stays unchanged.
    """
    locked = stuck_runs.lock_attempts(session, worker=worker, attempts=attempts)
    return end_attempts(
        session, locked, now=now, settings=settings, reason="its pool process is gone"
    )
