"""The next fire time of a schedule after an edit, and the fire times that the edit skips.

The fire times that ``skip`` took out are in the column ``skips`` of the row, with the reasons.
Plans leave them out. Beat records them as skipped, and removes them from the column, when it
decides about a later fire time. If no other fire time is left, the schedule is due at a skipped
one, and finishes then.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import limits
from celery_dynbeat.api.audit import current_actor
from celery_dynbeat.api.checks import conflict, invalid
from celery_dynbeat.common.errors import (
    InvalidArgumentError,
    InvalidTriggerError,
    UnusableCalendarError,
)
from celery_dynbeat.common.text import cut, format_duration, format_seconds
from celery_dynbeat.db.models import SCHEDULES, Schedule
from celery_dynbeat.db.statements import Row, format_error
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    as_skips,
    skips_in,
    spec_from_row,
    with_search_budget,
    with_skipped,
)
from celery_dynbeat.planning.plan import (
    MICROSECOND,
    NextRun,
    Skip,
    due_again,
    first_fire,
    first_planned,
    has_reached_max_runs,
    moved_to,
    next_fire,
    next_planned,
    replanned,
    skip_missed,
    takes_out,
)
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import runs, schedules
from celery_dynbeat.telemetry import emit_on_commit, events
from celery_dynbeat.triggers import Once, Trigger
from celery_dynbeat.triggers.base import PLAN_STEPS
from celery_dynbeat.triggers.wrappers import nominal
from celery_dynbeat.triggers.zones import describe_instant

if TYPE_CHECKING:
    _Columns = Schedule
else:
    # A Schedule is not used, because SQLAlchemy's tracking of each attribute takes half of the time
    # of a create().
    _Columns = object

#: The columns of a schedule in an INSERT. The database makes the id.
_NAMES = tuple(column.name for column in SCHEDULES.columns if column.name != "id")
#: The values of a new schedule, without its lists and objects.
_DEFAULTS: Mapping[str, Any] = {
    **{column.name: None for column in SCHEDULES.columns if column.nullable},
    "inherits_timezone": False,
    "enabled": True,
    "run_count": 0,
    "version": 1,
    "description": "",
    "managed_by": "",
}


class ScheduleColumns(_Columns):
    """A row of ``dynbeat_schedule`` before its INSERT, with the defaults of a new schedule.

    ``id`` exists only after the INSERT.
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update(_DEFAULTS, args=[], kwargs={}, options={}, tags=[])
        vars(self).update(values)

    @classmethod
    def of(cls, row: Row) -> "ScheduleColumns":
        """Return the columns of a selected row, with its id."""
        return cls(**row._asdict())

    @classmethod
    def edited(cls, row: Schedule, values: Mapping[str, Any]) -> "ScheduleColumns":
        """Return the columns of ``row`` after an edit to ``values``; ``row`` does not change."""
        return cls(**{name: values.get(name, getattr(row, name)) for name in _NAMES})

    def insert_values(self) -> dict[str, Any]:
        """Return the values for an INSERT."""
        return dict(vars(self))


#: Skipped fire times in a row. Each can cost beat a search in each plan. Those of a paused schedule
#: stay until the resume.
MAX_SKIPPED = 100
#: Skipped fire times that an error names.
_MAX_NAMED = 3
#: The characters of the reason of a skipped fire time, because the row is read in each claim.
_REASON_LENGTH = 300


def plan_new(
    context: Context,
    row: Schedule,
    trigger: Trigger,
    *,
    calendars: Calendars,
    now: datetime,
) -> None:
    """Set the first fire time of a new row, whose trigger uses ``calendars``.

    Raises InvalidArgumentError with the reason if the schedule never fires.
    """
    spec = spec_from_row(row, context.settings, calendars)
    _set_next(row, _planned_anew(row, spec, now=now), now=now)
    if row.next_run_at is None:
        raise _never_fires(context, spec, row, trigger=trigger, now=now)


def plan_continued(
    context: Context,
    row: Schedule,
    trigger: Trigger,
    *,
    after: datetime,
    calendars: Calendars,
    now: datetime,
) -> None:
    """Set the next fire time to the first one after ``after``.

    Fire times up to ``after`` have already been processed, here or by another scheduler. If the
    next fire time has passed, the schedule is due at once. Raises InvalidArgumentError if no fire
    time is left.
    """
    spec = spec_from_row(row, context.settings, calendars)
    fire_at = None if has_reached_max_runs(spec, row) else first_planned(spec, now=after)
    _set_next(row, moved_to(spec, row, fire_at, now=now), now=now)
    if fire_at is None:
        raise _never_fires(context, spec, row, trigger=trigger, now=max(after, now))
    if not row.enabled:
        row.next_run_at = None


class RowPlan:
    """Plans the row of a schedule again, in the transaction of an edit at ``now``.

    Methods that search the trigger raise InvalidTriggerError.
    """

    def __init__(self, context: Context, session: Session, row: Schedule, *, now: datetime) -> None:
        self.context, self.session, self.row, self.now = context, session, row, now

    def spec(self) -> ScheduleSpec:
        """Return the spec of the row."""
        # In the middle of an edit the row is incomplete and must not be flushed.
        with self.session.no_autoflush:
            calendars = schedules.calendars_of(self.session, [self.row])
        return spec_from_row(self.row, self.context.settings, calendars)

    @property
    def has_waiting_fire_time(self) -> bool:
        """Whether a fire time of an active row has passed and has no run.

        It waits for a release, for the end of quiet hours, or for a beat.
        """
        fire_at = self.row.next_fire_at
        return self.row.next_run_at is not None and fire_at is not None and fire_at <= self.now

    def missed(self) -> Sequence[Skip]:
        """Return the fire times of the row until now that beat did not send."""
        if self.row.next_fire_at is None:
            return ()
        reason = _missed_reason(self.row)
        try:
            spec = self.spec()
            return skip_missed(spec, fire_at=self.row.next_fire_at, now=self.now, reason=reason)
        except InvalidTriggerError:
            # The trigger is damaged or too costly to search. An edit must still be able to replace
            # it.
            return ()

    def plan(self) -> None:
        """Set the first fire time after now. A row without a further fire time is finished.

        A row that has none only because of its calendars is quarantined. If the trigger cannot be
        read, the error names the row.
        """
        with naming_schedule(self.row):
            spec = self.spec()
            self._move(spec, replanned(spec, self.row, since=self.now, now=self.now))

    def replan(self, trigger: Trigger | None, *, is_new_trigger: bool) -> None:
        """Set the next fire time after an edit; a paused row stays out of the index.

        ``trigger`` is the caller's, or None if the caller gave none. ``is_new_trigger`` means that
        the trigger differs from the stored trigger. In this case, a one-off may have passed
        recently. Raises InvalidArgumentError if the schedule never fires, and ConflictError if its
        new instant already has a run.
        """
        row, now = self.row, self.now
        if trigger is None:
            self.plan()
        else:
            spec = self.spec()
            if is_new_trigger:
                planned = _planned_anew(row, spec, now=now)
            else:
                planned = replanned(spec, row, since=now, now=now)
            if not planned.is_blocked and planned.fire_at is not None and planned.fire_at <= now:
                self._check_has_no_run(planned.fire_at, trigger)
            _set_next(row, planned, now=now)
            if row.next_run_at is None and row.enabled:
                raise _never_fires(self.context, spec, row, trigger=trigger, now=now)
        if not row.enabled:
            row.finished_at = row.next_run_at = None

    def _move(self, spec: ScheduleSpec, planned: NextRun) -> None:
        """Set the next run. A row that its calendars block is quarantined, unless it is already."""
        row = self.row
        if not planned.is_blocked or row.error is not None:
            _set_next(row, planned, now=self.now)
            return
        row.next_fire_at, row.next_run_at, row.held_at = planned.fire_at, None, None
        row.finished_at = None
        self.quarantine(UnusableCalendarError(spec.calendars))

    def quarantine(self, error: Exception) -> None:
        """Store the error of a row that cannot be planned. The caller takes it out of the index."""
        row = self.row
        row.error = format_error(error)
        quarantined = events.ScheduleQuarantined(
            schedule_id=row.id, owner=row.owner, schedule=row.name, error=row.error, at=self.now
        )
        emit_on_commit(self.session, quarantined)

    def apply_window(self) -> None:
        """Set the next run by a new window; its fire time does not change."""
        row = self.row
        if row.next_run_at is not None and row.next_fire_at is not None:
            with naming_schedule(row):
                at = due_again(
                    self.spec(), row.next_fire_at, planned_at=row.next_run_at, now=self.now
                )
                # If the schedule is held, beat finds that again.
                row.next_run_at, row.held_at = at, None

    def _check_has_no_run(self, fire_at: datetime, trigger: Trigger) -> None:
        # Without a flush, because the edit of the row is incomplete. If a run exists, the unique
        # key keeps it, even a revoked one, and beat would send nothing.
        with self.session.no_autoflush:
            has_run = runs.has_run(self.session, schedule_id=self.row.id, fire_at=fire_at)
        if has_run:
            rule = "already has its run; choose another instant, or use run_now()"
            raise conflict("trigger", trigger, rule, code="has_run")

    def take_out(self, fire_at: datetime) -> bool:
        """Take a fire time out of the row. Return False if it was already removed.

        Raises InvalidArgumentError and ConflictError.
        """
        row, now = self.row, self.now
        if row.finished_at is not None:
            rule = f"the schedule finished at {row.finished_at} and has no more fire times"
            raise conflict("fire_at", fire_at, rule, code="ended")
        _check_is_future(fire_at, now)
        with naming_schedule(row):
            earlier = skips_in(row.skips)
            if fire_at in earlier:
                return False
            spec = with_skipped(self.spec())
            _check_is_fire_time(spec, fire_at, now=now)
        if len(earlier) >= MAX_SKIPPED:
            # An edit may have left some that are no fire times any more.
            limited = with_search_budget(spec)
            earlier = {
                at: reason
                for at, reason in earlier.items()
                if at <= now or _is_fire_time(limited, at)
            }
        _check_number(spec, sorted({fire_at, *earlier}))
        if runs.has_run(self.session, schedule_id=row.id, fire_at=fire_at):
            rule = "the schedule already has a run for this fire time; see runs()"
            raise conflict("fire_at", fire_at, rule, code="has_run")
        self._write_skips({**earlier, fire_at: _skip_reason()}, fire_at)
        return True

    def put_back(self, fire_at: datetime) -> None:
        """Put a skipped fire time back into the row. Raises InvalidArgumentError."""
        _check_is_future(fire_at, self.now)
        with naming_schedule(self.row):
            skipped = skips_in(self.row.skips)
        if fire_at not in skipped:
            raise _not_skipped(fire_at, skipped, now=self.now)
        others = {at: reason for at, reason in skipped.items() if at != fire_at}
        self._write_skips(others, fire_at)

    def _write_skips(self, skipped: Mapping[datetime, str], changed_at: datetime) -> None:
        """Store ``skipped``. Set the next fire time if the change at ``changed_at`` moves it."""
        row = self.row
        next_at, was_skipped = row.next_fire_at, row.next_fire_at in skips_in(row.skips)
        row.skips = as_skips(skipped)
        is_earlier = next_at is not None and changed_at < next_at and changed_at not in skipped
        if next_at is None or not (changed_at == next_at or was_skipped or is_earlier):
            return
        try:
            with naming_schedule(row):
                spec = self.spec()
                fire_at = next_planned(spec, min(changed_at, next_at) - MICROSECOND)
                if not _is_too_near(row, spec, fire_at, now=self.now):
                    self._move(spec, moved_to(spec, row, fire_at, now=self.now))
                    if not row.enabled or row.error is not None:
                        row.finished_at = row.next_run_at = None
        except Exception:
            # A caller that catches the error and commits must not write half of the edit.
            self.session.expire(row)
            raise

    def skipped_in_future(self) -> Mapping[datetime, str]:
        """Return the skipped fire times after now that the trigger of the row yields."""
        future = {at: why for at, why in skips_in(self.row.skips).items() if at > self.now}
        if not future:
            return {}
        spec = with_search_budget(self.spec())
        return {at: reason for at, reason in future.items() if takes_out(spec, at)}

    def drop_passed_skips(self) -> None:
        """Remove the skipped fire times up to now from the row."""
        with naming_schedule(self.row):
            skipped = skips_in(self.row.skips)
        self.row.skips = as_skips({at: why for at, why in skipped.items() if at > self.now})

    def check_cost_of_skips(self) -> None:
        """Raise InvalidArgumentError if an edit made the plans without the skips too costly."""
        future = [at for at in skips_in(self.row.skips) if at > self.now]
        if not future:
            return
        with naming_schedule(self.row):
            spec = with_skipped(self.spec())
            limited = with_search_budget(spec)
            _check_number(spec, [at for at in future if _is_fire_time(limited, at)])


def _never_fires(
    context: Context, spec: ScheduleSpec, row: Schedule, *, trigger: Trigger, now: datetime
) -> InvalidArgumentError:
    """Return the error for a row without a fire time after ``now``, with the first reason.

    The message shows ``trigger``, the one that the caller gave.
    """
    if has_reached_max_runs(spec, row):
        rule = f"is reached after {row.run_count} runs: choose more, None, or use run_now()"
        return invalid("max_runs", row.max_runs, rule, "never_fires")
    check_is_ahead(row.end_at, row, now=now)
    blocked_at = moved_to(spec, row, None, now=now).fire_at
    if blocked_at is not None:
        rule = f"it has no fire time left, and that of {_shown(row, blocked_at)} is on a day of it"
        reason = str(UnusableCalendarError(spec.calendars, rule))
    else:
        reason = _no_fire_reason(context, spec, row, now)
    return invalid("trigger", trigger, f"would never fire: {reason}", "never_fires")


def check_is_ahead(end_at: datetime | None, row: Schedule, *, now: datetime) -> None:
    """Raise InvalidArgumentError for an end that has passed."""
    if end_at is not None and end_at <= now:
        rule = f"lies in the past, it is {_shown(row, now)} now: choose a later instant, or None"
        raise invalid("end_at", end_at, rule, "past")


def _no_fire_reason(context: Context, spec: ScheduleSpec, row: Schedule, now: datetime) -> str:
    """Return why the trigger has no fire time after ``now`` within the span of the row."""
    spec = with_skipped(spec)
    if row.start_at is not None and spec.trigger.next_after(row.start_at - MICROSECOND) is None:
        start = _shown(row, row.start_at)
        return f"all of its fire times are before start_at = {start}; choose an earlier one"
    if spec.trigger.next_after(now) is None:
        if isinstance(spec.trigger, Once):
            age, longest = format_duration(now - spec.trigger.at), format_seconds(spec.grace)
            return (
                f"its instant passed {age} ago, it is {_shown(row, now)} now, and"
                f" dynbeat_dispatch_timeout = {longest} is the longest delay; choose an instant in"
                " the future"
            )
        at = _shown(row, now)
        return f"its last fire time has passed, it is {at} now; choose a trigger that still fires"
    fire_at = first_fire(spec, now=now)
    if fire_at is None:
        first = "" if row.start_at is None else f" from start_at = {_shown(row, row.start_at)} on"
        end = _shown(row, row.end_at)
        return f"it has no fire time{first} until end_at = {end}; choose a later end_at"
    first, last = _shown(row, fire_at), _shown(row, row.last_run_at)
    _, limit = limits.min_interval_of(context.settings, row.owner)
    return (
        f"each fire time that is left, the first at {first}, follows the last run, of {last}, by"
        f" less than {limit} = {format_seconds(spec.min_interval)}; choose a later one"
    )


def _shown(row: Schedule, instant: datetime | None) -> str:
    return "none" if instant is None else describe_instant(instant, row.timezone)


def _set_next(row: Schedule, planned: NextRun, *, now: datetime) -> None:
    """Set the next run. A row without one is finished, also if its calendars are the reason."""
    is_finished = planned.run_at is None
    row.next_fire_at, row.held_at = None if is_finished else planned.fire_at, None
    row.next_run_at, row.finished_at = planned.run_at, now if is_finished else None


def _planned_anew(row: Schedule, spec: ScheduleSpec, *, now: datetime) -> NextRun:
    """Return the first run of a new trigger. A one-off may have passed recently."""
    passed_at = _recently_passed(spec, now=now)
    if passed_at is not None and not has_reached_max_runs(spec, row):
        return moved_to(spec, row, passed_at, now=now)
    return replanned(spec, row, since=now, now=now)


def _recently_passed(spec: ScheduleSpec, *, now: datetime) -> datetime | None:
    """Return the instant of a one-off that passed within the grace and fires at once, else None."""
    trigger = nominal(spec.trigger)
    if not isinstance(trigger, Once):
        return None
    at = trigger.at
    in_span = (spec.start_at is None or spec.start_at <= at) and (
        spec.end_at is None or at <= spec.end_at
    )
    return at if in_span and now - spec.grace <= at <= now else None


def _missed_reason(row: Schedule) -> str:
    if row.error is not None:
        return "missed: the schedule was quarantined"
    if not row.enabled:
        return "missed: the schedule was paused"
    if row.held_at is not None:
        return "missed: the schedule was held"
    return "missed: the schedule was edited before a beat could send it"


def _is_too_near(
    row: Schedule, spec: ScheduleSpec, fire_at: datetime | None, *, now: datetime
) -> bool:
    """Return whether the fire time follows the last run by less than ``min_interval``."""
    if fire_at is None or row.last_run_at is None:
        return False
    # After the clock was set back, the last run may be later.
    return fire_at < min(row.last_run_at, now) + spec.min_interval


def _check_is_future(fire_at: datetime, now: datetime) -> None:
    if fire_at <= now:
        rule = f"has passed or is due (it is {now} now): you can only change a future fire time"
        raise invalid("fire_at", fire_at, rule, "past")


def _is_fire_time(spec: ScheduleSpec, instant: datetime) -> bool:
    """Return whether the trigger yields ``instant`` within ``start_at`` and ``end_at``."""
    if spec.start_at is not None and instant < spec.start_at:
        return False
    return next_fire(spec, instant - MICROSECOND) == instant


def _check_is_fire_time(spec: ScheduleSpec, instant: datetime, *, now: datetime) -> None:
    """Raise InvalidArgumentError with the nearest fire times if ``instant`` is not one."""
    spec = with_search_budget(spec)
    if _is_fire_time(spec, instant):
        return
    first = now if spec.start_at is None else max(now, spec.start_at - MICROSECOND)
    last = instant if spec.end_at is None else min(instant, spec.end_at)
    before = spec.trigger.latest_until(after=first, until=last) if first < last else None
    after = next_fire(spec, max(first, instant))
    near = " and ".join(str(at) for at in (before, after) if at is not None)
    rule = f"the nearest are {near}" if near else "it has no fire time in the future"
    rule = f"is not a fire time of the schedule: {rule}"
    raise invalid("fire_at", instant, rule, "not_a_fire_time")


def _check_number(spec: ScheduleSpec, skipped: Sequence[datetime]) -> None:
    """Raise InvalidArgumentError if plans without ``skipped``, in order, are too costly."""
    if len(skipped) > MAX_SKIPPED:
        rule = (
            f"the schedule has {MAX_SKIPPED} skipped fire times, the limit: unskip() some,"
            " resume() the schedule if it is paused, or exclude days with trigger.excluding()"
        )
        raise invalid("fire_at", skipped[-1], rule, "too_many", maximum=MAX_SKIPPED)
    if not spec.trigger.needs_budget:
        return
    try:
        # A plan may meet each of them. Its other searches take the rest of its budget.
        trigger = with_search_budget(spec, steps=PLAN_STEPS // 4).trigger
        for at in skipped:
            trigger.next_after(at)
    except InvalidTriggerError as error:
        rule = f"too many skipped fire times for this trigger, unskip() some: {error}"
        raise invalid("fire_at", skipped[-1], rule) from error


def _skip_reason() -> str:
    by = current_actor()
    text = f"skipped by {by.actor or 'a call'}"
    return cut(f"{text}: {by.reason}" if by.reason else text, _REASON_LENGTH)


def _not_skipped(
    fire_at: datetime, skipped: Collection[datetime], *, now: datetime
) -> InvalidArgumentError:
    future = sorted(at for at in skipped if at > now)
    named = ", ".join(map(str, future[:_MAX_NAMED]))
    rule = f"the next skipped ones are {named}" if named else "no fire time in the future is"
    rule = f"is not skipped by a call of skip(): {rule}"
    return invalid("fire_at", fire_at, rule, "not_a_fire_time")
