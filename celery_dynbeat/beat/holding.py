"""Take schedules out of the due index: hold schedules of held owners, quarantine unusable ones.

A held schedule has ``held_at``, and its ``next_run_at`` is the end of the hold. It therefore leaves
the start of the due index, and becomes due when the hold ends. Its ``next_fire_at`` does not
change. After the hold, ``catch_up`` decides about the fire times since then, as after downtime.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy.orm import Session

from celery_dynbeat.db.statements import Row, format_error
from celery_dynbeat.store import holds
from celery_dynbeat.store.schedules import due
from celery_dynbeat.store.schedules.due import DueSchedule
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners
from celery_dynbeat.telemetry.events import ScheduleQuarantined

#: The maximum number of held schedules that one maintenance compares with the holds, and of expired
#: holds that it deletes.
REVIEWED = 500

#: The ``held_at`` and id of a held schedule.
HeldKey = tuple[datetime, int]


def hold_rows(
    session: Session, rows: Sequence[DueSchedule], *, now: datetime, poll_interval: timedelta
) -> tuple[Sequence[DueSchedule], int]:
    """Hold the locked rows whose owner is held. Return the other rows, and the number of held ones.

    If a transaction that may be a release has locked the hold, the row is held for
    ``poll_interval``.
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


def review(session: Session, *, now: datetime, after: HeldKey | None) -> HeldKey | None:
    """Delete expired holds, and make held schedules due that wait longer than their holds.

    A schedule waits longer than its hold if manual SQL has deleted the hold. The other cause is a
    release in a transaction whose snapshot is older than the claim that held the schedule. This
    compares up to REVIEWED held schedules after the key ``after``. It returns the key of the last
    one, or None at the end. Schedules without a next run are no longer held.
    """
    holds.delete_expired(session, now=now, limit=REVIEWED)
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


class NamedSchedule(Protocol):
    """A row of a schedule."""

    @property
    def id(self) -> int:
        """The id of the row."""

    @property
    def owner(self) -> str:
        """The owner."""

    @property
    def name(self) -> str:
        """The name."""


def quarantine_of(
    schedule: NamedSchedule, error: Exception, *, now: datetime
) -> ScheduleQuarantined:
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
