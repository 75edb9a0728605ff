"""The edits of one schedule, each within a transaction that the caller gives.

What an edit does to time: a new trigger, span or number of runs, and a resume, plan from now, never
backwards. A new jitter delays the next run anew; anything else leaves it alone. A cancel (pause,
delete, a one-off that moves) revokes the runs that have not started; the guard in the worker
refuses them.
"""

from collections.abc import Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from celery_dynbeat.client import limits, timing
from celery_dynbeat.client.checks import check_name, check_text, check_version, invalid
from celery_dynbeat.client.conversion import trigger_of
from celery_dynbeat.client.fields import PAYLOAD_FIELDS, merge_options, to_columns
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.errors import (
    InvalidTriggerError,
    ScheduleNotFoundError,
    StaleScheduleError,
)
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Origin, Run, Schedule
from celery_dynbeat.planning.plan import MICROSECOND, Skip
from celery_dynbeat.runtime import pausing
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import run_rows, runs, schedules
from celery_dynbeat.triggers import Trigger

#: A change of one of these changes when the schedule fires.
_TIMING_COLUMNS = frozenset(
    {"trigger_spec", "trigger_kind", "timezone", "start_at", "end_at", "max_runs"}
)
#: What a new schedule may be given, and an edit may not.
_PAUSE_FIELDS = frozenset({"enabled", "paused_reason"})
_EMPTY = dict.fromkeys(each.key for each in inspect(Schedule).column_attrs if each.key != "id")


def new_row(
    context: Context,
    *,
    owner: str,
    name: str,
    task: object,
    trigger: object,
    given: Mapping[str, Any],
    now: datetime,
) -> Schedule:
    """Return a planned row that is not in any session; a paused one with ``enabled=False``.

    Raises InvalidScheduleError when a field is wrong or the trigger would never fire, and
    InvalidTriggerError for a text that is no trigger.
    """
    pause = _pause_of(given)
    given = {key: value for key, value in given.items() if key not in _PAUSE_FIELDS}
    limit = context.settings.max_payload_bytes
    values = to_columns({"task": task, **merge_options({}, given)}, limit=limit)
    stored = trigger_of(trigger, app=context.app).resolved_at(now)
    values |= _trigger_columns(context, stored, now)
    born = {"owner": owner, "name": name, "created_at": now, "updated_at": now}
    # An instance of a mapped class keeps account of each attribute, for half the time of the call.
    row = cast("Schedule", SimpleNamespace(**{**_EMPTY, **_defaults(), **values, **born}))
    limits.check(context, row, {}, trigger=stored, now=now)
    timing.plan_new(context, row, trigger=stored, now=now)
    if pause is not None:
        # As pause() leaves it: next_fire_at stays.
        row.enabled, row.paused_reason, row.next_run_at = False, pause, None
    context.task_names.warn_if_unknown(row.task)
    return row


def insert_values(row: Schedule) -> dict[str, Any]:
    """Return the columns of a new row, for an INSERT."""
    return dict(vars(row))


def lock(
    session: Session, *, owner: str, name: str, expected_version: int | None = None
) -> Schedule:
    """Return the schedule locked for this transaction.

    Raises ScheduleNotFoundError, and StaleScheduleError when its version is not the expected one.
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
    resume: bool = False,
) -> None:
    """Apply ``given`` to a locked row; nothing happens when it says what the row says already.

    With ``resume`` a paused row is enabled too, and planned from now. Raises InvalidScheduleError
    and InvalidTriggerError.
    """
    trigger = None
    if "trigger" in given:
        trigger = trigger_of(given["trigger"], app=context.app).resolved_at(now)
    rest = {key: value for key, value in given.items() if key != "trigger"}
    values = to_columns(
        merge_options(row.options, rest),
        limit=context.settings.max_payload_bytes,
        current={column: getattr(row, column) for column in PAYLOAD_FIELDS},
    )
    if trigger is not None:
        values |= _trigger_columns(context, trigger, now)
    limits.check(context, row, values, trigger=trigger, now=now)
    values = {key: value for key, value in values.items() if getattr(row, key) != value}
    # The anchor of an interval that stays the same stays too.
    if "trigger_spec" not in values:
        values.pop("anchor_at", None)
    if not values and row.error is None and not resume:
        return
    is_replanned = bool(_TIMING_COLUMNS & values.keys()) or row.error is not None or resume
    _check_span(row, values)
    # By the rule that holds so far.
    missed = timing.skip_missed_fire_times(context, row, now=now) if is_replanned else None
    moved = is_replanned and row.trigger_kind == "once"
    if resume:
        values |= {"enabled": True, "paused_reason": None}
    try:
        _apply(context, session, row, values, is_replanned=is_replanned, trigger=trigger, now=now)
    except Exception:
        # A caller who catches it and commits must not write half of it.
        session.expire(row)
        raise
    if moved:
        cancel(session, row, now=now, reason="the one-off was moved")
    _record_missed(session, row, missed, now=now)
    touch(context, session, row, now=now)
    if "task" in values:
        context.task_names.warn_if_unknown(row.task)


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
    row.error = None
    if is_replanned:
        trigger_changed = "trigger_spec" in values or "trigger_kind" in values
        timing.replan(
            context, session, row, trigger=trigger, trigger_changed=trigger_changed, now=now
        )
    elif "jitter" in values:
        timing.apply_jitter(context, row)


def _record_missed(session: Session, row: Schedule, skip: Skip | None, *, now: datetime) -> None:
    if skip is not None:
        runs.add(session, [run_rows.skipped_row(row, skip, now=now)])


def pause(session: Session, row: Schedule, *, reason: str, now: datetime) -> None:
    """Take a locked row out of the index and revoke what has not started, manual runs excepted."""
    pausing.pause(session, row, reason=reason, now=now)


def resume(context: Context, session: Session, row: Schedule, *, now: datetime) -> None:
    """Plan a locked row from now. A one-off whose time passed meanwhile is finished."""
    if row.enabled and row.error is None:
        return
    missed = timing.skip_missed_fire_times(context, row, now=now)
    row.enabled, row.paused_reason, row.error = True, None, None
    try:
        timing.plan_from(context, row, now=now)
    except InvalidTriggerError:
        # A caller who catches it and commits must not write half of it.
        session.expire(row)
        raise
    _record_missed(session, row, missed, now=now)
    touch(context, session, row, now=now)


def delete(session: Session, row: Schedule, *, now: datetime) -> None:
    """Delete a locked row and revoke all of its runs that have not started."""
    runs.revoke_unstarted(
        session,
        schedule_ids=[row.id],
        now=now,
        reason="the schedule was deleted",
    )
    session.expunge(row)
    schedules.delete_one(session, schedule_id=row.id)


def cancel(session: Session, row: Schedule, *, now: datetime, reason: str) -> None:
    """Revoke the row's runs that have not started, manual ones excepted."""
    runs.revoke_unstarted(
        session,
        schedule_ids=[row.id],
        now=now,
        reason=reason,
        keep_manual=True,
    )


def touch(context: Context, session: Session, row: Schedule, *, now: datetime) -> None:
    """Write a changed row, count its version and wake beat if it has to know."""
    row.version += 1
    row.updated_at = now
    session.flush()
    context.notify_beat(session, next_run_at=row.next_run_at, now=now)


def add_manual_run(context: Context, session: Session, row: Schedule, *, now: datetime) -> Run:
    """Record a run that is overdue from its birth, so that any beat publishes it at once."""
    task_allowlist.check(context.settings, owner=row.owner, task=row.task)
    # A fire time's own microsecond stays free for the run that beat makes of it.
    scheduled_for = now + MICROSECOND if _is_fire_time(context, row, now) else now
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
        }
        if runs.add(session, [record]):
            break
        # The microsecond is taken: by a fire time, or by another call.
        scheduled_for += MICROSECOND
    context.notifier.notify(session)
    run = runs.get(session, run_id=run_id)
    assert run is not None  # noqa: S101 - inserted above
    return run


def _is_fire_time(context: Context, row: Schedule, instant: datetime) -> bool:
    if row.next_fire_at is None or instant < row.next_fire_at:
        return False
    try:
        return context.spec(row).trigger.next_after(instant - MICROSECOND) == instant
    except InvalidTriggerError:
        return False


def _defaults() -> dict[str, Any]:
    return {
        "args": [],
        "kwargs": {},
        "options": {},
        "enabled": True,
        "run_count": 0,
        "description": "",
        "tags": [],
        "managed_by": "",
        "version": 1,
    }


def _pause_of(given: Mapping[str, Any]) -> str | None:
    """Return the reason for which a new schedule is paused, None if it is not."""
    enabled = given.get("enabled", True)
    if not isinstance(enabled, bool):
        raise invalid("enabled", enabled, "must be True or False")
    reason = given.get("paused_reason")
    if reason is not None:
        check_text("paused_reason", reason)
        if enabled:
            raise invalid("paused_reason", reason, "needs enabled=False")
    return None if enabled else reason or ""


def _trigger_columns(context: Context, trigger: Trigger, now: datetime) -> dict[str, Any]:
    placed = trigger.in_zone(context.settings.timezone)
    return {
        "trigger_kind": placed.kind,
        "trigger_spec": placed.spec,
        "timezone": placed.timezone or "UTC",
        # What an interval without an anchor of its own counts from; start_at comes first.
        "anchor_at": now,
    }


def _check_span(row: Schedule, values: Mapping[str, Any]) -> None:
    start_at = values.get("start_at", row.start_at)
    end_at = values.get("end_at", row.end_at)
    if start_at is not None and end_at is not None and end_at < start_at:
        raise invalid("end_at", end_at, f"must not be before start_at = {start_at!r}")
