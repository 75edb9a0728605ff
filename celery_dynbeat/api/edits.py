"""The edits of one schedule. Each edit runs in the caller's transaction.

- A new trigger, span or max_runs, and a resume, set the next fire time from now. No edit fires
  retroactively. A new span or max_runs that allows a fire time that waits keeps it.
- A new window changes the offset of the next run. Other edits do not move the next run.
- A pause, a delete and the move of a one-off revoke the runs that have not started. The guard in
  the worker refuses their messages.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_modified

from celery_dynbeat.api import audit, limits, owner_clock, timing
from celery_dynbeat.api.audit import current_actor, is_same
from celery_dynbeat.api.checks import (
    check_flag,
    check_name,
    check_required_instant,
    check_version,
    invalid,
)
from celery_dynbeat.api.fields import (
    FIELDS,
    PAYLOAD,
    check_ping_url,
    check_span,
    merge_options,
    refused_content_type,
    to_columns,
    trigger_of,
)
from celery_dynbeat.api.owner_clock import OwnerClock
from celery_dynbeat.api.timing import RowPlan, ScheduleColumns
from celery_dynbeat.common.errors import ConflictError, InvalidTriggerError, NotFoundError
from celery_dynbeat.common.infos import as_json
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.states import Action, Origin, Status
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.planning import Calendars, calendar_names
from celery_dynbeat.planning.plan import MICROSECOND, Skip
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import runs, schedules
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


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The progress of a schedule that another scheduler has run until now.

    - ``after``: it has processed the fire times up to this instant. None means up to now.
    - ``last_run_at``: when it last sent the task.
    - ``anchor_at``: the instant from which it counts an interval; None means from now.
    - ``run_count``: how often it has sent the task.
    """

    after: datetime | None = None
    last_run_at: datetime | None = None
    anchor_at: datetime | None = None
    run_count: int = 0

    def columns(self, *, now: datetime) -> dict[str, Any]:
        """Return the columns of the progress."""
        return {
            "last_run_at": self.last_run_at,
            "run_count": self.run_count,
            "anchor_at": self.anchor_at or now,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a caller gave for a new schedule. ``fields`` are those of ``NewFields``.

    - ``progress`` is the progress in another scheduler. None means that no other scheduler has run
      it.
    - If ``is_limited`` is false, any task and interval is accepted, but beat still applies these
      limits.
    """

    owner: str
    name: str
    task: object
    trigger: Trigger
    fields: Mapping[str, Any]
    progress: SourceProgress | None = None
    is_limited: bool = True


def new_row(
    context: Context, given: Definition, *, clock: OwnerClock, now: datetime
) -> ScheduleColumns:
    """Return the columns of a new schedule, including its next fire time.

    A trigger that names no zone uses the zone in ``clock``, which also has the calendars of the
    trigger. With ``enabled=False`` the schedule is paused, for the reason of the call. Raises
    InvalidArgumentError if a field is invalid or the schedule never fires, and InvalidTriggerError
    for an invalid trigger.
    """
    enabled = check_flag("enabled", given.fields.get("enabled", True))
    fields = {key: value for key, value in given.fields.items() if key != "enabled"}
    values = _checked_columns(context, {"task": given.task, **merge_options({}, fields)})
    if given.is_limited:
        context.settings.owner_limits.check_task(owner=given.owner, task=values["task"])
        _check_arguments(context, values)
    row = planned_row(context, given, values, clock=clock, now=now)
    if not enabled:
        # next_fire_at stays set, as after pause().
        row.enabled, row.paused_reason, row.next_run_at = False, current_actor().reason, None
    context.task_names.warn_if_unknown(row.task)
    return row


def planned_row(
    context: Context,
    given: Definition,
    values: Mapping[str, Any],
    *,
    clock: OwnerClock,
    now: datetime,
) -> ScheduleColumns:
    """Return the columns of a new schedule, including its next fire time.

    ``values`` are the columns of its fields, and already checked.
    """
    trigger, progress = given.trigger.resolved_at(now), given.progress
    columns = {**values, **trigger_columns(trigger, timezone=clock.timezone, now=now)}
    if progress is not None:
        columns |= progress.columns(now=now)
    row = ScheduleColumns(
        owner=given.owner,
        name=given.name,
        quiet_hours=clock.quiet_hours,
        created_at=now,
        updated_at=now,
        **columns,
    )
    days, any_interval = clock.calendars, not given.is_limited
    limits.check_trigger(context, row, trigger, calendars=days, now=now, any_interval=any_interval)
    if progress is None:
        timing.plan_new(context, row, trigger, calendars=days, now=now)
    else:
        after = progress.after or now
        timing.plan_continued(context, row, trigger, after=after, calendars=days, now=now)
    return row


def insert(
    context: Context,
    session: Session,
    rows: Sequence[ScheduleColumns],
    *,
    calendars: Calendars,
    now: datetime,
) -> None:
    """Insert new rows, which get their ids, with their audit, and notify beat.

    ``calendars`` are those that their plans have read. Raises ScheduleExistsError.
    """
    # A caller that catches the error of a link and commits must not write the rows.
    with savepoint(session) if calendars else nullcontext():
        if len(rows) == 1:
            rows[0].id = schedules.add(session, rows[0].insert_values())
        else:
            newest = schedules.newest_id(session)
            schedules.add_many(session, [row.insert_values() for row in rows])
            keys = [(row.owner, row.name) for row in rows]
            ids = schedules.ids_of(session, keys, after=newest)
            for row, key in zip(rows, keys, strict=True):
                row.id = ids[key]
        owner_clock.link(session, rows, calendars, is_new=True)
    audit.created(context, session, rows, now=now)
    earliest = min((row.next_run_at for row in rows if row.next_run_at), default=None)
    context.notify_beat(session, next_run_at=earliest, now=now)


def lock(
    session: Session, *, owner: str, name: str, expected_version: int | None = None
) -> Schedule:
    """Return the schedule, locked for this transaction.

    Raises NotFoundError, and ConflictError with code ``"stale"`` if its version is not the expected
    one.
    """
    if expected_version is not None:
        check_version("expected_version", expected_version)
    row = schedules.lock(session, owner=owner, name=check_name("name", name))
    if row is None:
        raise NotFoundError("schedule", name, owner=owner)
    if expected_version is not None and row.version != expected_version:
        raise ConflictError(
            f"schedule {name!r} of owner {owner!r} is at version {row.version}, not"
            f" {expected_version}: another caller has changed it; read it again and repeat the"
            " edit",
            code="stale",
            owner=owner,
            name=name,
            expected_version=expected_version,
            version=row.version,
        )
    return row


class RowEdit(RowPlan):
    """Edits a locked row, in the transaction of a call at ``now``.

    A new trigger that names no zone uses ``timezone``. With ``notifies=False`` the caller notifies
    beat of what an edit makes due.
    """

    def __init__(
        self,
        context: Context,
        session: Session,
        row: Schedule,
        *,
        now: datetime,
        timezone: str = "",
        notifies: bool = True,
    ) -> None:
        super().__init__(context, session, row, now=now)
        self.timezone, self.notifies = timezone, notifies

    def change(self, given: Mapping[str, Any], *, resume: bool = False) -> None:
        """Apply ``given`` to the row. If no value differs, the row does not change.

        With ``resume`` the row is enabled, and its next fire time is set from now. Raises
        InvalidArgumentError and InvalidTriggerError.
        """
        row, now, trigger = self.row, self.now, None
        if "trigger" in given:
            trigger = as_trigger(self.context, given["trigger"]).resolved_at(now)
        quiet_hours = None if trigger is None else row.quiet_hours
        calendars = owner_clock.read_calendars(self.session, trigger, quiet_hours=quiet_hours)
        if trigger is None and (resume or row.error is not None):
            calendars = owner_clock.existing_calendars(self.session, calendar_names([row]))
        is_linked = bool(calendars) or (trigger is not None and bool(calendar_names([row])))
        values = self._changed_columns(given, trigger, calendars)
        if not values and row.error is None and not resume:
            return
        if trigger is not None and trigger.kind == "once" and "trigger_spec" in values:
            # The caller names the instant: it has priority over an earlier skip.
            values["skips"] = None
        is_replanned = self._moves_next_fire(values) or row.error is not None or resume
        check_span(
            start_at=values.get("start_at", row.start_at), end_at=values.get("end_at", row.end_at)
        )
        timing.check_is_ahead(values.get("end_at"), row, now=now)
        # This comes before the edit, because the old trigger defines the missed fire times.
        missed = self.missed() if is_replanned else ()
        is_moved = is_replanned and row.trigger_kind == "once"
        if resume:
            values |= {"enabled": True, "paused_reason": None, "paused_until": None}
        try:
            self._apply(values, trigger, is_replanned=is_replanned)
            if is_linked:
                owner_clock.link(self.session, [row], calendars, is_new=False)
        except Exception:
            # A caller that catches the error and commits must not write half of the edit.
            self.session.expire(row)
            raise
        if is_moved:
            self._cancel_unstarted("the one-off was moved", keep_requested=True)
        self._written(missed)
        if "task" in values:
            self.context.task_names.warn_if_unknown(row.task)

    def _moves_next_fire(self, values: Mapping[str, Any]) -> bool:
        """Return whether changed columns of the row move its next fire time.

        A fire time that waits stays if the new start and ``max_runs`` allow it. A new end is later.
        """
        moving = _TIMING_COLUMNS & values.keys()
        fire_at = self.row.next_fire_at
        if fire_at is None or moving - _LIMITS or not self.has_waiting_fire_time:
            return bool(moving)
        start_at, max_runs = values.get("start_at"), values.get("max_runs")
        is_before = start_at is not None and fire_at < start_at
        return is_before or (max_runs is not None and max_runs <= self.row.run_count)

    def _changed_columns(
        self, given: Mapping[str, Any], trigger: Trigger | None, calendars: Calendars
    ) -> dict[str, Any]:
        """Return the columns whose values differ from the row, checked against the limits."""
        context, row, now = self.context, self.row, self.now
        fields = {key: value for key, value in given.items() if key != "trigger"}
        values = to_columns(
            merge_options(row.options, fields),
            limit=context.settings.max_payload_bytes,
            current={column: getattr(row, column) for column in PAYLOAD},
        )
        if "options" in fields:
            _check_accepted(context, values)
        if trigger is not None:
            values |= trigger_columns(trigger, timezone=self.timezone, now=now)
        edited = ScheduleColumns.edited(row, values)
        context.settings.owner_limits.check_task(owner=edited.owner, task=edited.task)
        if trigger is not None:
            limits.check_trigger(context, edited, trigger, calendars=calendars, now=now)
        values = {
            key: value for key, value in values.items() if not is_same(getattr(row, key), value)
        }
        # Only new values are checked, so that a later change of a setting or a task does not
        # prevent other edits.
        check_ping_url(context.settings, values)
        if not _ARGUMENT_COLUMNS.isdisjoint(values):
            stored = {key: getattr(row, key) for key in _ARGUMENT_COLUMNS}
            _check_arguments(context, {**stored, **values})
        # The anchor changes only with the trigger.
        if "trigger_spec" not in values:
            values.pop("anchor_at", None)
        return values

    def _apply(
        self, values: Mapping[str, Any], trigger: Trigger | None, *, is_replanned: bool
    ) -> None:
        for key, value in values.items():
            setattr(self.row, key, value)
            # SQLAlchemy compares with ==, so it would not write True over 1 in a JSON column.
            flag_modified(self.row, key)
        self.row.error = None
        if is_replanned:
            # The old trigger decides about those that have passed. The new one may yield them, too.
            self.drop_passed_skips()
            is_new_trigger = "trigger_spec" in values or "trigger_kind" in values
            self.replan(trigger, is_new_trigger=is_new_trigger)
            self.check_cost_of_skips()
        elif not _OFFSET_COLUMNS.isdisjoint(values):
            self.apply_window()

    def _written(self, missed: Sequence[Skip]) -> None:
        """Record the missed fire times, and flush the row."""
        skipped = [runs.skipped_row(self.row, skip, now=self.now) for skip in missed]
        runs.add(self.session, skipped)
        self.touch()

    def touch(self) -> None:
        """Flush the changed row with the next version, and notify beat if it may have to wake."""
        self.row.version += 1
        self.row.updated_at = self.now
        self.session.flush()
        if self.notifies:
            next_run_at = self.row.next_run_at
            self.context.notify_beat(self.session, next_run_at=next_run_at, now=self.now)

    def pause(self, until: datetime | None) -> None:
        """Pause the row and revoke its unstarted runs, except manual runs and reruns.

        The reason is that of the call. Beat resumes the schedule at ``until``. None means that only
        a call of ``resume`` ends the pause.
        """
        by = current_actor()
        schedules.pause(self.session, self.row, reason=by.reason, now=self.now, until=until)
        schedules.emit_paused(
            self.session, self.row, actor=by.actor, reason=by.reason, now=self.now
        )
        # A beat that sleeps until a later instant must wake for the end.
        self.context.notify_beat(self.session, next_run_at=until, now=self.now)

    def resume(self) -> None:
        """Resume the row from now. A one-off whose instant passed is finished."""
        row = self.row
        if row.enabled and row.error is None:
            return
        missed = self.missed()
        # Before the plan. A row that manual SQL inserted may have no links.
        calendars = owner_clock.existing_calendars(self.session, calendar_names([row]))
        row.enabled, row.paused_reason, row.paused_until, row.error = True, None, None, None
        try:
            self.plan()
            if calendars:
                owner_clock.link(self.session, [row], calendars, is_new=False)
        except InvalidTriggerError:
            # A caller that catches the error and commits must not write half of the edit.
            self.session.expire(row)
            raise
        self._written(missed)

    def rename(self, name: str) -> None:
        """Give the row another name. Its fire times do not change.

        Raises ScheduleExistsError, and InvalidArgumentError for a row of beat_schedule.
        """
        row = self.row
        if name == row.name:
            return
        if row.managed_by:
            rule = (
                f"the schedule {row.name!r} follows its entry in beat_schedule: change the key of"
                " that entry"
            )
            raise invalid("new_name", name, rule)
        hash_name = row.hash_name or row.name
        schedules.rename(self.session, row, name=name)
        row.hash_name = hash_name
        self.touch()

    def delete(self) -> None:
        """Delete the row and revoke all its runs that have not started."""
        audit.deleted(self.context, self.session, [self.row], now=self.now)
        self._cancel_unstarted("the schedule was deleted")
        self.session.expunge(self.row)
        schedules.delete_one(self.session, schedule_id=self.row.id)

    def _cancel_unstarted(self, reason: str, *, keep_requested: bool = False) -> None:
        runs.revoke_unstarted(
            self.session,
            schedule_ids=[self.row.id],
            now=self.now,
            reason=reason,
            keep_requested=keep_requested,
        )

    def skip(self, fire_at: datetime) -> None:
        """Take a fire time out of the row, unless it was already removed."""
        if self.take_out(fire_at):
            self.touch()
            self.record(Action.SKIP, {"fire_at": fire_at})

    def unskip(self, fire_at: datetime) -> None:
        """Put a skipped fire time back into the row."""
        self.put_back(fire_at)
        self.touch()
        self.record(Action.UNSKIP, {"fire_at": fire_at})

    def record(self, action: Action, new: Mapping[str, Any]) -> None:
        """Write an edit that changes no field of the schedule to the audit."""
        edit = audit.Edit(owner=self.row.owner, name=self.row.name, action=action, new=as_json(new))
        audit.record(self.context, self.session, [edit], now=self.now)

    def add_manual_run(self) -> Run:
        """Record a pending run that is already overdue, so that any beat publishes it at once."""
        row, now, settings = self.row, self.now, self.context.settings
        settings.owner_limits.check_task(owner=row.owner, task=row.task)
        # The microsecond of a fire time is reserved for the run that beat creates for it.
        fire_at = now + MICROSECOND if self._is_fire_time(now) else now
        while True:
            run_id = new_run_id(now)
            record = {
                "id": run_id,
                "schedule_id": row.id,
                "owner": row.owner,
                "name": row.name,
                "task": row.task,
                "fire_at": fire_at,
                "status": Status.PENDING,
                "origin": Origin.MANUAL,
                "created_at": now,
                "overdue_at": now,
                "ignores_quiet_hours": True,
            }
            if runs.record(self.session, [record], settings=settings).ids:
                break
            # Another run has this microsecond: of a fire time, or of another call.
            fire_at += MICROSECOND
        self.context.notifier.notify(self.session)
        run = runs.get(self.session, run_id=run_id)
        assert run is not None  # noqa: S101 - inserted above
        return run

    def _is_fire_time(self, instant: datetime) -> bool:
        if self.row.next_fire_at is None or instant < self.row.next_fire_at:
            return False
        try:
            return nominal(self.spec().trigger).next_after(instant - MICROSECOND) == instant
        except InvalidTriggerError:
            return False


def check_changes(context: Context, given: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError for values of ``given`` that no schedule accepts.

    ``RowEdit.change`` makes the checks that depend on the schedule.
    """
    fields = {key: value for key, value in given.items() if key != "trigger"}
    _checked_columns(context, merge_options({}, fields))


def _checked_columns(context: Context, given: Mapping[str, Any]) -> dict[str, Any]:
    values = to_columns(given, limit=context.settings.max_payload_bytes)
    _check_accepted(context, values)
    check_ping_url(context.settings, values)
    return values


def _check_accepted(context: Context, values: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError for a serializer whose messages the workers would refuse."""
    serializer = values.get("options", {}).get("serializer")
    if serializer is not None and (refused := refused_content_type(context.app, serializer)):
        rule = (
            f"its content type {refused} is not in accept_content of this application, so workers"
            " refuse its messages: add it there, or choose another serializer"
        )
        raise invalid("options['serializer']", serializer, rule)


def _check_arguments(context: Context, values: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError for arguments that a task of this process refuses."""
    args, kwargs = values.get("args", []), values.get("kwargs", {})
    error = context.task_names.argument_error(values["task"], args, kwargs)
    if error is not None:
        field = "args" if " takes " in error.partition(";")[0] else "kwargs"
        rule = f"{error}. Correct the arguments, or define the task with typing=False"
        raise invalid(field, values.get(field, kwargs), rule)


def pause_end(until: object, *, now: datetime) -> datetime | None:
    """Return the instant at which a pause ends, or None if only a resume ends it.

    A duration counts from ``now``. Raises InvalidArgumentError unless the instant is in the future.
    """
    if until is None:
        return None
    at: object = until
    if isinstance(until, timedelta):
        try:
            at = now + until
        except OverflowError:
            rule = "is too long: choose an earlier instant"
            raise invalid("until", until, rule, "instant") from None
    elif not isinstance(until, datetime):
        rule = "must be an aware datetime, a timedelta from now on, or None"
        raise invalid("until", until, rule)
    instant = check_required_instant("until", at)
    if instant <= now:
        raise invalid("until", until, f"must be later than now, {now}, or None", "past")
    return instant


def as_trigger(context: Context, given: object) -> Trigger:
    """Return the trigger for a value that a caller gave. Raises InvalidArgumentError."""
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
