"""Resume the schedules whose pause has ended, one batch per transaction.

    pause(until=...) -> paused_until, in the index of the ends
    the end passes   -> enabled, planned from the end on, recorded in the audit as an edit of beat

A fire time at or after the end of the pause is not missed. If beat is late, it is due at once, and
``catch_up`` decides about it as after downtime. Beats skip the rows that others have locked. A
schedule that the planning time does not reach stays paused, with its end, until the next pass.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.beat.plans import plan_rows, write_plans
from celery_dynbeat.beat.refused import FULL_BATCH, Part, changing
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Action
from celery_dynbeat.planning.plan import MICROSECOND
from celery_dynbeat.store import changes
from celery_dynbeat.store.schedules import due
from celery_dynbeat.store.schedules.due import EndedPause
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

#: The actor of the resume in the audit.
ACTOR = "beat"


def end_pauses(
    session: Session, *, now: datetime, settings: Settings, part: Part = FULL_BATCH
) -> int:
    """Resume a batch of schedules whose pause has ended; return the number of changed rows.

    ``part`` and the errors are as in ``beat.claim``.
    """
    ended = due.lock_ended_pauses(session, now=now, limit=part.limit, except_ids=part.except_ids)
    with changing(session, [each.schedule for each in ended], part):
        return _resume(session, ended, now=now, settings=settings)


def _resume(
    session: Session, ended: Sequence[EndedPause], *, now: datetime, settings: Settings
) -> int:
    # Manual SQL may have resumed a schedule. A quarantined schedule stays quarantined.
    plannable = [each for each in ended if not each.enabled and each.error is None]
    plans = plan_rows(
        session,
        [each.schedule for each in plannable],
        now=now,
        settings=settings,
        # A fire time at the end of the pause is not missed.
        since={each.schedule.id: each.paused_until - MICROSECOND for each in plannable},
    )
    unreached = {each.schedule.id for each in plannable} - {each.change["id"] for each in plans}
    ended = [each for each in ended if each.schedule.id not in unreached]
    due.end_pauses(session, [each.schedule.id for each in ended], now=now)
    write_plans(session, plans, settings=settings)
    resumed = [each for each in ended if not each.enabled]
    if settings.is_audited:
        changes.add(session, [_change(each, now=now) for each in resumed])
    if resumed and has_listeners(events.PausesEnded):
        emit_on_commit(session, events.PausesEnded(schedules=len(resumed)))
    return len(ended)


def _change(ended: EndedPause, *, now: datetime) -> Mapping[str, Any]:
    """Return the row of the audit for the resume."""
    schedule = ended.schedule
    old = {
        "enabled": False,
        "paused_until": ended.paused_until.isoformat(),
        "version": schedule.version,
    }
    new = {"enabled": True, "paused_until": None, "version": schedule.version + 1}
    if ended.paused_reason is not None:
        old["paused_reason"], new["paused_reason"] = ended.paused_reason, None
    return {
        "changed_at": now,
        "owner": schedule.owner,
        "name": schedule.name,
        "action": Action.RESUME,
        "actor": ACTOR,
        "reason": "the pause has ended",
        "old_values": old,
        "new_values": new,
    }
