"""The schedules of one owner."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks, edits, limits, queries
from celery_dynbeat.client.backfills import BackfillCalls
from celery_dynbeat.client.conversion import TaskLike, TriggerLike
from celery_dynbeat.client.fields import Changes, Fields, NewFields
from celery_dynbeat.client.views import Page, RunInfo, ScheduleInfo
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    ScheduleExistsError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import schedules

P = ParamSpec("P")
T = TypeVar("T")


def _rejecting_rename(update: Callable[P, T]) -> Callable[P, T]:
    """Raise InvalidScheduleError for ``update("a", name="b")``, where Python raises TypeError."""

    @wraps(update)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > 1 and "name" in kwargs:
            msg = (
                f"name = {shorten(kwargs['name'])}: update() does not rename a schedule; create()"
                f" one with the new name, and delete() {shorten(args[1])}"
            )
            raise InvalidScheduleError(msg, field="name")
        return update(*args, **kwargs)

    return checked


class OwnerSchedules(BackfillCalls):
    """The schedules of one owner. No call reads or changes the rows of another owner.

    Every call accepts ``session=``. It then joins the transaction of that session and does not
    commit. A rollback by the caller undoes it. Beat is notified when the caller commits.

    Each call raises InvalidScheduleError for an invalid argument; its ``field`` is the name of the
    argument. Each call that plans fire times raises InvalidTriggerError if the stored trigger is
    damaged.
    """

    def __init__(self, context: Context, owner: str) -> None:
        self._context = context
        self.owner = checks.check_name("owner", owner, empty=True)

    def create(
        self,
        name: str,
        *,
        task: TaskLike,
        trigger: TriggerLike,
        session: Session | None = None,
        **given: Unpack[NewFields],
    ) -> ScheduleInfo:
        """Create a schedule that runs ``task`` at each fire time of ``trigger``.

        - ``name``: 1 to 255 characters, unique for the owner.
        - ``task``: the name of a task, or a Celery task.
        - ``trigger``: a trigger, a string (``"0 9 * * mon-fri"``, ``"PT5M"``), a timedelta, an
          aware datetime, or one of Celery's own schedules.
        - ``enabled=False``: the schedule is paused until ``resume``.

        Raises ScheduleExistsError if the owner has a schedule of this name, OwnerLimitError if the
        owner would exceed dynbeat_max_schedules_per_owner, InvalidScheduleError if a field is
        invalid or the schedule never fires, and InvalidTriggerError for an invalid trigger.
        """
        checks.check_name("name", name)

        def work(session: Session) -> ScheduleInfo:
            return self._insert(session, name, task, trigger, given)

        return self._context.write(session, work)

    @_rejecting_rename
    def update(
        self,
        name: str,
        *,
        expected_version: int | None = None,
        session: Session | None = None,
        **changes: Unpack[Changes],
    ) -> ScheduleInfo:
        """Change the given fields; all others keep their values.

        - A new trigger, ``start_at``, ``end_at`` or ``max_runs`` sets the next fire time from now.
          Other changes do not move it.
        - ``queue`` and ``priority`` change only their entries of ``options``.
        - An update ends the quarantine of a schedule.
        - With ``expected_version``, the update fails if another caller changed the schedule.

        Raises ScheduleNotFoundError, StaleScheduleError, InvalidScheduleError and
        InvalidTriggerError.
        """

        def work(session: Session, row: Schedule, now: datetime) -> None:
            edits.change(self._context, session, row, changes, now=now)

        return self._edit(name, session, work, expected_version=expected_version)

    def upsert(
        self,
        name: str,
        *,
        task: TaskLike,
        trigger: TriggerLike,
        session: Session | None = None,
        **given: Unpack[Fields],
    ) -> ScheduleInfo:
        """Create the schedule, or update the one of this name.

        On an update, fields that are not given keep their values, and a paused schedule stays
        paused. Another trigger replaces the stored one. Raises OwnerLimitError,
        InvalidScheduleError and InvalidTriggerError.
        """
        checks.check_name("name", name)
        _reject_pause(given)
        changes: Changes = {**given, "task": task, "trigger": trigger}

        def work(session: Session) -> ScheduleInfo:
            limits.lock_owner(self._context, session, self.owner)
            row = schedules.lock(session, owner=self.owner, name=name)
            if row is None:
                try:
                    return self._insert(session, name, task, trigger, given)
                except ScheduleExistsError:
                    # Another transaction created it in the meantime: update that row.
                    row = edits.lock(session, owner=self.owner, name=name)
            edits.change(self._context, session, row, changes, now=self._context.clock.now())
            return ScheduleInfo.of(row)

        return self._context.write(session, work)

    def pause(
        self,
        name: str,
        *,
        reason: str = "",
        expected_version: int | None = None,
        session: Session | None = None,
    ) -> ScheduleInfo:
        """Stop the schedule until ``resume`` and revoke its runs that have not started.

        Manual runs are not revoked. Raises ScheduleNotFoundError and StaleScheduleError.
        """
        checks.check_text("reason", reason)

        def work(session: Session, row: Schedule, now: datetime) -> None:
            edits.pause(session, row, reason=reason, now=now)

        return self._edit(name, session, work, expected_version=expected_version)

    def resume(
        self,
        name: str,
        *,
        expected_version: int | None = None,
        session: Session | None = None,
    ) -> ScheduleInfo:
        """Start the schedule again, with its next fire time after now.

        Fire times missed during the pause are recorded as skipped and never sent. A resume ends a
        quarantine if the trigger can be read. Raises ScheduleNotFoundError, StaleScheduleError and
        InvalidTriggerError.
        """

        def work(session: Session, row: Schedule, now: datetime) -> None:
            edits.resume(self._context, session, row, now=now)

        return self._edit(name, session, work, expected_version=expected_version)

    def delete(
        self,
        name: str,
        *,
        expected_version: int | None = None,
        session: Session | None = None,
    ) -> None:
        """Delete the schedule and revoke its runs that have not started.

        The history stays until it is pruned. Raises ScheduleNotFoundError and StaleScheduleError.
        """

        def work(session: Session) -> None:
            row = edits.lock(
                session,
                owner=self.owner,
                name=name,
                expected_version=expected_version,
            )
            edits.delete(session, row, now=self._context.clock.now())

        self._context.write(session, work)

    def get(self, name: str, *, session: Session | None = None) -> ScheduleInfo:
        """Return the schedule. Raises ScheduleNotFoundError."""
        return self._context.read(
            session, lambda session: ScheduleInfo.of(self._find(session, name))
        )

    def list(
        self,
        *,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: str | None = None,
        session: Session | None = None,
    ) -> Page:
        """Return one page of up to ``limit`` schedules, ordered by name.

        ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000. The filters
        are the exact name of a task, ``enabled`` and one tag. Raises InvalidScheduleError.
        """
        matching = schedules.ScheduleFilter(owner=self.owner, task=task, enabled=enabled, tag=tag)
        return queries.page(self._context, session, matching=matching, limit=limit, after=after)

    def run_now(self, name: str, *, session: Session | None = None) -> RunInfo:
        """Run the schedule once now, even if it is paused; its fire times do not change.

        The transaction records a run with origin ``"manual"``. A beat sends it within milliseconds
        after the commit. Raises ScheduleNotFoundError, and InvalidScheduleError if
        dynbeat_allowed_tasks excludes the task.
        """

        def work(session: Session) -> RunInfo:
            row = edits.lock(session, owner=self.owner, name=name)
            now = self._context.clock.now()
            return RunInfo.of(edits.add_manual_run(self._context, session, row, now=now))

        return self._context.write(session, work)

    def upcoming(
        self,
        name: str,
        *,
        count: int = 5,
        session: Session | None = None,
    ) -> Sequence[datetime]:
        """Return the next ``count`` fire times, aware and in UTC.

        ``count`` is at most 1,000. The list is empty if the schedule is paused or finished. Raises
        ScheduleNotFoundError and InvalidTriggerError.
        """
        row = self._context.read(session, lambda session: self._find(session, name))
        return queries.upcoming(self._context, row, count=count)

    def runs(
        self,
        name: str | None = None,
        *,
        status: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        limit: int = 20,
        session: Session | None = None,
    ) -> Sequence[RunInfo]:
        """Return up to ``limit`` runs, newest fire time first.

        Without ``name``, the runs of all schedules of the owner are returned. The history of a
        deleted schedule stays readable under its name. ``since`` is an aware datetime: only runs
        with a fire time from then on are returned. ``limit`` is at most 1,000. Raises
        InvalidScheduleError.
        """
        return queries.history(
            self._context,
            session,
            owner=self.owner,
            name=name,
            status=status,
            origin=origin,
            since=since,
            limit=limit,
        )

    def _insert(
        self,
        session: Session,
        name: str,
        task: TaskLike,
        trigger: TriggerLike,
        given: Mapping[str, Any],
    ) -> ScheduleInfo:
        now = self._context.clock.now()
        row = edits.new_row(
            self._context,
            owner=self.owner,
            name=name,
            task=task,
            trigger=trigger,
            given=given,
            now=now,
        )
        limits.check_quota(self._context, session, {self.owner: 1})
        row.id = schedules.add(session, row.insert_values())
        self._context.notify_beat(session, next_run_at=row.next_run_at, now=now)
        return ScheduleInfo.of(row)

    def _edit(
        self,
        name: str,
        session: Session | None,
        work: Callable[[Session, Schedule, datetime], None],
        *,
        expected_version: int | None,
    ) -> ScheduleInfo:
        def locked(session: Session) -> ScheduleInfo:
            row = edits.lock(
                session,
                owner=self.owner,
                name=name,
                expected_version=expected_version,
            )
            work(session, row, self._context.clock.now())
            return ScheduleInfo.of(row)

        return self._context.write(session, locked)

    def _find(self, session: Session, name: str) -> Schedule:
        row = schedules.get(session, owner=self.owner, name=checks.check_name("name", name))
        if row is None:
            raise ScheduleNotFoundError(owner=self.owner, name=name)
        return row


def _reject_pause(given: Mapping[str, object]) -> None:
    """Raise InvalidScheduleError for the fields that upsert() does not accept."""
    for field in ("enabled", "paused_reason"):
        if field in given:
            rule = "upsert() does not change a pause; call create(), or pause() and resume()"
            raise checks.invalid(field, given[field], rule)
