"""The calls of AsyncDynbeat. `make docs` generates them from the synchronous calls."""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Unpack, overload
from zoneinfo import ZoneInfo

from celery_dynbeat.client.conversion import TaskLike, TriggerLike
from celery_dynbeat.client.erasure import Progress
from celery_dynbeat.client.fields import Changes, Fields, NewFields
from celery_dynbeat.client.history import StatusFilter
from celery_dynbeat.client.new_rows import NewSchedule
from celery_dynbeat.client.owner import OwnerSchedules, naming_other_fields, rejecting_rename
from celery_dynbeat.client.schedules import Schedules
from celery_dynbeat.client.views import (
    AlertInfo,
    AlertTargetInfo,
    BoundedCount,
    ChangePage,
    FireTime,
    HoldInfo,
    Page,
    RequestInfo,
    RequestPage,
    RunInfo,
    RunPage,
    ScheduleInfo,
)
from celery_dynbeat.client.views.preview import Preview
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.runtime.async_context import AnyAsyncSession, AsyncContext


class AsyncOwnerSchedules:
    """The calls of ``OwnerSchedules``, awaited. ``session`` is an ``AsyncSession``."""

    def __init__(self, context: AsyncContext, calls: OwnerSchedules) -> None:
        self._context, self._calls = context, calls
        self.owner = calls.owner

    async def acknowledge_alert(
        self, alert_id: int, *, session: AnyAsyncSession | None = None
    ) -> AlertInfo:
        """Note that the actor takes care of an open alert; return it.

        No message reports the alert again until it recovers. The recovery is reported. An opening
        that no message has reported yet is not, and a snooze ends. Raises AlertNotFoundError.
        """
        return await self._context.call(
            session, lambda session: self._calls.acknowledge_alert(alert_id, session=session)
        )

    async def alerts(
        self,
        *,
        only_open: bool = True,
        limit: int = 100,
        after: int | None = None,
        session: AnyAsyncSession | None = None,
    ) -> Sequence[AlertInfo]:
        """Return up to ``limit`` alerts of the owner, in the order of their ids.

        With ``only_open=False`` also those from which the schedule has recovered. ``after`` is the
        id of the last alert of the previous call. ``limit`` is at most 1,000. Raises
        InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.alerts(
                only_open=only_open, limit=limit, after=after, session=session
            ),
        )

    async def backfill(
        self,
        name: str,
        *,
        since: datetime,
        until: datetime,
        batch_size: int = 100,
        actor: str | None = None,
        reason: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RequestInfo:
        """Run the past fire times of a schedule that have no run: since <= fire time < until.

        ``since`` and ``until`` are aware datetimes in the past. Beat creates the runs, the oldest
        first, while no schedule is due. At most ``batch_size`` of them are unfinished at any time,
        or one if runs of the schedule must not overlap. They do not count against ``max_runs``. The
        backfill of a paused schedule waits for the resume. ``actor`` and ``reason`` are for the
        audit; ``acting()`` presets them.

        Raises ScheduleNotFoundError. Raises InvalidScheduleError if the span contains no fire time
        or more than 10,000, if finding them takes too many steps, or if the schedule has a running
        backfill.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.backfill(
                name,
                since=since,
                until=until,
                batch_size=batch_size,
                actor=actor,
                reason=reason,
                session=session,
            ),
        )

    async def cancel_request(
        self,
        request_id: int,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RequestInfo:
        """Stop a request and revoke its runs that have not started.

        A request that has ended keeps its ``finished_at``. It becomes ``"cancelled"`` if a run was
        revoked. ``actor`` and ``reason`` are for the audit; ``acting()`` presets them. Raises
        RequestNotFoundError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.cancel_request(
                request_id, actor=actor, reason=reason, session=session
            ),
        )

    async def cancel_run(self, run_id: str, *, session: AnyAsyncSession | None = None) -> RunInfo:
        """Cancel a run that has not started or waits for a retry, and return it: ``revoked``.

        The guard in the worker drops its message. The fire time counts as run.

        Raises RunNotFoundError. Raises InvalidScheduleError for a run that is running or has ended:
        Celery's ``revoke(run_id, terminate=True)`` ends a running one.
        """
        return await self._context.call(
            session, lambda session: self._calls.cancel_run(run_id, session=session)
        )

    async def cancel_runs(
        self,
        *,
        status: StatusFilter | None = None,
        name: str | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 10000,
        session: AnyAsyncSession | None = None,
    ) -> int:
        """Cancel the runs that match and have not started or wait for a retry; return their number.

        - ``status``: one or several of ``pending``, ``sent`` and ``retrying``. None: all three.
        - ``name``, ``task``, ``origin``, ``since`` and ``until`` as in ``runs()``. Without any of
          them, all such runs of the owner are cancelled.
        - ``limit``: at most this number of runs, up to 100,000. If the call returns it, more runs
          may match: repeat the call.

        Without ``session``, each batch of 500 runs commits. If the call fails, repeat it. Runs that
        are recorded during the call, or that a worker starts meanwhile, may not be cancelled.
        Raises InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.cancel_runs(
                status=status,
                name=name,
                task=task,
                origin=origin,
                since=since,
                until=until,
                limit=limit,
                session=session,
            ),
        )

    async def changes(
        self,
        name: str | None = None,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        limit: int = 20,
        after: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> ChangePage:
        """Return one page of up to ``limit`` edits, newest first.

        Without ``name``, the edits of all schedules of the owner and of the owner are returned.
        ``name=""`` returns only those of the owner, such as a hold. The edits of a deleted schedule
        stay readable under its name until dynbeat_audit_retention ends.

        The other filters are the exact actor, an action such as ``"pause"``, and ``since``, an
        aware datetime. ``after`` is the ``cursor`` of the previous page. ``limit`` is at most
        1,000. Raises InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.changes(
                name,
                actor=actor,
                action=action,
                since=since,
                limit=limit,
                after=after,
                session=session,
            ),
        )

    async def count(
        self,
        *,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        state: str | None = None,
        name_prefix: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> BoundedCount:
        """Return the number of schedules that match, up to 10,000: ``"10,000+"`` as text.

        The filters are those of ``list()``. At most 10,001 schedules are read, so with a filter on
        task, enabled or tag the count of many schedules can be a lower bound. Raises
        InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.count(
                task=task,
                enabled=enabled,
                tag=tag,
                state=state,
                name_prefix=name_prefix,
                session=session,
            ),
        )

    async def count_runs(
        self,
        name: str | None = None,
        *,
        status: StatusFilter | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        session: AnyAsyncSession | None = None,
    ) -> BoundedCount:
        """Return the number of runs that match, up to 10,000: ``"10,000+"`` as text.

        The filters are those of ``runs()``. At most 10,001 runs are read, the newest first. So with
        a filter on status, task or origin the count in a long history can be a lower bound. Raises
        InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.count_runs(
                name,
                status=status,
                task=task,
                origin=origin,
                since=since,
                until=until,
                session=session,
            ),
        )

    @naming_other_fields
    async def create(
        self,
        name: str,
        *,
        task: TaskLike,
        trigger: TriggerLike,
        session: AnyAsyncSession | None = None,
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
        return await self._context.call(
            session,
            lambda session: self._calls.create(
                name, task=task, trigger=trigger, session=session, **given
            ),
        )

    async def delete(
        self,
        name: str,
        *,
        expected_version: int | None = None,
        session: AnyAsyncSession | None = None,
    ) -> None:
        """Delete the schedule and revoke its runs that have not started.

        The history stays until it is pruned; rows of ``skip`` for the future are deleted. Raises
        ScheduleNotFoundError and StaleScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.delete(
                name, expected_version=expected_version, session=session
            ),
        )

    def export(self, *, session: AnyAsyncSession | None = None) -> AsyncIterator[dict[str, Any]]:
        """Return an iterator over all data of the owner: one dict for each line of JSON.

        ``record`` names what a dict is. The first is ``"owner"``, with the time of the export.
        The others follow in this order: ``"schedule"``, ``"run"``, ``"change"``, ``"request"``,
        ``"alert"``, ``"hold"``. Their fields are those of ``to_dict``. They include the arguments
        of tasks.

        At most 500 rows are in memory. Each batch is one read: without ``session``, an edit during
        the export can be in a later part and not in an earlier one. For a snapshot, pass a session
        at REPEATABLE READ.
        """
        return self._context.iterate(session, lambda session: self._calls.export(session=session))

    async def get(self, name: str, *, session: AnyAsyncSession | None = None) -> ScheduleInfo:
        """Return the schedule. Raises ScheduleNotFoundError."""
        return await self._context.call(
            session, lambda session: self._calls.get(name, session=session)
        )

    async def get_request(
        self, request_id: int, *, session: AnyAsyncSession | None = None
    ) -> RequestInfo:
        """Return a request with its progress. Raises RequestNotFoundError."""
        return await self._context.call(
            session, lambda session: self._calls.get_request(request_id, session=session)
        )

    async def hold(
        self, *, reason: str, until: datetime | None = None, session: AnyAsyncSession | None = None
    ) -> HoldInfo:
        """Stop all schedules of the owner until ``release``, or until ``until``.

        - Beat sends no fire time of the owner. Backfills and ``rerun_many`` wait; ``run_now`` and
          ``rerun`` start. So do runs that are recorded already, and their retries.
        - Afterwards, ``catch_up`` decides about the missed fire times, as after downtime.
        - A schedule's own pause does not change.
        - ``until`` is an aware datetime in the future. ``reason`` has at most 1,024 characters.
        - Each actor (``Dynbeat.acting``) has at most one hold of the owner. A second call of the
          same actor changes its reason and end. The owner is held while any hold is in force.

        The cost does not depend on the number of schedules. A batch that beat has claimed before
        the commit is still sent. Raises InvalidScheduleError.
        """
        return await self._context.call(
            session, lambda session: self._calls.hold(reason=reason, until=until, session=session)
        )

    async def holds(self, *, session: AnyAsyncSession | None = None) -> Sequence[HoldInfo]:
        """Return the holds in force of this owner and of everything, the oldest first.

        At most 1,000 of each are returned.
        """
        return await self._context.call(session, lambda session: self._calls.holds(session=session))

    async def list(
        self,
        *,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        state: str | None = None,
        name_prefix: str | None = None,
        order: str | None = None,
        limit: int = 100,
        after: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> Page:
        """Return one page of up to ``limit`` schedules, ordered by name.

        - ``state``: ``"active"``, ``"paused"``, ``"finished"``, ``"quarantined"`` (or
          ``"broken"``), ``"held"``, ``"overdue"`` or ``"failing"``.
        - ``name_prefix``: the text with which the name begins, case-sensitive.
        - ``task``: the exact name of a task. ``tag``: one tag.
        - ``order``: ``"name"``, or ``"next_run_at"``, which leaves out schedules without a
          next_run_at. None: by name; overdue schedules by next_run_at.
        - ``after``: the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        A page reads at most 10,000 schedules. If few of them match, it has fewer than ``limit``
        schedules, or none, and a cursor: the list ends where the cursor is None. Raises
        InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.list(
                task=task,
                enabled=enabled,
                tag=tag,
                state=state,
                name_prefix=name_prefix,
                order=order,
                limit=limit,
                after=after,
                session=session,
            ),
        )

    async def pause(
        self,
        name: str,
        *,
        reason: str = "",
        expected_version: int | None = None,
        session: AnyAsyncSession | None = None,
    ) -> ScheduleInfo:
        """Stop the schedule until ``resume`` and revoke its runs that have not started.

        Manual runs are not revoked. Raises ScheduleNotFoundError and StaleScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.pause(
                name, reason=reason, expected_version=expected_version, session=session
            ),
        )

    async def preview(
        self,
        name: str,
        trigger: TriggerLike,
        count: int = 5,
        *,
        jitter: timedelta | float | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        max_runs: int | None = None,
        session: AnyAsyncSession | None = None,
    ) -> Preview:
        """Return what ``create`` with these arguments would fire; nothing is written.

        ``count`` is at most 100. Fewer fire times are returned if the schedule finishes, or if the
        trigger takes too many steps to find more. It raises the errors that ``create`` would raise
        for these arguments: InvalidTriggerError and InvalidScheduleError. The number of schedules,
        and whether one of this name exists, are not checked.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.preview(
                name,
                trigger,
                count,
                jitter=jitter,
                start_at=start_at,
                end_at=end_at,
                max_runs=max_runs,
                session=session,
            ),
        )

    async def release(
        self, *, all_actors: bool = False, session: AnyAsyncSession | None = None
    ) -> Sequence[HoldInfo]:
        """End the owner's hold by the current actor; return the ended holds.

        With ``all_actors`` the holds of all actors end. A hold of everything does not end. Nothing
        is returned if the owner is not held. Raises HeldByOthersError if only other actors hold the
        owner.
        """
        return await self._context.call(
            session, lambda session: self._calls.release(all_actors=all_actors, session=session)
        )

    async def requests(
        self,
        name: str | None = None,
        *,
        kind: str | None = None,
        limit: int = 20,
        after: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RequestPage:
        """Return one page of up to ``limit`` requests, the newest first.

        ``name`` selects the requests for one schedule, ``kind`` the ``"backfill"`` or ``"rerun"``
        requests. ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.requests(
                name, kind=kind, limit=limit, after=after, session=session
            ),
        )

    async def rerun(
        self,
        run_id: str,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RunInfo:
        """Run an ended run again, at once, also if its schedule is paused or held.

        The new run has the origin ``"rerun"``, and ``rerun_of`` is the id of the original run. The
        task receives the original fire time. Task, arguments, options and policies are those of the
        schedule now. ``expires_after`` counts from this call. A beat sends the run within
        milliseconds after the commit. ``actor`` and ``reason`` are for the audit; ``acting()``
        presets them.

        Raises RunNotFoundError. Raises InvalidScheduleError

        - for a run that is unfinished or ``skipped``, or whose schedule was deleted;
        - if the original run has an unfinished rerun;
        - if the overlap policy is not ``"allow"`` and the schedule has an unfinished run;
        - if dynbeat_allowed_tasks excludes the task;
        - in a MySQL transaction whose snapshot is older than a rerun of the same run.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.rerun(run_id, actor=actor, reason=reason, session=session),
        )

    async def rerun_many(
        self,
        *,
        since: datetime,
        until: datetime | None = None,
        status: StatusFilter = (Status.FAILED, Status.LOST),
        name: str | None = None,
        task: str | None = None,
        batch_size: int = 100,
        actor: str | None = None,
        reason: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RequestInfo:
        """Run ended runs again, in the background: those with since <= fire time < until.

        - ``since`` and ``until`` are aware datetimes. ``until`` None means now.
        - ``status``: one or several of ``failed``, ``lost``, ``revoked``, ``expired`` and
          ``succeeded``.
        - ``name``: only runs of the schedules of this name. ``task``: only runs that had this task.
        - At most ``batch_size`` (1 to 1,000) of the new runs are unfinished at any time.

        Beat makes the new runs while no schedule is due. If runs of a schedule must not overlap, it
        makes one at a time, and only while the schedule has no unfinished run. Runs that have a
        rerun do not match, but their newest rerun can. So a second call repeats nothing. Runs whose
        schedule is deleted, paused or quarantined or must not run its task are excluded.

        ``actor`` and ``reason`` are for the audit; ``acting()`` presets them.

        Raises ScheduleNotFoundError if the owner has no schedule ``name``. Raises
        InvalidScheduleError for an invalid argument, and if more than 100,000 runs match.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.rerun_many(
                since=since,
                until=until,
                status=status,
                name=name,
                task=task,
                batch_size=batch_size,
                actor=actor,
                reason=reason,
                session=session,
            ),
        )

    async def resume(
        self,
        name: str,
        *,
        expected_version: int | None = None,
        session: AnyAsyncSession | None = None,
    ) -> ScheduleInfo:
        """Start the schedule again, with its next fire time after now.

        Fire times missed during the pause are recorded as skipped and never sent. A resume ends a
        quarantine if the trigger can be read. Raises ScheduleNotFoundError, StaleScheduleError and
        InvalidTriggerError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.resume(
                name, expected_version=expected_version, session=session
            ),
        )

    async def run(self, run_id: str, *, session: AnyAsyncSession | None = None) -> RunInfo:
        """Return the run with this id, which is also its Celery task id.

        Raises RunNotFoundError, also for the run of another owner.
        """
        return await self._context.call(
            session, lambda session: self._calls.run(run_id, session=session)
        )

    async def run_now(self, name: str, *, session: AnyAsyncSession | None = None) -> RunInfo:
        """Run the schedule once now, even if it is paused; its fire times do not change.

        The transaction records a run with origin ``"manual"``. A beat sends it within milliseconds
        after the commit. Raises ScheduleNotFoundError, and InvalidScheduleError if
        dynbeat_allowed_tasks excludes the task.
        """
        return await self._context.call(
            session, lambda session: self._calls.run_now(name, session=session)
        )

    async def runs(
        self,
        name: str | None = None,
        *,
        status: StatusFilter | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 20,
        after: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RunPage:
        """Return one page of up to ``limit`` runs, newest fire time first.

        Without ``name``, the runs of all schedules of the owner are returned. The history of a
        deleted schedule stays readable under its name; a schedule that exists has only its own.

        - ``status``: one status, or several. ``task``: the exact name.
        - ``since``, ``until``: aware datetimes; since <= fire time < until.
        - ``after``: the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        A page reads at most 10,000 runs. If few of them match, it has fewer than ``limit`` runs,
        or none, and a cursor: the history ends where the cursor is None. A filter on unfinished
        statuses only reads the unfinished runs, if there are at most 10,000. Raises
        InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.runs(
                name,
                status=status,
                task=task,
                origin=origin,
                since=since,
                until=until,
                limit=limit,
                after=after,
                session=session,
            ),
        )

    async def set_timezone(
        self, zone: str | ZoneInfo | None, *, session: AnyAsyncSession | None = None
    ) -> int:
        """Set the zone of the owner's triggers that name none. Return how many schedules it moved.

        ``zone`` is a ZoneInfo or a name of the tz database, such as ``"Asia/Seoul"``. None returns
        to ``dynbeat_timezone``. The schedules that follow the zone are planned again from now, in
        the same transaction; nothing fires retroactively. A paused schedule stays paused. If they
        are in this zone already, nothing changes. Raises InvalidScheduleError with field
        ``"zone"``.
        """
        return await self._context.call(
            session, lambda session: self._calls.set_timezone(zone, session=session)
        )

    async def skip(
        self,
        name: str,
        fire_time: datetime,
        *,
        reason: str = "",
        expected_version: int | None = None,
        session: AnyAsyncSession | None = None,
    ) -> ScheduleInfo:
        """Take one fire time out of the schedule; all others stay.

        ``fire_time`` is an aware datetime in the future that the trigger yields within ``start_at``
        and ``end_at``. Its history row, a run with status ``"skipped"``, exists from the call on.
        It names the actor of ``acting()`` and ``reason``, by default the reason of ``acting()``.
        The schedule may be paused. A fire time beyond ``max_runs`` can be skipped. A second call
        for the same fire time changes nothing. A schedule has at most 100 skipped fire times in the
        future.

        Raises ScheduleNotFoundError, StaleScheduleError, InvalidTriggerError and
        InvalidScheduleError. If ``fire_time`` is not a fire time, the error names the nearest ones.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.skip(
                name, fire_time, reason=reason, expected_version=expected_version, session=session
            ),
        )

    async def snooze_alert(
        self, alert_id: int, *, until: datetime | None, session: AnyAsyncSession | None = None
    ) -> AlertInfo:
        """Send no message about an open alert until an instant; return the alert.

        If it is still open then, a message reports it again. A recovery before is not reported.
        ``until`` is at most 30 days ahead. None ends the snooze. An acknowledgement ends. Raises
        AlertNotFoundError and InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.snooze_alert(alert_id, until=until, session=session),
        )

    async def timezone(self, *, session: AnyAsyncSession | None = None) -> str:
        """Return the name of the zone that triggers without a zone follow.

        It is the zone of ``set_timezone``, else ``dynbeat_timezone``.
        """
        return await self._context.call(
            session, lambda session: self._calls.timezone(session=session)
        )

    async def unskip(
        self,
        name: str,
        fire_time: datetime,
        *,
        expected_version: int | None = None,
        session: AnyAsyncSession | None = None,
    ) -> ScheduleInfo:
        """Put a fire time back that ``skip`` took out, before it passes.

        A schedule that finished because of the skip continues. Raises ScheduleNotFoundError,
        StaleScheduleError, InvalidTriggerError, and InvalidScheduleError if ``fire_time`` has
        passed or is not skipped. It has also passed if beat decided on a later fire time before the
        clock was set back.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.unskip(
                name, fire_time, expected_version=expected_version, session=session
            ),
        )

    @overload
    async def upcoming(
        self,
        name: str,
        *,
        count: int = 5,
        with_skipped: Literal[False] = False,
        session: AnyAsyncSession | None = None,
    ) -> Sequence[datetime]: ...

    @overload
    async def upcoming(
        self,
        name: str,
        *,
        count: int = 5,
        with_skipped: Literal[True],
        session: AnyAsyncSession | None = None,
    ) -> Sequence[FireTime]: ...

    @overload
    async def upcoming(
        self,
        name: str,
        *,
        count: int = 5,
        with_skipped: bool,
        session: AnyAsyncSession | None = None,
    ) -> Sequence[datetime] | Sequence[FireTime]: ...

    async def upcoming(
        self,
        name: str,
        *,
        count: int = 5,
        with_skipped: bool = False,
        session: AnyAsyncSession | None = None,
    ) -> Sequence[datetime] | Sequence[FireTime]:
        """Return the next ``count`` fire times, aware and in UTC.

        The fire times that ``skip`` took out are left out. With ``with_skipped`` the result is
        FireTime objects, and the skipped ones are among them. ``count`` is at most 1,000. A paused
        or finished schedule has no other fire times. During a hold the result has the fire times
        after now. Raises ScheduleNotFoundError and InvalidTriggerError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.upcoming(
                name, count=count, with_skipped=with_skipped, session=session
            ),
        )

    @rejecting_rename
    async def update(
        self,
        name: str,
        *,
        expected_version: int | None = None,
        session: AnyAsyncSession | None = None,
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
        return await self._context.call(
            session,
            lambda session: self._calls.update(
                name, expected_version=expected_version, session=session, **changes
            ),
        )

    @naming_other_fields
    async def upsert(
        self,
        name: str,
        *,
        task: TaskLike,
        trigger: TriggerLike,
        session: AnyAsyncSession | None = None,
        **given: Unpack[Fields],
    ) -> ScheduleInfo:
        """Create the schedule, or update the one of this name.

        On an update, fields that are not given keep their values, and a paused schedule stays
        paused. Another trigger replaces the stored one. Raises OwnerLimitError,
        InvalidScheduleError and InvalidTriggerError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.upsert(
                name, task=task, trigger=trigger, session=session, **given
            ),
        )


class AsyncSchedules:
    """The calls of ``Schedules``, awaited. ``session`` is an ``AsyncSession``."""

    def __init__(self, context: AsyncContext) -> None:
        self._context, self._calls = context, Schedules(context)

    def for_owner(self, owner: str) -> AsyncOwnerSchedules:
        """Return the schedules of ``owner``, as ``Schedules.for_owner``. It is not awaited."""
        return AsyncOwnerSchedules(self._context, self._calls.for_owner(owner))

    async def acknowledge_alert(
        self, alert_id: int, *, session: AnyAsyncSession | None = None
    ) -> AlertInfo:
        """Acknowledge an alert of any owner. Otherwise as ``OwnerSchedules.acknowledge_alert``."""
        return await self._context.call(
            session, lambda session: self._calls.acknowledge_alert(alert_id, session=session)
        )

    async def alert_targets(
        self, *, session: AnyAsyncSession | None = None
    ) -> Sequence[AlertTargetInfo]:
        """Return what the messages to each alert target have become, in the order of the names.

        The targets are those of the settings of this process, and others that have messages or
        unsent alerts.
        """
        return await self._context.call(
            session, lambda session: self._calls.alert_targets(session=session)
        )

    async def alerts(
        self,
        *,
        only_open: bool = True,
        limit: int = 100,
        after: int | None = None,
        session: AnyAsyncSession | None = None,
    ) -> Sequence[AlertInfo]:
        """Return up to ``limit`` alerts of all owners. Otherwise as ``OwnerSchedules.alerts``."""
        return await self._context.call(
            session,
            lambda session: self._calls.alerts(
                only_open=only_open, limit=limit, after=after, session=session
            ),
        )

    async def cancel_request(
        self,
        request_id: int,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RequestInfo:
        """Stop a request and revoke its runs that have not started.

        A request that has ended keeps its ``finished_at``. It becomes ``"cancelled"`` if a run was
        revoked. ``actor`` and ``reason`` are for the audit; ``acting()`` presets them. Raises
        RequestNotFoundError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.cancel_request(
                request_id, actor=actor, reason=reason, session=session
            ),
        )

    async def cancel_run(self, run_id: str, *, session: AnyAsyncSession | None = None) -> RunInfo:
        """Cancel a run of any owner. Otherwise as ``OwnerSchedules.cancel_run``."""
        return await self._context.call(
            session, lambda session: self._calls.cancel_run(run_id, session=session)
        )

    async def cancel_runs(
        self,
        *,
        status: StatusFilter | None = None,
        owner: str | None = None,
        name: str | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 10000,
        session: AnyAsyncSession | None = None,
    ) -> int:
        """Cancel the runs of all owners that match and have not started or wait for a retry.

        Returns their number. With ``owner`` only runs of that owner match, with ``name`` those of
        the schedules of this name. Otherwise as ``OwnerSchedules.cancel_runs``.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.cancel_runs(
                status=status,
                owner=owner,
                name=name,
                task=task,
                origin=origin,
                since=since,
                until=until,
                limit=limit,
                session=session,
            ),
        )

    async def changes(
        self,
        *,
        owner: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        limit: int = 20,
        after: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> ChangePage:
        """Return one page of up to ``limit`` edits, newest first, for the audit.

        Without ``owner``, the edits of all owners and of everything are returned. The other
        arguments are those of ``OwnerSchedules.changes``. Pass ``since`` with a rare ``action``:
        all changes since then are read until ``limit`` of them match. Raises InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.changes(
                owner=owner,
                actor=actor,
                action=action,
                since=since,
                limit=limit,
                after=after,
                session=session,
            ),
        )

    async def count(
        self,
        *,
        owner: str | None = None,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        state: str | None = None,
        name_prefix: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> BoundedCount:
        """Return the number of schedules that match, up to 10,000: ``"10,000+"`` as text.

        The filters are those of ``list()``. At most 10,001 schedules are read, so with a filter on
        task, enabled or tag the count of many schedules can be a lower bound. Raises
        InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.count(
                owner=owner,
                task=task,
                enabled=enabled,
                tag=tag,
                state=state,
                name_prefix=name_prefix,
                session=session,
            ),
        )

    async def count_runs(
        self,
        *,
        owner: str | None = None,
        status: StatusFilter | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        session: AnyAsyncSession | None = None,
    ) -> BoundedCount:
        """Return the number of runs that match, up to 10,000: ``"10,000+"`` as text.

        The filters are those of ``runs()``. As for ``for_owner(owner).count_runs()``, the count can
        be a lower bound. Raises InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.count_runs(
                owner=owner,
                status=status,
                task=task,
                origin=origin,
                since=since,
                until=until,
                session=session,
            ),
        )

    async def create_many(
        self, many: Iterable[NewSchedule], *, session: AnyAsyncSession | None = None
    ) -> int:
        """Create all schedules or none, notify beat once, and return their number.

        Raises ScheduleExistsError if a name exists or occurs twice, and OwnerLimitError if an owner
        would exceed its quota. Raises InvalidScheduleError or InvalidTriggerError, with the index
        of the invalid schedule in the message (the first is 0).
        """
        return await self._context.call(
            session, lambda session: self._calls.create_many(many, session=session)
        )

    async def delete_owner(
        self,
        owner: str,
        *,
        erase_history: bool = False,
        progress: Progress | None = None,
        session: AnyAsyncSession | None = None,
    ) -> int:
        """Delete all schedules of ``owner`` and its holds, and return the number of schedules.

        Their runs that have not started are revoked. The history stays until it is pruned.

        With ``erase_history`` the owner's runs, changes and requests are deleted, too. Running
        tasks continue; their rows are deleted. One change remains: the owner's name, with the actor
        and the reason of this call. Without ``session`` each batch commits: first the schedules
        stop, then the history is deleted. ``progress`` is called after each batch with the number
        of deleted rows. If the call fails, repeat it. Let the application create nothing for the
        owner meanwhile.

        Raises InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.delete_owner(
                owner, erase_history=erase_history, progress=progress, session=session
            ),
        )

    async def get_request(
        self, request_id: int, *, session: AnyAsyncSession | None = None
    ) -> RequestInfo:
        """Return a request with its progress. Raises RequestNotFoundError."""
        return await self._context.call(
            session, lambda session: self._calls.get_request(request_id, session=session)
        )

    async def hold(
        self, *, reason: str, until: datetime | None = None, session: AnyAsyncSession | None = None
    ) -> HoldInfo:
        """Stop all schedules of all owners until ``release``, or until ``until``.

        Otherwise as ``OwnerSchedules.hold``. Raises InvalidScheduleError.
        """
        return await self._context.call(
            session, lambda session: self._calls.hold(reason=reason, until=until, session=session)
        )

    async def holds(
        self, *, limit: int = 100, after: int | None = None, session: AnyAsyncSession | None = None
    ) -> Sequence[HoldInfo]:
        """Return up to ``limit`` holds in force, of everything and of each owner, the oldest first.

        ``after`` is the id of the last hold of the previous call. ``limit`` is at most 1,000.
        Raises InvalidScheduleError.
        """
        return await self._context.call(
            session, lambda session: self._calls.holds(limit=limit, after=after, session=session)
        )

    async def list(
        self,
        *,
        owner: str | None = None,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        state: str | None = None,
        name_prefix: str | None = None,
        order: str | None = None,
        limit: int = 100,
        after: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> Page:
        """Return one page of up to ``limit`` schedules, ordered by owner and name.

        The arguments are those of ``for_owner(owner).list()``. Without ``owner``, the schedules of
        all owners are returned. With ``name_prefix`` these are ordered by name and owner. Raises
        InvalidScheduleError.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.list(
                owner=owner,
                task=task,
                enabled=enabled,
                tag=tag,
                state=state,
                name_prefix=name_prefix,
                order=order,
                limit=limit,
                after=after,
                session=session,
            ),
        )

    async def release(
        self, *, all_actors: bool = False, session: AnyAsyncSession | None = None
    ) -> Sequence[HoldInfo]:
        """End the hold of everything by the current actor; return the ended holds.

        Otherwise as ``OwnerSchedules.release``. The holds of single owners do not end. Raises
        HeldByOthersError.
        """
        return await self._context.call(
            session, lambda session: self._calls.release(all_actors=all_actors, session=session)
        )

    async def requests(
        self,
        *,
        owner: str | None = None,
        kind: str | None = None,
        limit: int = 20,
        after: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RequestPage:
        """Return one page of up to ``limit`` requests, the newest first.

        Without ``owner``, the requests of all owners and those for all owners are returned. The
        other arguments are those of ``for_owner(owner).requests()``.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.requests(
                owner=owner, kind=kind, limit=limit, after=after, session=session
            ),
        )

    async def rerun(
        self,
        run_id: str,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RunInfo:
        """Run an ended run again, at once, also if its schedule is paused or held.

        The new run has the origin ``"rerun"``, and ``rerun_of`` is the id of the original run. The
        task receives the original fire time. Task, arguments, options and policies are those of the
        schedule now. ``expires_after`` counts from this call. A beat sends the run within
        milliseconds after the commit. ``actor`` and ``reason`` are for the audit; ``acting()``
        presets them.

        Raises RunNotFoundError. Raises InvalidScheduleError

        - for a run that is unfinished or ``skipped``, or whose schedule was deleted;
        - if the original run has an unfinished rerun;
        - if the overlap policy is not ``"allow"`` and the schedule has an unfinished run;
        - if dynbeat_allowed_tasks excludes the task;
        - in a MySQL transaction whose snapshot is older than a rerun of the same run.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.rerun(run_id, actor=actor, reason=reason, session=session),
        )

    async def rerun_many(
        self,
        *,
        owner: str | None = None,
        since: datetime,
        until: datetime | None = None,
        status: StatusFilter = (Status.FAILED, Status.LOST),
        name: str | None = None,
        task: str | None = None,
        batch_size: int = 100,
        actor: str | None = None,
        reason: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RequestInfo:
        """Run ended runs of all owners again, or those of ``owner``.

        The other arguments are those of ``for_owner(owner).rerun_many()``. The request belongs to
        ``owner``. Only the calls across owners see a request without an owner.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.rerun_many(
                owner=owner,
                since=since,
                until=until,
                status=status,
                name=name,
                task=task,
                batch_size=batch_size,
                actor=actor,
                reason=reason,
                session=session,
            ),
        )

    async def run(self, run_id: str, *, session: AnyAsyncSession | None = None) -> RunInfo:
        """Return the run with this id, of any owner. Raises RunNotFoundError."""
        return await self._context.call(
            session, lambda session: self._calls.run(run_id, session=session)
        )

    async def runs(
        self,
        *,
        owner: str | None = None,
        status: StatusFilter | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 20,
        after: str | None = None,
        session: AnyAsyncSession | None = None,
    ) -> RunPage:
        """Return one page of up to ``limit`` runs of all owners, the newest first.

        The order is that of creation: a run of a backfill for a past fire time is new. With
        ``owner``, the runs and their order are those of ``for_owner(owner).runs()``, where the
        arguments are described.

        A row of ``skip()`` is created before its fire time. With ``since`` it appears only if it
        was created after that instant, too. If more than 10,000 runs are unfinished, a list of
        unfinished statuses only is ordered by schedule, and newest first in each.
        """
        return await self._context.call(
            session,
            lambda session: self._calls.runs(
                owner=owner,
                status=status,
                task=task,
                origin=origin,
                since=since,
                until=until,
                limit=limit,
                after=after,
                session=session,
            ),
        )

    async def snooze_alert(
        self, alert_id: int, *, until: datetime | None, session: AnyAsyncSession | None = None
    ) -> AlertInfo:
        """Snooze an alert of any owner. Otherwise as ``OwnerSchedules.snooze_alert``."""
        return await self._context.call(
            session,
            lambda session: self._calls.snooze_alert(alert_id, until=until, session=session),
        )
