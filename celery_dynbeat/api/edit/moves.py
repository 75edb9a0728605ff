"""``move``: give a schedule with its history to another owner.

    1. schedule  check it, and give it to the new owner, with its unfinished runs, requests, slots
                 and alerts
    2. history   give the ended runs to the new owner, BATCH_SIZE in each transaction

If the process dies between two steps, a part of the history stays with the old owner. The same call
completes the move. In the caller's transaction, the two steps are a single step.

``for_owner()`` does not have this call. Otherwise, an owner could fill the quota of another owner,
and run tasks in its name.
"""

from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import acting_as
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.columns import ScheduleColumns
from celery_dynbeat.api.edit import audit, edits, limits, owner_zone, timezones, timing
from celery_dynbeat.api.edit.owner_zone import OwnerClock
from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.common.errors import (
    InvalidTriggerError,
    ScheduleExistsError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import EARLIEST
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import runs, schedules
from celery_dynbeat.store.schedules import moves, run_rows
from celery_dynbeat.triggers import Trigger, parse_trigger

#: The maximum number of ended runs that one transaction moves.
BATCH_SIZE = 1_000


class MoveCalls(Calls):
    """The call that moves a schedule to another owner."""

    def move(
        self,
        name: str,
        *,
        owner: str,
        to: str,
        expected_version: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> ScheduleInfo:
        """Give the schedule ``name`` of ``owner`` to the owner ``to``. It keeps its id.

        - Its runs, backfills and alerts belong to the new owner afterwards. The earlier edits stay
          in the audit of the old owner. The move is in the audit of both owners.
        - If the schedule follows the time zone of its owner, it follows the new owner's time zone.
          If the two zones differ, it is planned again from now, and nothing fires retroactively.
          Otherwise its next fire time stays the same. The quiet hours of the new owner apply.
        - A trigger with an ``H`` keeps its fire times, as after ``rename()``. The delays within
          ``jitter`` change.
        - A hold of the old owner no longer applies, but a hold of the new owner does.
        - Running and recorded runs continue. Their messages contain the name of the old owner.

        If you do not pass ``session``, the move of the schedule commits, and then each batch of
        1,000 ended runs. If the call fails after that, repeat it to move the remaining runs.

        Raises ScheduleNotFoundError, StaleScheduleError, ScheduleExistsError if the new owner has a
        schedule with this name, and OwnerLimitError if it would exceed a limit. Raises
        InvalidScheduleError if the new owner may not have the task or the interval, and for a
        schedule that follows ``beat_schedule``.
        """
        checks.check_name("name", name)
        checks.check_owner(owner)
        checks.check_owner(to, field="to")
        if owner == to:
            raise checks.invalid("to", to, "is the present owner: choose another owner")
        work = partial(
            _move, self._context, owner=owner, name=name, to=to, expected_version=expected_version
        )
        with acting_as(actor=actor, reason=reason):
            if session is not None:
                return self._context.write(session, partial(work, with_history=True))
            moved = self._context.write(None, work)
            after: datetime | None = EARLIEST
            while after is not None:
                batch = partial(_move_batch, schedule_id=moved.id, owner=owner, to=to, after=after)
                after = self._context.write(None, batch)
            return moved


def _move_batch(
    session: Session, *, schedule_id: int, owner: str, to: str, after: datetime
) -> datetime | None:
    """Move a batch of the history.

    Return the position of the next batch, or None after the last batch.
    """
    row = schedules.lock_id(session, schedule_id=schedule_id)
    if row is None or row.owner != to:
        # It was deleted or moved again, so the owner of its history is unknown.
        return None
    return moves.move_ended(
        session, schedule_id=schedule_id, owner=owner, to=to, after=after, limit=BATCH_SIZE
    )


def _move(
    context: Context,
    session: Session,
    *,
    owner: str,
    name: str,
    to: str,
    expected_version: int | None,
    with_history: bool = False,
) -> ScheduleInfo:
    # The owner is locked before the schedule, in the order of all locks.
    clock = owner_zone.lock_new(context, session, to, needs_zone=True)
    try:
        row = edits.lock(session, owner=owner, name=name, expected_version=expected_version)
    except ScheduleNotFoundError:
        row = _moved_before(session, owner=owner, name=name, to=to)
    else:
        now = context.clock.now()
        spec = edits.spec_without_hashes(row)
        _check(context, session, row, spec, to=to, zone=clock.timezone, now=now)
        with audit.recording(context, session, row, Action.MOVE, now=now):
            notifies = context.settings.recipient is not None
            moves.move(session, row, to=to, now=now, notifies=notifies)
            row.trigger_spec = spec
            _follow(context, session, row, clock=clock, now=now)
            edits.touch(context, session, row, now=now)
    after: datetime | None = EARLIEST if with_history else None
    while after is not None:
        after = _move_batch(session, schedule_id=row.id, owner=owner, to=to, after=after)
    return ScheduleInfo.of(row)


def _moved_before(session: Session, *, owner: str, name: str, to: str) -> Schedule:
    """Return the schedule, locked, if a call moved it and failed before all of its history."""
    row = schedules.lock(session, owner=to, name=name)
    if row is None or not moves.has_runs(session, schedule_id=row.id, owner=owner):
        raise ScheduleNotFoundError(owner=owner, name=name)
    return row


def _check(
    context: Context,
    session: Session,
    row: Schedule,
    spec: str,
    *,
    to: str,
    zone: str,
    now: datetime,
) -> None:
    """Raise an error if ``to`` cannot have the locked schedule. ``spec`` is without hashes."""
    if row.managed_by:
        rule = f"{row.name!r} follows its entry in beat_schedule, which belongs to the application"
        raise checks.invalid("name", row.name, rule)
    if schedules.find_id(session, owner=to, name=row.name) is not None:
        raise ScheduleExistsError(owner=to, name=row.name)
    values = {
        "owner": to,
        "timezone": zone if row.inherits_timezone else row.timezone,
        "trigger_spec": spec,
    }
    moved = ScheduleColumns.edited(row, values)
    with session.no_autoflush:
        calendars = schedules.calendars_of(session, [row])
    limits.check(context, moved, trigger=_trigger_of(row, spec), calendars=calendars, now=now)
    limits.check_quota(context, session, {to: 1}, leaving=row.owner)


def _trigger_of(row: Schedule, spec: str) -> Trigger | None:
    """Return the trigger of the row with this spec.

    None means that the trigger is damaged and does not fire.
    """
    zone = None if row.inherits_timezone else row.timezone
    try:
        return parse_trigger(row.trigger_kind, spec, timezone=zone)
    except InvalidTriggerError:
        return None


def _follow(
    context: Context, session: Session, row: Schedule, *, clock: OwnerClock, now: datetime
) -> None:
    """Set the next run by the time zone and the quiet hours of the new owner, and by its jitter."""
    has_other_quiet_hours = row.quiet_hours != clock.quiet_hours
    row.quiet_hours = clock.quiet_hours
    if row.inherits_timezone and row.timezone != clock.timezone:
        missed = timezones.follow(context, session, row, timezone=clock.timezone, now=now)
        if missed is not None:
            runs.add(session, [run_rows.skipped_row(row, missed, now=now)])
    elif (
        has_other_quiet_hours
        or row.held_at is not None
        or row.jitter is not None
        or context.settings.jitter
    ):
        # A hold of the old owner ends for this row. Beat will find the holds of the new owner.
        timing.apply_jitter(context, session, row)
        if row.next_run_at is not None:
            row.next_run_at = max(row.next_run_at, now)
