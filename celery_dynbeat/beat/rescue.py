"""Rescue runs whose worker died, and resend retries that the broker lost.

running, its worker is dead                                     -> ``runtime.dead_attempts``
retrying, replaced by a canvas, begun max_run_time ago          -> lost
retrying, not started dynbeat_resend_after past its retry time  -> pending, sent again
"""

from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.runtime.dead_attempts import EndedAttempts, end_attempts
from celery_dynbeat.store import stuck_runs
from celery_dynbeat.store.rows import LockedRows
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit_on_commit, has_listeners

WORKER_GONE = "its worker is gone"
CANVAS_LOST = "the canvas that replaced its task did not end within max_run_time"


def rescue_runs(
    session: Session, *, now: datetime, node_timeout: timedelta, settings: Settings
) -> EndedAttempts:
    """End the attempts of a batch of runs whose worker is dead, or whose canvas was lost.

    A worker is dead if it was replaced or its row is missing, or if it has been stopped or silent
    for ``node_timeout``.
    """
    lost = stuck_runs.lock_lost(
        session,
        now=now,
        silent_since=now - node_timeout,
        max_run_time=settings.max_run_time,
        limit=settings.batch_size,
    )
    end = partial(end_attempts, session, now=now, settings=settings)
    waiting = [row for row in lost.rows if row.status == Status.RETRYING]
    running = [row for row in lost.rows if row.status != Status.RETRYING]
    canvases = end(LockedRows(waiting, []), reason=CANVAS_LOST)
    attempts = end(LockedRows(running, lost.unreadable), reason=WORKER_GONE)
    return EndedAttempts(canvases.count + attempts.count, attempts.rerun_count)


def resend_retries(session: Session, *, now: datetime, settings: Settings) -> int:
    """Make a batch of runs pending whose retry the broker has lost; return how many."""
    before = now - settings.resend_after
    resent = stuck_runs.resend_retries(session, before=before, now=now, limit=settings.batch_size)
    if resent and has_listeners(events.RetriesResent):
        event = events.RetriesResent(count=resent, resend_after=settings.resend_after)
        emit_on_commit(session, event)
    return resent
