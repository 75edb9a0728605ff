"""Record the runs of a backfill, and correct the skipped rows that cover their fire times."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import was_started
from celery_dynbeat.planning.backfill_planning import SkippedRemainder, remainder_of
from celery_dynbeat.planning.plan import MICROSECOND, Skip
from celery_dynbeat.store import backfills, runs
from celery_dynbeat.store.schedules import run_rows
from celery_dynbeat.transitions.batches import Batch
from celery_dynbeat.triggers import Trigger

#: The maximum number of fire times that skip() removed and that a search for the newest other one
#: passes.
_MAX_EARLIER_SKIPS = 100


def add_backfill(
    session: Session,
    schedule: Any,
    missing: Sequence[datetime],
    *,
    batch: Batch,
    trigger: Trigger,
    now: datetime,
    settings: Settings,
) -> int:
    """Insert the runs of the fire times ``missing`` of a locked schedule; return their number.

    They leave the skipped rows that cover them. ``trigger`` has a search budget.
    """
    remainders = _remainders(session, schedule, missing, trigger=trigger) if missing else {}
    backfills.shrink_skipped(session, {key: each.newer for key, each in remainders.items()})
    records = [batch.row(schedule, at) for at in missing]
    added = run_rows.add_runs(session, records, settings=settings)
    older = [each.older for each in remainders.values() if each.older is not None]
    _add_skipped(session, schedule, older, now=now)
    return len(added.ids)


def _remainders(
    session: Session, schedule: Any, missing: Sequence[datetime], *, trigger: Trigger
) -> Mapping[str, SkippedRemainder]:
    """Return what the skipped rows that cover ``missing`` still cover without them, by id.

    A fire time can only be covered by the next row of history after it. A row keeps its count if
    this is too costly to compute.
    """
    first = missing[0]
    rows = backfills.rows_covering(session, schedule_id=schedule.id, first=first, last=missing[-1])
    # A backfill runs the fire times that skip() removed like other skipped ones.
    by_call = {row.scheduled_for for row in rows if row.is_by_call}
    by_call.update(
        backfills.skipped_directly_before(
            session, schedule_id=schedule.id, instant=first, limit=_MAX_EARLIER_SKIPS
        )
    )
    removed_at = set(missing)
    remainders: dict[str, SkippedRemainder] = {}
    start = 0
    for row in rows:
        if row.is_by_call:
            # Such a row is about its own fire time only.
            if row.scheduled_for in removed_at:
                remainders[row.id] = SkippedRemainder(0, None)
            continue
        end = start
        while end < len(missing) and missing[end] <= row.scheduled_for:
            end += 1
        removed, start = missing[start:end], end
        if not removed or was_started(row.status, row.attempt):
            continue
        # The anchor is set with the trigger. An imported schedule carries an earlier one.
        is_of_trigger = schedule.anchor_at is None or row.created_at > schedule.anchor_at
        try:
            remainder = remainder_of(
                trigger, row, removed, by_call=by_call, is_of_trigger=is_of_trigger
            )
        except InvalidTriggerError:
            break
        if remainder is not None:
            remainders[row.id] = remainder
    return remainders


def _add_skipped(session: Session, schedule: Any, older: Sequence[Skip], *, now: datetime) -> None:
    left = [run_rows.skipped_row(schedule, skip, now=now) for skip in older]
    while left:
        added = runs.add(session, left)
        # The instant may already have a row if the count came from another trigger. The count must
        # still be recorded.
        left = [
            {**each, "scheduled_for": each["scheduled_for"] - MICROSECOND}
            for each in left
            if each["id"] not in added
        ]
