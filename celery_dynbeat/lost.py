"""Runs that nobody would end: their worker is gone, or the message of their retry is.

Gone is a worker that was killed, replaced, or silent for dynbeat_node_timeout.

    running, its node is gone, on_lost="record" (the default)         -> lost
    running, its node is gone, on_lost="rerun" (an idempotent task)    -> pending, sent once more
    running, its node is gone, the broker delivered its message again  -> pending, sent once more
    the same, for the MOST_ATTEMPTS-th time: it may be what kills them -> lost
    running, its node is gone, a newer run was to replace it           -> revoked
    retrying, not begun dynbeat_resend_after past its time             -> pending, sent once more

The same becomes of a run whose node lives and does not execute it: that node says so itself
(``pool_check``).

A worker that was only slow and comes back records how its attempt ended, over ``lost``. Against a
second start stands the guard: what the broker delivers again finds the run started or ended.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.clock import RESYNC_EVERY, Clock
from celery_dynbeat.db.models import Origin
from celery_dynbeat.events import Event
from celery_dynbeat.settings import Settings
from celery_dynbeat.states import Status
from celery_dynbeat.store import losses
from celery_dynbeat.store.overlaps import REPLACED
from celery_dynbeat.store.rows import Found

logger = logging.getLogger(__name__)

#: A run that took as many workers with it is not sent again.
MOST_ATTEMPTS = 5
AGES = timedelta(days=36_500)


def longest_silence(clock: Clock, settings: Settings) -> timedelta:
    """Return for how long a node may be silent before it counts as gone.

    That is dynbeat_node_timeout; but AGES after the database's clock was set, when all nodes seem
    to have been silent. Each of them reads it anew within RESYNC_EVERY, and then says that it
    lives.
    """
    timeout = settings.node_timeout
    return timeout if clock.steady_for() > RESYNC_EVERY + timeout else AGES


@dataclass(frozen=True, slots=True)
class Losses:
    """What became of a batch of runs whose attempt is dead.

    ``limits`` holds the schedules that may have to be paused, each with the number of failures in
    a row that its policy allows.
    """

    number: int
    rerun: int
    limits: Mapping[int, int]


def take_lost(session: Session, *, now: datetime, silence: timedelta, settings: Settings) -> Losses:
    """Deal with a batch of runs whose worker is gone.

    ``silence`` is what ``longest_silence`` says.
    """
    found = losses.lock_lost(session, silent_since=now - silence, limit=settings.batch_size)
    return _deal(session, found, now=now, settings=settings, reason="its worker is gone")


def take_dropped(
    session: Session,
    *,
    worker: str,
    attempts: Mapping[str, int],
    now: datetime,
    settings: Settings,
) -> Losses:
    """Deal with the attempts, one for each run id, that ``worker`` says it does not execute.

    A run that has ended meanwhile, or begun another attempt, is not touched.
    """
    found = losses.lock_dropped(session, worker=worker, attempts=attempts)
    return _deal(session, found, now=now, settings=settings, reason="its pool process is gone")


def _deal(
    session: Session, found: Found, *, now: datetime, settings: Settings, reason: str
) -> Losses:
    for damage in found.damaged:
        losses.end(session, [damage.id], status=Status.LOST, now=now, error=str(damage))
    cancelled = [row for row in found.rows if row.cancelled_at is not None]
    others = [row for row in found.rows if row.cancelled_at is None]
    again = [row for row in others if _is_rerun(row, settings)]
    lost = [row for row in others if not _is_rerun(row, settings)]
    losses.end(session, _ids(cancelled), status=Status.REVOKED, now=now, error=REPLACED)
    losses.rerun(session, _ids(again), now=now, error=reason)
    losses.end(session, _ids(lost), status=Status.LOST, now=now, error=reason)
    for fate, theirs in (("revoked", cancelled), ("sent again", again), ("lost", lost)):
        for row in theirs:
            logger.warning(
                "run %s is %s: %s (worker %s)",
                row.id,
                fate,
                reason,
                row.worker,
                extra={"event": Event.RUN_LOST, "run_id": row.id},
            )
    number = len(found.rows) + len(found.damaged)
    return Losses(number, len(again), _limits(lost, settings))


def recall(session: Session, *, now: datetime, settings: Settings) -> int:
    """Have a batch of runs sent once more whose retry the broker has forgotten; return how many."""
    before = now - settings.resend_after
    recalled = losses.recall(session, before=before, now=now, limit=settings.batch_size)
    if recalled:
        logger.warning(
            "%s retries were not begun within %s and are sent once more",
            recalled,
            settings.resend_after,
            extra={"event": Event.RETRIES_RECALLED},
        )
    return recalled


def _ids(rows: list[Row[Any]]) -> list[str]:
    return [row.id for row in rows]


def _limits(lost: list[Row[Any]], settings: Settings) -> dict[int, int]:
    # The schedule of a run may be deleted by now.
    limits = {row.schedule_id: row.pause_after_failures for row in lost if row.schedule_id}
    default = settings.pause_after_failures
    asked = {key: default if limit is None else limit for key, limit in limits.items()}
    return {key: limit for key, limit in sorted(asked.items()) if limit}


def _is_rerun(row: Row[Any], settings: Settings) -> bool:
    # A pause and a delete win against a new attempt, as they do against the first.
    allowed = row.attempt < MOST_ATTEMPTS and (bool(row.enabled) or row.origin == Origin.MANUAL)
    redelivered = row.redelivered_attempt == row.attempt
    return allowed and (redelivered or (row.on_lost or settings.on_lost) == "rerun")
