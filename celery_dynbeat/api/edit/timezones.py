"""The time zone of an owner: read it, and set it.

A change plans each schedule that follows the zone again:

    enabled        -> next fire time from now
    with a fire time that waits for a release, the end of quiet hours or a beat -> keeps it
    paused         -> next fire time from now, missed ones are recorded as skipped, stays paused
    quarantined    -> the same if its trigger can be read, and it stays quarantined
    finished       -> stays finished
    no fire time   -> finished
    cannot be planned in the new zone, such as an exclusion that leaves no fire time -> quarantined

The owner's row is locked exclusively first. The change therefore waits for transactions that create
schedules in the old zone. It then also changes the rows that they created.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from celery_dynbeat.api.checks import invalid
from celery_dynbeat.api.columns import ScheduleColumns, ScheduleRow
from celery_dynbeat.api.edit import audit, owner_zone, quiet_hours, timing
from celery_dynbeat.api.edit.audit import Edit
from celery_dynbeat.api.edit.named import OwnerCalls
from celery_dynbeat.common.errors import InvalidTriggerError, UnusableCalendarError
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import as_text
from celery_dynbeat.db.statements import Row, format_error
from celery_dynbeat.planning import calendars_behind
from celery_dynbeat.planning.plan import Skip
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners, runs
from celery_dynbeat.store.schedules import run_rows
from celery_dynbeat.telemetry import emit_on_commit, events
from celery_dynbeat.triggers.zones import load_zone

#: Schedules that are locked, planned and updated together.
BATCH_SIZE = 500
_CHANGED = (
    "timezone",
    "next_fire_at",
    "next_run_at",
    "held_at",
    "finished_at",
    "error",
    "version",
    "updated_at",
)


class TimezoneCalls(OwnerCalls):
    """The calls of OwnerSchedules for the owner's time zone."""

    def timezone(self) -> str:
        """Return the name of the zone that triggers without a zone follow.

        This is the zone from ``set_timezone``, or else ``dynbeat_timezone``.

        >>> mine.timezone()
        'UTC'
        """

        def work(session: Session) -> str:
            # Without the quiet hours, which SQL can have made unreadable.
            own = owners.values_of(session, [self.owner]).get(self.owner)
            return owner_zone.timezone_of(self._context, own)

        return self._read(work)

    def set_timezone(
        self,
        zone: str | ZoneInfo | None,
    ) -> int:
        """Set the zone of the owner's triggers without a zone. Return how many schedules changed.

        ``zone`` is a ZoneInfo or a name from the tz database, such as ``"Asia/Seoul"``. None
        returns to ``dynbeat_timezone``. In the same transaction, the schedules that follow the zone
        are planned again from now, so nothing fires retroactively. A fire time that has passed and
        waits is still sent. A paused schedule stays paused.
        If the schedules are already in this zone, nothing changes. Raises InvalidScheduleError with
        field ``"zone"``.

        >>> mine.set_timezone("Asia/Seoul")
        1
        >>> str(mine.get("digest").next_run_at)  # 09:00 in Seoul
        '2026-01-06 00:00:00+00:00'
        """
        zone = _checked_zone(zone)

        def work(session: Session) -> int:
            return _change(self._context, session, owner=self.owner, zone=zone)

        return self._write(work)


class _Move(NamedTuple):
    """A schedule, or the owner (name ""), that leaves the zone ``before``."""

    owner: str
    name: str
    before: str


@dataclass(frozen=True, slots=True)
class _Batch:
    """The schedules of one batch after the change, and the fire times that it skips."""

    rows: Sequence[ScheduleColumns]
    moves: Sequence[_Move]
    skipped: Sequence[dict[str, Any]]
    now: datetime


def _checked_zone(given: object) -> str | None:
    zone = as_text(given)
    if zone is None:
        return None
    if not isinstance(zone, str):
        raise invalid("zone", zone, "must be a name of the tz database, such as 'Asia/Seoul'")
    try:
        load_zone(zone)
    except InvalidTriggerError as error:
        raise invalid("zone", zone, str(error)) from error
    return zone


def _change(context: Context, session: Session, *, owner: str, zone: str | None) -> int:
    owners.lock(session, [owner])
    before = owner_zone.read(context, session, owner, locked=[owner]).timezone
    owners.set_timezone(session, owner=owner, timezone=zone)
    timezone = zone or context.settings.timezone
    if before != timezone:
        _record(context, session, [_Move(owner, "", before)], timezone, now=context.clock.now())
    # The windows are on the clock of the zone.
    clock = owner_zone.read(context, session, owner, locked=[owner])
    has_quiet_hours = clock.quiet_hours is not None
    if has_quiet_hours:
        # This comes before the schedules that follow the zone, because all rows are locked in the
        # order of their names.
        owners.lock_all_schedules(session, owner=owner, batch_size=BATCH_SIZE)
    moved = _replan_all(context, session, owner=owner, timezone=timezone)
    if has_quiet_hours:
        quiet_hours.apply(context, session, owner=owner)
    return moved


def _record(
    context: Context, session: Session, moves: Sequence[_Move], timezone: str, *, now: datetime
) -> None:
    """Write the changes of zones for the audit."""
    edits = (
        Edit(
            owner=move.owner,
            name=move.name,
            action=Action.SET_TIMEZONE,
            old={"timezone": move.before},
            new={"timezone": timezone},
        )
        for move in moves
    )
    audit.record(context, session, edits, now=now)


def _replan_all(context: Context, session: Session, *, owner: str, timezone: str) -> int:
    """Plan the schedules that follow the zone again, in batches. Return their number."""
    count, earliest = 0, None
    for batch in _batches(context, session, owner=owner, timezone=timezone):
        _write(session, batch)
        _record(context, session, batch.moves, timezone, now=batch.now)
        count += len(batch.rows)
        due = [row.next_run_at for row in batch.rows if row.next_run_at is not None]
        earliest = min([*due, *([] if earliest is None else [earliest])], default=None)
    if count:
        quiet_hours.expire_loaded(session)
        context.notify_beat(session, next_run_at=earliest, now=context.clock.now())
    return count


def _batches(context: Context, session: Session, *, owner: str, timezone: str) -> Iterator[_Batch]:
    after = ""
    while True:
        locked = owners.lock_zoned(
            session, owner=owner, timezone=timezone, after=after, limit=BATCH_SIZE
        )
        if not locked:
            return
        # Read after the rows are locked, because beat may have advanced them while this transaction
        # waited.
        now = context.clock.now()
        yield _planned(context, session, locked, timezone=timezone, now=now)
        after = locked[-1].name


def _planned(
    context: Context, session: Session, found: Sequence[Row], *, timezone: str, now: datetime
) -> _Batch:
    rows, skipped = [], []
    moves = [_Move(values.owner, values.name, values.timezone) for values in found]
    for values in found:
        row = ScheduleColumns.of(values)
        missed = follow(context, session, row, timezone=timezone, now=now)
        row.version += 1
        row.updated_at = now
        skipped += [run_rows.skipped_row(row, skip, now=now) for skip in missed]
        rows.append(row)
    return _Batch(rows, moves, skipped, now)


def follow(
    context: Context, session: Session, row: ScheduleRow, *, timezone: str, now: datetime
) -> Sequence[Skip]:
    """Move a row into ``timezone``, and return the fire times that it missed until ``now``.

    The caller sets the version of the row.
    """
    if timing.has_waiting_fire_time(row, now=now):
        row.timezone = timezone
        return ()
    # This comes before the change, because the old zone defines the missed fire times.
    missed: Sequence[Skip] = ()
    if row.finished_at is None and row.next_fire_at is not None and row.next_fire_at <= now:
        missed = timing.missed_fire_times(context, session, row, now=now)
    row.timezone = timezone
    # If next_fire_at is NULL, the row is finished, or beat has not planned it yet.
    if row.finished_at is None and row.next_fire_at is not None:
        _replan(context, session, row, now=now)
    return missed


def _replan(context: Context, session: Session, row: ScheduleRow, *, now: datetime) -> None:
    is_quarantined = row.error is not None
    try:
        timing.plan_from(context, session, row, now=now)
    except InvalidTriggerError as error:
        if is_quarantined:
            return
        stored: Exception = error
        if names := calendars_behind(row, error):
            # The next edit of a calendar may end the quarantine.
            stored = UnusableCalendarError.from_trigger_error(names, error)
        row.error = format_error(stored)
        row.next_fire_at = None
        quarantined = events.ScheduleQuarantined(
            schedule_id=row.id, owner=row.owner, schedule=row.name, error=row.error, at=now
        )
        emit_on_commit(session, quarantined)
    if not row.enabled or row.error is not None:
        row.finished_at = row.next_run_at = row.held_at = None


def _write(session: Session, batch: _Batch) -> None:
    changes = [
        {"id": row.id, **{name: getattr(row, name) for name in _CHANGED}} for row in batch.rows
    ]
    owners.replan(session, changes)
    runs.add(session, batch.skipped)
