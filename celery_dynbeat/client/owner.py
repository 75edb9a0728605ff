"""The schedules of one owner: what an application calls on behalf of one of its users."""

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
    """Say what to do in place of ``update("a", name="b")``, which Python itself refuses."""

    @wraps(update)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > 1 and "name" in kwargs:
            msg = (
                f"name = {shorten(kwargs['name'])}: update() does not rename a schedule; create()"
                f" one of the new name, and delete() {shorten(args[1])}"
            )
            raise InvalidScheduleError(msg, field="name")
        return update(*args, **kwargs)

    return checked


class OwnerSchedules(BackfillCalls):
    """Sees and touches the rows of one owner and no others.

    Every call takes ``session=``: it then joins the caller's transaction, commits nothing itself,
    and is undone when that one rolls back; the notice to beat goes out with its commit.
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
        """Create a schedule that calls ``task`` whenever ``trigger`` fires.

        ``task`` is a name or a Celery task. ``trigger`` may also be a text (``"0 9 * * mon-fri"``,
        ``"PT5M"``), a timedelta, an aware datetime, or a schedule of Celery's own. With
        ``enabled=False`` it is paused until ``resume``.

        Raises ScheduleExistsError when the owner has one of that name, InvalidScheduleError when a
        field breaks a rule or the trigger would never fire, and InvalidTriggerError for a text
        that is no trigger.
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
        """Change what is given and leave the rest.

        A new trigger, span or number of runs plans from now; any other change leaves the next run
        alone. ``queue`` and ``priority`` change their entries of ``options`` only. An update mends
        a schedule that was set aside. A name stays. Raises ScheduleNotFoundError,
        StaleScheduleError, InvalidScheduleError, InvalidTriggerError.
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
        """Create the schedule, or give the one of that name this task, trigger and fields.

        Fields that are not given keep their values, and a schedule that is paused stays paused.
        Called again with another trigger it moves the schedule: only the latest applies. Raises
        InvalidScheduleError, InvalidTriggerError.
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
                    # Somebody made it since: then it is theirs that moves.
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
        """Stop firing until ``resume``; revoke the runs that have not started, save manual ones.

        Raises ScheduleNotFoundError, StaleScheduleError.
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
        """Fire again, planned from now: what passed during the pause is not made up for.

        Raises ScheduleNotFoundError, StaleScheduleError.
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
        """Delete the schedule and revoke its runs that have not started; its history stays.

        Raises ScheduleNotFoundError, StaleScheduleError.
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
        """Return up to ``limit`` schedules by name; ``after`` is the cursor of the page before."""
        matching = schedules.ScheduleFilter(owner=self.owner, task=task, enabled=enabled, tag=tag)
        return queries.page(self._context, session, matching=matching, limit=limit, after=after)

    def run_now(self, name: str, *, session: Session | None = None) -> RunInfo:
        """Run once, now, even when paused; the schedule's own times stay as they are.

        The run is recorded in the transaction and sent by the next beat, within milliseconds of the
        commit. Raises ScheduleNotFoundError.
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
        """Return the next ``count`` fire times, aware, in UTC; none when it is paused or finished.

        Raises ScheduleNotFoundError.
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
        """Return up to ``limit`` runs, the newest fire time first; of all schedules without a name.

        A schedule that was deleted still has its history. ``since`` counts from the fire time.
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
        row.id = schedules.add(session, edits.insert_values(row))
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
    """Refuse in upsert what would mean nothing for a schedule that exists."""
    for field in ("enabled", "paused_reason"):
        if field in given:
            rule = "upsert() leaves a pause as it is; call create(), or pause() and resume()"
            raise checks.invalid(field, given[field], rule)
