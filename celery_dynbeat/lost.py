"""Runs whose worker is gone: killed, replaced, or silent for dynbeat_node_timeout.

    running, its node is gone, on_lost="record" (the default)         -> lost
    running, its node is gone, on_lost="rerun" (an idempotent task)    -> pending, sent once more

A worker that was only slow and comes back records how its attempt ended, over ``lost``. Against a
second start stands the guard: what the broker delivers again finds the run started or ended.
"""

import logging
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Origin
from celery_dynbeat.events import Event
from celery_dynbeat.pausing import pause_if_failing
from celery_dynbeat.settings import Settings
from celery_dynbeat.store import losses

logger = logging.getLogger(__name__)


def take_lost(session: Session, *, now: datetime, settings: Settings) -> int:
    """Deal with a batch of runs whose worker is gone, and return how many they were."""
    silent_since = now - settings.node_timeout
    rows = losses.lock_lost(session, silent_since=silent_since, limit=settings.batch_size)
    again = [row.id for row in rows if _is_rerun(row, settings)]
    lost = [row for row in rows if row.id not in set(again)]
    losses.rerun(session, again, now=now)
    losses.mark_lost(session, [row.id for row in lost], now=now)
    for row in rows:
        logger.warning(
            "run %s is lost: its worker %s is gone",
            row.id,
            row.worker,
            extra={"event": Event.RUN_LOST, "run_id": row.id},
        )
    # Those of a schedule that was deleted are lost without a successor.
    for schedule_id in sorted({row.schedule_id for row in lost if row.schedule_id is not None}):
        pause_if_failing(session, schedule_id=schedule_id, settings=settings, now=now)
    return len(rows)


def _is_rerun(row: Row[Any], settings: Settings) -> bool:
    # A pause and a delete win against a new attempt, as they do against the first.
    wanted = (row.on_lost or settings.on_lost) == "rerun"
    return wanted and (bool(row.enabled) or row.origin == Origin.MANUAL)
