"""The edits of one schedule. Each edit runs in the caller's transaction.

- A new trigger, span or max_runs, and a resume, set the next fire time from now. No edit fires
  retroactively. A new span or max_runs that allows a fire time that waits keeps it.
- A new window changes the offset of the next run. Other edits do not move the next run.
- A pause, a delete and the move of a one-off revoke the runs that have not started. The guard in
  the worker refuses their messages.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_modified

from celery_dynbeat import transitions
from celery_dynbeat.api import options
from celery_dynbeat.api.acting import current_actor
from celery_dynbeat.api.checks import (
    check_name,
    check_required_instant,
    check_text,
    check_version,
    invalid,
)
from celery_dynbeat.api.columns import ScheduleColumns, is_same
from celery_dynbeat.api.edit import (
    audit,
    limits,
    skipping,
    timing,
    used_calendars,
)
from celery_dynbeat.api.edit.conversion import trigger_of
from celery_dynbeat.api.edit.fields import (
    check_ping_url,
    check_span,
    merge_options,
    to_columns,
)
from celery_dynbeat.api.edit.owner_zone import OwnerClock
from celery_dynbeat.api.edit.source_progress import SourceProgress
from celery_dynbeat.api.fields import FIELDS, PAYLOAD
from celery_dynbeat.common.errors import (
    InvalidTriggerError,
    ScheduleNotFoundError,
    StaleScheduleError,
)
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.settings import check_task_allowed
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Origin, Run, Schedule
from celery_dynbeat.planning import (
    Calendars,
    calendar_names,
    spec_from_row,
)
from celery_dynbeat.planning.plan import MICROSECOND, Skip
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import runs, schedules
from celery_dynbeat.store.schedules import run_rows
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.wrappers import nominal

#: Columns that may allow a fire time that waits.
_LIMITS = frozenset(name for name, field in FIELDS.items() if field.moves_fire_time)
#: Columns whose change moves the next fire time.
_TIMING_COLUMNS = frozenset({"trigger_spec", "trigger_kind", "timezone"}) | _LIMITS
#: Columns that a task of this process checks.
_ARGUMENT_COLUMNS = frozenset({"task", "args", "kwargs"})
#: Columns that change the offset of a fire time.
_OFFSET_COLUMNS = frozenset(name for name, field in FIELDS.items() if field.moves_offset)
#: Fields that only a new schedule accepts.
_PAUSE_FIELDS = frozenset({"enabled", "paused_reason", "paused_until"})


def new_row(
    context: Context,
    *,
    owner: str,
    name: str,
    task: object,
    trigger: object,
    given: Mapping[str, Any],
    clock: OwnerClock,
    calendars: Calendars,
    now: datetime,
    progress: SourceProgress | None = None,
    is_limited: bool = True,
) -> ScheduleColumns:
    """Return the columns of a new schedule, including its next fire time.

    A trigger that names no zone uses the zone in ``clock``. The trigger uses ``calendars``. With
    ``enabled=False`` in ``given`` the schedule is paused. ``progress`` is the progress in another
    scheduler. None means that no other scheduler has run it. If ``is_limited`` is false, any task
    and interval is accepted, but beat still applies these limits. Raises InvalidScheduleError if a
    field is invalid or the schedule never fires, and InvalidTriggerError for an invalid trigger.
    """
    pause_reason, pause_end = _pause_reason(given), _given_pause_end(given, now=now)
    fields = {key: value for key, value in given.items() if key not in _PAUSE_FIELDS}
    values = to_columns(
        {"task": task, **merge_options({}, fields)}, limit=context.settings.max_payload_bytes
    )
    _check_accepted(context, values)
    check_ping_url(context.settings, values)
    stored = as_trigger(context, trigger).resolved_at(now)
    if is_limited:
        check_task_allowed(context.settings, owner=owner, task=values["task"])
        _check_arguments(context, values)
    row = planned_row(
        context,
        owner=owner,
        name=name,
        values=values,
        trigger=stored,
        clock=clock,
        calendars=calendars,
        now=now,
        progress=progress,
        is_limited=is_limited,
    )
    if pause_reason is not None:
        # next_fire_at stays set, as after pause().
        row.enabled, row.paused_reason, row.next_run_at = False, pause_reason, None
        row.paused_until = pause_end
    context.task_names.warn_if_unknown(row.task)
    return row


def planned_row(
    context: Context,
    *,
    owner: str,
    name: str,
    values: Mapping[str, Any],
    trigger: Trigger,
    clock: OwnerClock,
    calendars: Calendars,
    now: datetime,
    progress: SourceProgress | None = None,
    is_limited: bool = True,
) -> ScheduleColumns:
    """Return the columns of a new schedule, including its next fire time.

    ``values`` must already be checked.
    """
    columns = {**values, **trigger_columns(trigger, timezone=clock.timezone, now=now)}
    columns["quiet_hours"] = clock.quiet_hours
    calendars = {**calendars, **clock.calendars}
    if progress is not None:
        columns |= progress.columns(now=now)
    row = ScheduleColumns(owner=owner, name=name, created_at=now, updated_at=now, **columns)
    limits.check_trigger(
        context,
        row,
        trigger=trigger,
        calendars=calendars,
        now=now,
        any_interval=not is_limited,
    )
    if progress is None:
        timing.plan_new(context, row, trigger=trigger, calendars=calendars, now=now)
    else:
        after = progress.after or now
        timing.plan_continued(
            context, row, after=after, trigger=trigger, calendars=calendars, now=now
        )
    return row


def insert(
    context: Context,
    session: Session,
    row: ScheduleColumns,
    *,
    calendars: Calendars,
    now: datetime,
) -> None:
    """Insert a new row, if the limits on the number of schedules allow it, and notify beat.

    ``calendars`` are those that its plan has read. Raises OwnerLimitError and ScheduleExistsError.
    """
    limits.check_quota(context, session, {row.owner: 1})
    row.id = schedules.add(session, row.insert_values())
    used_calendars.link(session, [row], calendars, is_new=True)
    audit.created(context, session, [row], now=now)
    context.notify_beat(session, next_run_at=row.next_run_at, now=now)


def lock(
    session: Session, *, owner: str, name: str, expected_version: int | None = None
) -> Schedule:
    """Return the schedule, locked for this transaction.

    Raises ScheduleNotFoundError, and StaleScheduleError if its version is not the expected one.
    """
    if expected_version is not None:
        check_version("expected_version", expected_version)
    row = schedules.lock(session, owner=owner, name=check_name("name", name))
    if row is None:
        raise ScheduleNotFoundError(owner=owner, name=name)
    if expected_version is not None and row.version != expected_version:
        raise StaleScheduleError(
            owner=owner,
            name=name,
            expected_version=expected_version,
            version=row.version,
        )
    return row


def change(
    context: Context,
    session: Session,
    row: Schedule,
    given: Mapping[str, Any],
    *,
    now: datetime,
    timezone: str = "",
    resume: bool = False,
    notifies: bool = True,
) -> None:
    """Apply ``given`` to a locked row. If no value differs, the row does not change.

    A trigger in ``given`` that names no zone uses ``timezone``. With ``resume`` the row is enabled,
    and its next fire time is set from now. With ``notifies=False`` the caller notifies beat. Raises
    InvalidScheduleError and InvalidTriggerError.
    """
    trigger = None
    if "trigger" in given:
        trigger = as_trigger(context, given["trigger"]).resolved_at(now)
    quiet_hours = None if trigger is None else row.quiet_hours
    calendars = used_calendars.read(session, trigger, quiet_hours=quiet_hours)
    if trigger is None and (resume or row.error is not None):
        calendars = used_calendars.read_existing(session, calendar_names([row]))
    is_linked = bool(calendars) or (trigger is not None and bool(calendar_names([row])))
    values = _changed_columns(
        context, row, given, trigger=trigger, timezone=timezone, calendars=calendars, now=now
    )
    if not values and row.error is None and not resume:
        return
    if trigger is not None and trigger.kind == "once" and "trigger_spec" in values:
        # The caller names the instant: it has priority over an earlier skip.
        values["skips"] = None
    is_replanned = _moves_next_fire(row, values, now=now) or row.error is not None or resume
    check_span(
        start_at=values.get("start_at", row.start_at), end_at=values.get("end_at", row.end_at)
    )
    # This comes before the edit, because the old trigger defines the missed fire times.
    missed = timing.missed_fire_times(context, session, row, now=now) if is_replanned else ()
    is_moved = is_replanned and row.trigger_kind == "once"
    if resume:
        values |= {"enabled": True, "paused_reason": None, "paused_until": None}
    try:
        _apply(context, session, row, values, is_replanned=is_replanned, trigger=trigger, now=now)
    except Exception:
        # A caller that catches the error and commits must not write half of the edit.
        session.expire(row)
        raise
    if is_moved:
        cancel(session, row, now=now, reason="the one-off was moved")
    _record_missed(session, row, missed, now=now)
    touch(context, session, row, now=now, notifies=notifies)
    if is_linked:
        used_calendars.link(session, [row], calendars, is_new=False)
    if "task" in values:
        context.task_names.warn_if_unknown(row.task)


def _moves_next_fire(row: Schedule, values: Mapping[str, Any], *, now: datetime) -> bool:
    """Return whether changed columns of a row move its next fire time.

    A new span or ``max_runs`` that allows a fire time that waits keeps it.
    """
    moving = _TIMING_COLUMNS & values.keys()
    fire_at = row.next_fire_at
    if fire_at is None or moving - _LIMITS or not timing.has_waiting_fire_time(row, now=now):
        return bool(moving)
    start_at, end_at, max_runs = (values.get(each) for each in ("start_at", "end_at", "max_runs"))
    return (
        (start_at is not None and fire_at < start_at)
        or (end_at is not None and end_at < fire_at)
        or (max_runs is not None and max_runs <= row.run_count)
    )


def check_changes(context: Context, given: Mapping[str, Any]) -> None:
    """Raise InvalidScheduleError for values of ``given`` that no schedule accepts.

    ``change`` makes the checks that depend on the schedule.
    """
    fields = {key: value for key, value in given.items() if key != "trigger"}
    values = to_columns(merge_options({}, fields), limit=context.settings.max_payload_bytes)
    _check_accepted(context, values)
    check_ping_url(context.settings, values)


def _check_accepted(context: Context, values: Mapping[str, Any]) -> None:
    """Raise InvalidScheduleError for a serializer whose messages the workers would refuse."""
    serializer = values.get("options", {}).get("serializer")
    if serializer is not None and (
        refused := options.refused_content_type(context.app, serializer)
    ):
        rule = (
            f"its content type {refused} is not in accept_content of this application, so workers"
            " refuse its messages: add it there, or choose another serializer"
        )
        raise invalid("options['serializer']", serializer, rule)


def _check_arguments(context: Context, values: Mapping[str, Any]) -> None:
    """Raise InvalidScheduleError for arguments that a task of this process refuses."""
    args, kwargs = values.get("args", []), values.get("kwargs", {})
    error = context.task_names.argument_error(values["task"], args, kwargs)
    if error is not None:
        field = "args" if " takes " in error.partition(";")[0] else "kwargs"
        rule = f"{error}. Correct the arguments, or define the task with typing=False"
        raise invalid(field, values.get(field, kwargs), rule)


def _changed_columns(
    context: Context,
    row: Schedule,
    given: Mapping[str, Any],
    *,
    trigger: Trigger | None,
    timezone: str,
    calendars: Calendars,
    now: datetime,
) -> dict[str, Any]:
    """Return the columns whose values differ from the row, checked against the limits."""
    fields = {key: value for key, value in given.items() if key != "trigger"}
    values = to_columns(
        merge_options(row.options, fields),
        limit=context.settings.max_payload_bytes,
        current={column: getattr(row, column) for column in PAYLOAD},
    )
    if "options" in fields:
        _check_accepted(context, values)
    if trigger is not None:
        values |= trigger_columns(trigger, timezone=timezone, now=now)
    edited = ScheduleColumns.edited(row, values)
    limits.check(context, edited, trigger=trigger, calendars=calendars, now=now)
    values = {key: value for key, value in values.items() if not is_same(getattr(row, key), value)}
    # Only new values are checked, so that a later change of a setting or a task does not prevent
    # other edits.
    check_ping_url(context.settings, values)
    if not _ARGUMENT_COLUMNS.isdisjoint(values):
        stored = {key: getattr(row, key) for key in _ARGUMENT_COLUMNS}
        _check_arguments(context, {**stored, **values})
    # The anchor changes only with the trigger.
    if "trigger_spec" not in values:
        values.pop("anchor_at", None)
    return values


def _apply(
    context: Context,
    session: Session,
    row: Schedule,
    values: Mapping[str, Any],
    *,
    is_replanned: bool,
    trigger: Trigger | None,
    now: datetime,
) -> None:
    for key, value in values.items():
        setattr(row, key, value)
        # SQLAlchemy compares with ==, so it would not write True over 1 in a JSON column.
        flag_modified(row, key)
    row.error = None
    if is_replanned:
        # The old trigger decides about those that have passed. The new one may yield them, too.
        skipping.drop_passed(row, now=now)
        is_new_trigger = "trigger_spec" in values or "trigger_kind" in values
        timing.replan(
            context, session, row, trigger=trigger, is_new_trigger=is_new_trigger, now=now
        )
        skipping.check_cost(context, session, row, now=now)
    elif not _OFFSET_COLUMNS.isdisjoint(values):
        timing.apply_window(context, session, row, now=now)


def _record_missed(
    session: Session, row: Schedule, missed: Sequence[Skip], *, now: datetime
) -> None:
    runs.add(session, [run_rows.skipped_row(row, skip, now=now) for skip in missed])


def pause_end(until: object, *, now: datetime, field: str = "until") -> datetime | None:
    """Return the instant at which a pause ends, or None if only a resume ends it.

    A duration counts from ``now``. Raises InvalidScheduleError unless the instant is in the future.
    """
    if until is None:
        return None
    at: object = until
    if isinstance(until, timedelta):
        try:
            at = now + until
        except OverflowError:
            raise invalid(field, until, "is too long: choose an earlier instant") from None
    elif not isinstance(until, datetime):
        rule = "must be an aware datetime, a timedelta from now on, or None"
        raise invalid(field, until, rule)
    instant = check_required_instant(field, at)
    if instant <= now:
        raise invalid(field, until, f"must be later than now, {now}, or None")
    return instant


def _given_pause_end(given: Mapping[str, Any], *, now: datetime) -> datetime | None:
    until = given.get("paused_until")
    if until is not None and given.get("enabled", True) is True:
        raise invalid("paused_until", until, "needs enabled=False")
    return pause_end(until, now=now, field="paused_until")


def pause(
    context: Context,
    session: Session,
    row: Schedule,
    *,
    reason: str,
    now: datetime,
    until: datetime | None = None,
) -> None:
    """Pause a locked row and revoke its unstarted runs, except manual runs and reruns.

    Beat resumes the schedule at ``until``. None means that only a call of ``resume`` ends the
    pause.
    """
    transitions.pause(session, row, reason=reason, now=now, until=until)
    actor = current_actor().actor
    transitions.emit_paused(session, row, actor=actor, reason=reason, now=now)
    # A beat that sleeps until a later instant must wake for the end.
    context.notify_beat(session, next_run_at=until, now=now)


def resume(
    context: Context, session: Session, row: Schedule, *, now: datetime, notifies: bool = True
) -> None:
    """Resume a locked row from now. A one-off whose instant passed is finished.

    With ``notifies=False`` the caller notifies beat.
    """
    if row.enabled and row.error is None:
        return
    missed = timing.missed_fire_times(context, session, row, now=now)
    # Before the plan. A row that manual SQL inserted may have no links.
    calendars = used_calendars.read_existing(session, calendar_names([row]))
    row.enabled, row.paused_reason, row.paused_until, row.error = True, None, None, None
    try:
        timing.plan_from(context, session, row, now=now)
    except InvalidTriggerError:
        # A caller that catches the error and commits must not write half of the edit.
        session.expire(row)
        raise
    _record_missed(session, row, missed, now=now)
    touch(context, session, row, now=now, notifies=notifies)
    if calendars:
        used_calendars.link(session, [row], calendars, is_new=False)


def rename(context: Context, session: Session, row: Schedule, *, name: str, now: datetime) -> None:
    """Give a locked row another name. Its fire times do not change.

    Raises ScheduleExistsError, and InvalidScheduleError for a row of beat_schedule.
    """
    if name == row.name:
        return
    if row.managed_by:
        rule = (
            f"the schedule {row.name!r} follows its entry in beat_schedule: change the key of that"
            " entry"
        )
        raise invalid("new_name", name, rule)
    hash_name = row.hash_name or row.name
    schedules.rename(session, row, name=name)
    row.hash_name = hash_name
    touch(context, session, row, now=now)


def delete(context: Context, session: Session, row: Schedule, *, now: datetime) -> None:
    """Delete a locked row and revoke all its runs that have not started."""
    audit.deleted(context, session, [row], now=now)
    runs.revoke_unstarted(
        session,
        schedule_ids=[row.id],
        now=now,
        reason="the schedule was deleted",
    )
    session.expunge(row)
    schedules.delete_one(session, schedule_id=row.id)


def cancel(session: Session, row: Schedule, *, now: datetime, reason: str) -> None:
    """Revoke the row's runs that have not started, except manual runs and reruns."""
    runs.revoke_unstarted(
        session,
        schedule_ids=[row.id],
        now=now,
        reason=reason,
        keep_requested=True,
    )


def touch(
    context: Context, session: Session, row: Schedule, *, now: datetime, notifies: bool = True
) -> None:
    """Flush a changed row with the next version, and notify beat if it may have to wake."""
    row.version += 1
    row.updated_at = now
    session.flush()
    if notifies:
        context.notify_beat(session, next_run_at=row.next_run_at, now=now)


def add_manual_run(context: Context, session: Session, row: Schedule, *, now: datetime) -> Run:
    """Record a pending run that is already overdue, so that any beat publishes it at once."""
    check_task_allowed(context.settings, owner=row.owner, task=row.task)
    # The microsecond of a fire time is reserved for the run that beat creates for it.
    scheduled_for = now + MICROSECOND if _is_fire_time(context, session, row, now) else now
    while True:
        run_id = new_run_id(now)
        record = {
            "id": run_id,
            "schedule_id": row.id,
            "owner": row.owner,
            "name": row.name,
            "task": row.task,
            "scheduled_for": scheduled_for,
            "status": Status.PENDING,
            "origin": Origin.MANUAL,
            "created_at": now,
            "overdue_at": now,
            "ignores_quiet_hours": True,
        }
        if run_rows.add_runs(session, [record], settings=context.settings).ids:
            break
        # Another run has this microsecond: of a fire time, or of another call.
        scheduled_for += MICROSECOND
    context.notifier.notify(session)
    run = runs.get(session, run_id=run_id)
    assert run is not None  # noqa: S101 - inserted above
    return run


def _is_fire_time(context: Context, session: Session, row: Schedule, instant: datetime) -> bool:
    if row.next_fire_at is None or instant < row.next_fire_at:
        return False
    calendars = schedules.calendars_of(session, [row])
    try:
        trigger = nominal(spec_from_row(row, context.settings, calendars).trigger)
        return trigger.next_after(instant - MICROSECOND) == instant
    except InvalidTriggerError:
        return False


def _pause_reason(given: Mapping[str, Any]) -> str | None:
    """Return the reason why a new schedule is paused, or None if it is not paused."""
    enabled = given.get("enabled", True)
    if not isinstance(enabled, bool):
        raise invalid("enabled", enabled, "must be True or False")
    reason = given.get("paused_reason")
    if reason is not None:
        check_text("paused_reason", reason)
        if enabled:
            raise invalid("paused_reason", reason, "needs enabled=False")
    return None if enabled else reason or ""


def as_trigger(context: Context, given: object) -> Trigger:
    """Return the trigger for a value that a caller gave. Raises InvalidScheduleError."""
    return trigger_of(given, app=context.app, timezone=context.settings.timezone)


def trigger_columns(trigger: Trigger, *, timezone: str, now: datetime) -> dict[str, Any]:
    """Return the columns of a trigger; ``timezone`` is the zone of its parts that name none."""
    return {
        "trigger_kind": trigger.kind,
        "trigger_spec": trigger.spec,
        "timezone": timezone if trigger.needs_zone else trigger.timezone or "UTC",
        "inherits_timezone": trigger.needs_zone,
        # An interval without its own anchor counts from here, unless start_at is set.
        "anchor_at": now,
    }
