"""Rescue runs whose worker died, and resend retries that the broker lost.

running, its worker is dead                                     -> ``runtime.dead_attempts``
retrying, not started dynbeat_resend_after past its retry time  -> pending, sent again
"""

import logging
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat import signals
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.runtime.dead_attempts import EndedAttempts, end_attempts
from celery_dynbeat.signals.sending import send_after_commit
from celery_dynbeat.store import stuck_runs

logger = logging.getLogger(__name__)


def rescue_runs(
    session: Session, *, now: datetime, node_timeout: timedelta, settings: Settings
) -> EndedAttempts:
    """End the attempts of a batch of runs whose worker is dead.

    A worker is dead if it was replaced or its row is missing, or if it has been stopped or silent
    for ``node_timeout``.
    """
    lost = stuck_runs.lock_lost(session, silent_since=now - node_timeout, limit=settings.batch_size)
    return end_attempts(session, lost, now=now, settings=settings, reason="its worker is gone")


def resend_retries(session: Session, *, now: datetime, settings: Settings) -> int:
    """Make a batch of runs pending whose retry the broker has lost; return how many."""
    before = now - settings.resend_after
    resent = stuck_runs.resend_retries(session, before=before, now=now, limit=settings.batch_size)
    if resent:
        send_after_commit(session, signals.retries_resent, signals.RetriesResent(count=resent))
        logger.warning(
            "%s retries did not start within %s after they were due and are sent again",
            resent,
            settings.resend_after,
            extra={"event": Event.RETRIES_RESENT, "count": resent},
        )
    return resent
