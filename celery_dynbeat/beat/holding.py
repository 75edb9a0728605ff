"""Take schedules out of the due index: hold, pause those that only fail, quarantine unusable ones.

A held schedule has ``held_at``, and its ``next_run_at`` is the end of the hold. It therefore leaves
the start of the due index, and becomes due when the hold ends. Its ``next_fire_at`` does not
change. After the hold, ``catch_up`` decides about the fire times since then, as after downtime.

``pause_after_failures`` pauses a due schedule whose last runs all failed. No run is recorded for
the fire time at which a schedule is paused; a resume records it as missed. A schedule with an
unfinished run that another transaction has locked fires once more, because a claim waits for no
lock.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Action, Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import Row, format_error
from celery_dynbeat.process.left_out import NamedRow
from celery_dynbeat.store import changes, holds
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.store.schedules import due, emit_paused, pause
from celery_dynbeat.store.schedules.due import OF_SETTING, DueSchedule
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners
from celery_dynbeat.telemetry.events import ScheduleQuarantined

#: The maximum number of held schedules that one review compares with the holds, and of the expired
#: holds that it deletes.
REVIEWED = 500

#: The clocks of two beats differ. A beat whose clock is behind still counts a hold as in force.
_KEPT = timedelta(minutes=1)
#: The actor of an automatic pause in the audit, and the characters of its reason there.
ACTOR, REASON_LENGTH = "dynbeat", 1024


def hold_rows(
    session: Session, rows: Sequence[DueSchedule], *, now: datetime, poll_interval: timedelta
) -> tuple[Sequence[DueSchedule], int]:
    """Hold the locked rows whose owner is held. Return the other rows, and the number of held ones.

    If a transaction changes the hold, as a release does, the row is held for ``poll_interval``.
    """
    owners = {row.owner for row in rows if row.may_be_held}
    if not owners:
        return rows, 0
    ends = holds.lock_ends(session, owners, now=now)
    until = {**ends.at, **_until_sure(ends, now + poll_interval)}
    held = [row for row in rows if row.owner in until]
    due.advance(
        session,
        [{"id": row.id, "next_run_at": until[row.owner], "held_at": now} for row in held],
    )
    if held and has_listeners(events.SchedulesHeld):
        emit_on_commit(session, events.SchedulesHeld(schedules=len(held)))
    return [row for row in rows if row.owner not in until], len(held)


def _until_sure(ends: holds.Ends, latest: datetime) -> Mapping[str, datetime]:
    return {owner: min(ends.at.get(owner, latest), latest) for owner in ends.unsure}


class Review:
    """The duty that deletes expired holds, and frees schedules that wait longer than their hold.

    A schedule waits longer than its hold if manual SQL has deleted the hold. The other cause is a
    release in a transaction whose snapshot is older than the claim that held the schedule.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        #: The ``held_at`` and id of the last schedule that was compared, or None to begin again.
        self._after: tuple[datetime, int] | None = None

    def run(self, now: datetime) -> None:
        """Compare up to REVIEWED held schedules with their holds."""
        self._after = self._database.run(partial(_review, now=now, after=self._after))


def _review(
    session: Session, *, now: datetime, after: tuple[datetime, int] | None
) -> tuple[datetime, int] | None:
    """Compare the schedules after the key ``after``; return the key of the last one, or None.

    Schedules without a next run are no longer held.
    """
    holds.delete_expired(session, now=now - _KEPT, limit=REVIEWED)
    rows = holds.held_after(session, after=after, limit=REVIEWED)
    # Manual SQL or a process of an earlier version has ended the schedule, but left held_at.
    stopped = [row.id for row in rows if row.next_run_at is None]
    if stopped:
        holds.clear_held(session, holds.lock_held(session, stopped))
    _free_overdue(session, [row for row in rows if row.next_run_at is not None], now=now)
    return None if len(rows) < REVIEWED else (rows[-1].held_at, rows[-1].id)


def _free_overdue(session: Session, rows: Sequence[Row], *, now: datetime) -> None:
    """Make held schedules due if they wait longer than the holds of their owners."""
    if not rows:
        return
    ends = holds.ends_of(session, {row.owner for row in rows}, now=now)
    wrong = {row.owner for row in rows if row.next_run_at > ends.get(row.owner, now)}
    for owner in sorted(wrong):
        holds.move_held(session, owner=owner, now=now, end=ends.get(owner), waits=False)


def quarantine_of(schedule: NamedRow, error: Exception, *, now: datetime) -> ScheduleQuarantined:
    """Return the quarantine of a schedule that cannot be planned.

    The caller stores its ``error`` with ``next_run_at`` None, and emits it.
    """
    return ScheduleQuarantined(
        schedule_id=schedule.id,
        owner=schedule.owner,
        schedule=schedule.name,
        error=format_error(error),
        exception=error,
        at=now,
    )


def pause_failing(
    session: Session, rows: Sequence[DueSchedule], *, now: datetime, settings: Settings
) -> tuple[Sequence[DueSchedule], int]:
    """Pause the locked due schedules that must be; return the other rows, and how many it paused.

    Nothing is read for a schedule whose last run succeeded, or without a limit.
    """
    left: list[DueSchedule] = []
    for row in rows:
        limit = row.failure_limit
        if limit == OF_SETTING:
            limit = settings.pause_after_failures
        if not limit or not _pause(session, row, limit, now=now, is_audited=settings.is_audited):
            left.append(row)
    return left, len(rows) - len(left)


def _pause(
    session: Session, claimed: DueSchedule, limit: int, *, now: datetime, is_audited: bool
) -> bool:
    """Pause a schedule whose last ``limit`` runs all failed or were lost; return whether it did.

    Runs that ended before the last edit or resume do not count.
    """
    # Later than ``now`` if the clock was set back.
    until = now if claimed.last_run_at is None else max(now, claimed.last_run_at)
    ends = unfinished.latest_outcomes(session, schedule_id=claimed.id, until=until, limit=limit)
    if len(ends) < limit or any(end.status == Status.SUCCEEDED for end in ends):
        return False
    row = session.get_one(Schedule, claimed.id, populate_existing=True)
    failures = [end for end in ends if end.finished_at > row.updated_at]
    if len(failures) < limit or unfinished.with_locked_runs(session, [row.id]):
        return False
    reason = f"{limit} failures in a row; the last: {failures[0].error}"
    pause(session, row, reason=reason, now=now)
    emit_paused(session, row, actor=ACTOR, reason=reason, now=now, failures=limit)
    if is_audited:
        changes.add(session, [_change(row, now=now)])
    return True


def _change(row: Schedule, *, now: datetime) -> dict[str, Any]:
    """Return the row of the audit for the pause of an enabled schedule."""
    return {
        "changed_at": now,
        "owner": row.owner,
        "name": row.name,
        "action": Action.PAUSE,
        "actor": ACTOR,
        "reason": (row.paused_reason or "")[:REASON_LENGTH],
        "old_values": {"enabled": True, "version": row.version - 1},
        "new_values": {
            "enabled": False,
            "paused_reason": row.paused_reason,
            "version": row.version,
        },
    }
