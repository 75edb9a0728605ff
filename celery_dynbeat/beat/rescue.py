"""Rescue runs whose worker died, and retries that the broker lost."""

import logging
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.runtime.dead_attempts import EndedAttempts, end_attempts
from celery_dynbeat.store import stuck_runs

logger = logging.getLogger(__name__)


def rescue_runs(
    session: Session, *, now: datetime, silence: timedelta, settings: Settings
) -> EndedAttempts:
    """Deal with a batch of runs whose worker is gone.

    ``silence`` is what ``runtime.node_timeout`` says.
    """
    found = stuck_runs.lock_lost(session, silent_since=now - silence, limit=settings.batch_size)
    return end_attempts(session, found, now=now, settings=settings, reason="its worker is gone")


def resend_retries(session: Session, *, now: datetime, settings: Settings) -> int:
    """Have a batch of runs sent once more whose retry the broker has forgotten; return how many."""
    before = now - settings.resend_after
    recalled = stuck_runs.resend_retries(session, before=before, now=now, limit=settings.batch_size)
    if recalled:
        logger.warning(
            "%s retries were not begun within %s and are sent once more",
            recalled,
            settings.resend_after,
            extra={"event": Event.RETRIES_RESENT},
        )
    return recalled
