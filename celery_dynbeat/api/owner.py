"""The schedules of one owner."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks, export
from celery_dynbeat.api.acting import current_actor
from celery_dynbeat.api.backfills import BackfillCalls
from celery_dynbeat.api.edit import audit, edits, owner_zone, used_calendars
from celery_dynbeat.api.edit.conversion import TaskLike, TriggerLike
from celery_dynbeat.api.edit.fields import Changes, Fields, NewFields, require_trigger
from celery_dynbeat.api.edit.fire_times import FireTimeCalls
from celery_dynbeat.api.edit.owner_zone import OwnerClock
from celery_dynbeat.api.edit.previews import PreviewCalls
from celery_dynbeat.api.edit.quiet_hours import QuietHoursCalls
from celery_dynbeat.api.edit.timezones import TimezoneCalls
from celery_dynbeat.api.results import RunInfo, ScheduleInfo
from celery_dynbeat.api.shared import SharedCalls
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    ScheduleExistsError,
    ScheduleHeldError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import holds, schedules
from celery_dynbeat.triggers import Trigger

P = ParamSpec("P")
T = TypeVar("T")


def rejecting_rename(update: Callable[P, T]) -> Callable[P, T]:
    """Raise InvalidScheduleError for ``update("a", name="b")``, where Python raises TypeError."""

    @wraps(update)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > 1 and "name" in kwargs:
            msg = (
                f"name = {shorten(kwargs['name'])}: update() does not rename a schedule; call"
                f" rename({shorten(args[1])}, {shorten(kwargs['name'])})"
            )
            raise InvalidScheduleError(msg, field="name")
        return update(*args, **kwargs)

    return checked


def naming_other_fields(create: Callable[P, T]) -> Callable[P, T]:
    """Raise InvalidScheduleError for ``crontab=`` without ``trigger=``, not Python's TypeError."""

    @wraps(create)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if "trigger" not in kwargs:
            require_trigger(kwargs)
        return create(*args, **kwargs)

    return checked


class OwnerSchedules(
    FireTimeCalls, PreviewCalls, TimezoneCalls, QuietHoursCalls, SharedCalls, BackfillCalls
):
    """The schedules of one owner. No call reads or changes the rows of another owner.

    Calls that are bound to a ``session`` join its transaction and do not commit, and calls that are
    bound to an ``actor`` and a ``reason`` record them in the audit: see ``bound``.

    Each call raises InvalidScheduleError for an invalid argument, whose name is the error's
    ``field``. Each call that plans fire times raises InvalidTriggerError if the stored trigger is
    damaged.
    """

    @naming_other_fields
    def create(
        self,
        name: str,
        *,
        task: TaskLike,
        trigger: TriggerLike,
        **given: Unpack[NewFields],
    ) -> ScheduleInfo:
        """Create a schedule that runs ``task`` at each fire time of ``trigger``.

        - ``name`` has 1 to 255 characters, and is unique for the owner.
        - ``task`` is the name of a task, or a Celery task.
        - ``trigger`` is a trigger, a string (``"0 9 * * mon-fri"``, ``"PT5M"``), a timedelta, an
          aware datetime, or one of Celery's own schedules.
        - With ``enabled=False``, the schedule is paused until ``resume``.

        Raises ScheduleExistsError if the owner has a schedule with this name, and OwnerLimitError
        if the owner would exceed its limit. Raises InvalidScheduleError if a field is invalid or
        the schedule never fires, and InvalidTriggerError for an invalid trigger.

        >>> made = mine.create("report", task="mail.report", trigger="0 18 * * fri")
        >>> made.trigger.describe()
        'At 18:00, on Friday, UTC'
        >>> str(made.next_run_at)
        '2026-01-09 18:00:00+00:00'
        """
        checks.check_name("name", name)
        trigger = edits.as_trigger(self._context, trigger)

        def work(session: Session) -> ScheduleInfo:
            clock = owner_zone.lock_new(
                self._context, session, self.owner, needs_zone=trigger.needs_zone
            )
            return self._insert(session, name, task, trigger, given, clock=clock)

        return self._write(work)

    @rejecting_rename
    def update(
        self,
        name: str,
        *,
        expected_version: int | None = None,
        **changes: Unpack[Changes],
    ) -> ScheduleInfo:
        """Change the given fields. All other fields keep their values.

        - A new trigger, ``start_at``, ``end_at`` or ``max_runs`` sets the next fire time, counted
          from now. Other changes do not move it.
        - ``queue`` and ``priority`` change only their entries of ``options``.
        - An update ends the quarantine of a schedule.
        - If you pass ``expected_version``, the update fails if another caller has changed the
          schedule.

        Raises ScheduleNotFoundError, StaleScheduleError, InvalidScheduleError and
        InvalidTriggerError.

        >>> mine.update("digest", trigger=Every(timedelta(hours=2))).version
        2
        >>> mine.update("digest", expected_version=1, window=5)
        Traceback (most recent call last):
        celery_dynbeat.common.errors.StaleScheduleError: schedule 'digest' of owner 'user:42' ...
        """
        trigger = None
        if "trigger" in changes:
            trigger = changes["trigger"] = edits.as_trigger(self._context, changes["trigger"])

        def work(session: Session) -> ScheduleInfo:
            # The owner before the schedule, in the order of all locks.
            timezone = owner_zone.lock(self._context, session, self.owner, trigger)
            row = self._lock(session, name, expected_version)
            now = self._context.clock.now()
            with audit.recording(self._context, session, row, Action.UPDATE, now=now):
                edits.change(self._context, session, row, changes, now=now, timezone=timezone)
            return ScheduleInfo.of(row)

        return self._write(work)

    @naming_other_fields
    def upsert(
        self,
        name: str,
        *,
        task: TaskLike,
        trigger: TriggerLike,
        **given: Unpack[Fields],
    ) -> ScheduleInfo:
        """Create the schedule, or update the schedule with this name.

        An update keeps the values of fields that you do not pass, and a paused schedule stays
        paused. A different trigger replaces the stored trigger. Raises OwnerLimitError,
        InvalidScheduleError and InvalidTriggerError.

        >>> mine.upsert("digest", task="mail.digest", trigger="30 8 * * *").version
        2
        >>> mine.upsert("report", task="mail.report", trigger="@daily").version
        1
        """
        checks.check_name("name", name)
        _reject_pause(given)
        trigger = edits.as_trigger(self._context, trigger)
        changes: Changes = {**given, "task": task, "trigger": trigger}

        def work(session: Session) -> ScheduleInfo:
            clock = owner_zone.lock_new(
                self._context, session, self.owner, needs_zone=trigger.needs_zone
            )
            row = schedules.lock(session, owner=self.owner, name=name)
            if row is None:
                try:
                    return self._insert(session, name, task, trigger, given, clock=clock)
                except ScheduleExistsError:
                    # Another transaction created it in the meantime: update that row.
                    row = edits.lock(session, owner=self.owner, name=name)
            now = self._context.clock.now()
            with audit.recording(self._context, session, row, Action.UPDATE, now=now):
                edits.change(self._context, session, row, changes, now=now, timezone=clock.timezone)
            return ScheduleInfo.of(row)

        return self._write(work)

    def pause(
        self,
        name: str,
        *,
        until: datetime | timedelta | None = None,
        expected_version: int | None = None,
        reason: str | None = None,
    ) -> ScheduleInfo:
        """Stop the schedule until ``resume``, and revoke its runs that have not started.

        - ``reason`` becomes the schedule's ``paused_reason``. Manual runs are not revoked.
        - Beat resumes the schedule at ``until``, which is an aware datetime, or a timedelta from
          now. Fire times before that instant are recorded as skipped. Edits of the schedule do not
          change the end, but another pause replaces the reason and the end.

        Raises ScheduleNotFoundError, StaleScheduleError and InvalidScheduleError.

        >>> mine.pause("digest", reason="on holiday").paused_reason
        'on holiday'
        >>> str(mine.pause("digest", until=timedelta(days=2)).paused_until)
        '2026-01-07 09:00:00+00:00'
        """

        def work(session: Session) -> ScheduleInfo:
            row = self._lock(session, name, expected_version)
            now, why = self._context.clock.now(), current_actor().reason
            end = edits.pause_end(until, now=now)
            with audit.recording(self._context, session, row, Action.PAUSE, now=now):
                edits.pause(self._context, session, row, reason=why, now=now, until=end)
            return ScheduleInfo.of(row)

        return self._write(work, reason=reason)

    def resume(
        self,
        name: str,
        *,
        expected_version: int | None = None,
    ) -> ScheduleInfo:
        """Start the schedule again, at its next fire time after the current time.

        Fire times missed during the pause are recorded as skipped and never sent. A resume also
        ends a quarantine, if the trigger can be read. Raises ScheduleNotFoundError,
        StaleScheduleError and InvalidTriggerError.

        >>> _ = mine.pause("digest")
        >>> str(mine.resume("digest").next_run_at)
        '2026-01-06 09:00:00+00:00'
        """

        def work(session: Session) -> ScheduleInfo:
            row = self._lock(session, name, expected_version)
            now = self._context.clock.now()
            with audit.recording(self._context, session, row, Action.RESUME, now=now):
                edits.resume(self._context, session, row, now=now)
            return ScheduleInfo.of(row)

        return self._write(work)

    def delete(
        self,
        name: str,
        *,
        expected_version: int | None = None,
    ) -> None:
        """Delete the schedule, and revoke its runs that have not started.

        The history is kept until it is pruned. The rows that ``skip`` wrote for future fire times
        are deleted. Raises ScheduleNotFoundError and StaleScheduleError.

        >>> mine.delete("digest")
        >>> mine.count().count
        0
        """

        def work(session: Session) -> None:
            row = self._lock(session, name, expected_version)
            edits.delete(self._context, session, row, now=self._context.clock.now())

        self._write(work)

    def rename(
        self,
        name: str,
        new_name: str,
        *,
        expected_version: int | None = None,
    ) -> ScheduleInfo:
        """Give the schedule another name. It keeps its id, its history and its next fire time.

        - Its runs keep the name under which they were recorded. ``runs(new_name)`` returns them.
        - A trigger with an ``H`` keeps its fire times, and a ``window`` its offset.
        - If both names are equal, nothing changes.

        Raises ScheduleNotFoundError and StaleScheduleError. Raises ScheduleExistsError if the owner
        has a schedule with the new name, and InvalidScheduleError for a schedule that follows
        ``beat_schedule``.

        >>> mine.rename("digest", "morning").name
        'morning'
        >>> [change.before["name"] for change in mine.changes("morning")]
        ['digest']
        """
        checks.check_name("new_name", new_name)

        def work(session: Session) -> ScheduleInfo:
            # A change of the zone or of quiet hours reads the schedules in the order of names. It
            # could miss a schedule that gets an earlier name meanwhile.
            owner_zone.lock_rows(self._context, session, [self.owner])
            row = self._lock(session, name, expected_version)
            now = self._context.clock.now()
            with audit.recording(self._context, session, row, Action.RENAME, now=now):
                edits.rename(self._context, session, row, name=new_name, now=now)
            return ScheduleInfo.of(row)

        return self._write(work)

    def get(self, name: str) -> ScheduleInfo:
        """Return the schedule. Raises ScheduleNotFoundError.

        >>> str(mine.get("digest").next_run_at)
        '2026-01-06 09:00:00+00:00'
        """

        def work(session: Session) -> ScheduleInfo:
            row = self._find(session, name)
            held = holds.held_of(session, [self.owner], now=self._context.clock.now())
            return ScheduleInfo.of(row, is_held=bool(held))

        return self._read(work)

    def run_now(
        self,
        name: str,
    ) -> RunInfo:
        """Run the schedule once now, even if it is paused. Its fire times do not change.

        The transaction records a run with the origin ``"manual"``, and a beat sends it within
        milliseconds after the commit. Raises ScheduleNotFoundError. Raises ScheduleHeldError while
        the owner or everything is held, and InvalidScheduleError if
        dynbeat_allowed_tasks excludes the task.

        >>> run = mine.run_now("digest")
        >>> run.status, run.origin
        ('pending', 'manual')
        """

        def work(session: Session) -> RunInfo:
            row = edits.lock(session, owner=self.owner, name=name)
            now = self._context.clock.now()
            for hold in holds.in_force(session, owner=self.owner, now=now):
                raise ScheduleHeldError(
                    owner=hold.owner,
                    actor=hold.actor,
                    reason=hold.reason,
                    until_at=hold.until_at,
                )
            run = RunInfo.of(edits.add_manual_run(self._context, session, row, now=now))
            new = {"run_id": run.id}
            edit = audit.Edit(owner=self.owner, name=name, action=Action.RUN_NOW, new=new)
            audit.record(self._context, session, [edit], now=now)
            return run

        return self._write(work)

    def export(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over all data of the owner, with one dict per line of JSON.

        The ``record`` key names the kind of a dict. The first dict is ``"owner"``, with the time of
        the export. The others follow in this order: ``"schedule"``, ``"run"``, ``"change"``,
        ``"alert"``, ``"hold"``. Their fields are the same as in ``to_dict``, and
        include the arguments of tasks.

        At most 500 rows are in memory at a time. Each batch is read separately, so if you do not
        bind a session, a later batch can contain an edit that an earlier batch does not. For a
        snapshot, bind a session that uses REPEATABLE READ.
        """
        return export.lines(self._context, self, owner=self.owner, session=self._session)

    def _insert(
        self,
        session: Session,
        name: str,
        task: TaskLike,
        trigger: Trigger,
        given: Mapping[str, Any],
        *,
        clock: OwnerClock,
    ) -> ScheduleInfo:
        calendars = used_calendars.read(session, trigger)
        now = self._context.clock.now()
        row = edits.new_row(
            self._context,
            owner=self.owner,
            name=name,
            task=task,
            trigger=trigger,
            given=given,
            clock=clock,
            calendars=calendars,
            now=now,
        )
        used = {**calendars, **clock.calendars}
        edits.insert(self._context, session, row, calendars=used, now=now)
        return ScheduleInfo.of(row)

    def _find(self, session: Session, name: str) -> Schedule:
        row = schedules.get(session, owner=self.owner, name=checks.check_name("name", name))
        if row is None:
            raise ScheduleNotFoundError(owner=self.owner, name=name)
        return row


def _reject_pause(given: Mapping[str, object]) -> None:
    """Raise InvalidScheduleError for the fields that upsert() does not accept."""
    for field in ("enabled", "paused_reason", "paused_until"):
        if field in given:
            rule = "upsert() does not change a pause; call create(), or pause() and resume()"
            raise checks.invalid(field, given[field], rule)
