"""The calls that hold owners, cancel runs and run them again.

A hold is one row for each scope. Holding does not read schedules. Beat takes the due schedules of a
held owner out of its index, and a release makes them due.

A cancelled run is ``revoked``, and the guard in the worker drops its message. Its schedule does not
change: the fire time counts as run, also for ``max_runs``.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from sqlalchemy.orm import Session

from celery_dynbeat.api import audit, batches, checks
from celery_dynbeat.api.audit import current_actor
from celery_dynbeat.api.batches import Pace
from celery_dynbeat.api.calls import OLDEST_HOLD, PAGE_SIZE
from celery_dynbeat.api.filters import OwnerFilter, RunKeywords, checked
from celery_dynbeat.api.reading import ReadCalls, with_schedule
from celery_dynbeat.api.results import BatchInfo, HoldInfo, Page, RunInfo
from celery_dynbeat.common.errors import ConflictError, NotFoundError
from celery_dynbeat.common.filters import RunFilter, StatusFilter
from celery_dynbeat.common.infos import BoundedCount, as_json
from celery_dynbeat.common.states import REVOKE, Action, Status
from celery_dynbeat.common.text import MAX_CANCELLED
from celery_dynbeat.db.models import Hold, Run
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds, runs
from celery_dynbeat.store.runs import run_pages, unfinished
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

#: The error of a cancelled run.
CANCELLED = "the run was cancelled"
#: Runs that one transaction of ``cancel_runs`` cancels.
BATCH_SIZE = 500


def cancellable(matching: RunFilter) -> RunFilter:
    """Return the filter of ``cancel_runs``, checked, by default with each status to cancel."""
    found = checked(matching)
    for each in found.statuses:
        if each == Status.RUNNING:
            rule = "to end running runs, call Celery's app.control.revoke(ids, terminate=True)"
            raise checks.invalid("status", str(each), rule)
        if each not in REVOKE.sources:
            rule = f"only runs in {', '.join(REVOKE.sources)} can be cancelled"
            raise checks.invalid("status", str(each), rule)
    return replace(found, status=found.status or tuple(REVOKE.sources))


def _cancel_all(
    context: Context, session: Session | None, *, matching: RunFilter, limit: int
) -> int:
    """Cancel the runs that match, in batches. Return their number."""
    matching = context.read(session, partial(with_schedule, matching=matching))
    cancelled, after = 0, None
    while True:
        search = partial(run_pages.unfinished_keys, matching=matching, after=after)
        # Before the write: SQLite lets no other process write during a write.
        found = context.read_many(
            session, partial(search, limit=min(BATCH_SIZE, limit - cancelled))
        )
        if found.rows:
            ids = [row.id for row in found.rows]
            cancelled += _cancel_batch(context, session, ids, matching=matching)
        after = found.last
        if after is None or cancelled >= limit:
            return cancelled


def _cancel_batch(
    context: Context,
    session: Session | None,
    ids: Sequence[str],
    *,
    matching: RunFilter,
) -> int:
    # A run can have moved to another owner since its id was read.
    conditions = run_pages.unfinished_scan(matching).filters

    def work(session: Session) -> int:
        rows = runs.lock_many(session, ids, conditions)
        now = context.clock.now()
        cancelled = runs.revoke(session, [row.id for row in rows], now=now, reason=CANCELLED)
        release_buffered(context, session, rows, now=now)
        audit.record(context, session, _edits(rows), now=now)
        return cancelled

    return context.write(session, work)


def _edits(rows: Sequence[Any]) -> Sequence[audit.Edit]:
    """Return one edit for each schedule of the cancelled runs."""
    ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        ids[row.owner, row.name].append(row.id)
    return [
        audit.Edit(owner=owner, name=name, action=Action.CANCEL, new={"run_ids": of_schedule})
        for (owner, name), of_schedule in ids.items()
    ]


def release_buffered(
    context: Context, session: Session, rows: Sequence[Any], *, now: datetime
) -> None:
    """Let beat send the buffered runs that waited for the cancelled runs."""
    schedule_ids = sorted({row.schedule_id for row in rows if row.schedule_id is not None})
    default = context.settings.overlap
    if unfinished.make_all_buffered_overdue(session, schedule_ids, default=default, now=now):
        context.notifier.notify(session)


def _not_cancellable(run: Run) -> ConflictError:
    """Return why a run cannot be cancelled, and what to do."""
    code, rule = "ended", f"the run has ended as {run.status}: there is nothing to cancel"
    if run.status == Status.RUNNING:
        code = "unfinished"
        rule = (
            f"the run is running on {run.worker}: to end its process, call Celery's"
            f" app.control.revoke({run.id!r}, terminate=True)"
        )
    return checks.conflict("run_id", run.id, rule, code=code)


#: The fields of a hold that the row has, and that a change records.
_HOLD_FIELDS = ("actor", "reason", "created_at", "until_at")


def _with_counts(session: Session, rows: Sequence[Hold]) -> tuple[HoldInfo, ...]:
    """Return the holds with the numbers of what they stop."""
    schedules = holds.count_schedules(session, rows)
    waiting, is_more = holds.count_waiting_runs(session) if rows else ({}, False)

    def counted(row: Hold) -> HoldInfo:
        runs = sum(waiting.values()) if row.owner is None else waiting.get(row.owner, 0)
        return replace(
            HoldInfo.of(row),
            schedules=schedules[row.id],
            waiting_runs=BoundedCount(count=min(runs, holds.COUNT_LIMIT), exact=not is_more),
        )

    return tuple(map(counted, rows))


def _hold(
    context: Context, session: Session, *, owner: str | None, until: datetime | None
) -> HoldInfo:
    """Make the hold of an owner or of everything, or replace it."""
    by = current_actor()
    while (row := holds.lock(session, owner=owner)) is None:
        now = context.clock.now()
        made = HoldInfo(
            owner=owner, actor=by.actor, reason=by.reason, created_at=now, until_at=until
        )
        values = {name: getattr(made, name) for name in _HOLD_FIELDS}
        if holds.add(session, owner=owner, values=values):
            _record_hold(context, session, None, made, now=now)
            return made
    # After the lock, for which this transaction may have waited.
    now = context.clock.now()
    before: HoldInfo | None = HoldInfo.of(row)
    if row.until_at is not None and row.until_at <= now:
        # The earlier hold has ended, so this one replaces nothing.
        before, row.created_at = None, now
    row.actor, row.reason, row.until_at = by.actor, by.reason, until
    session.flush()
    made = HoldInfo.of(row)
    _record_hold(context, session, before, made, now=now)
    return made


def _release(context: Context, session: Session, *, owner: str | None) -> HoldInfo | None:
    """End a hold. Return it, or None if there is none."""
    row = holds.lock(session, owner=owner)
    # After the lock, for which this transaction may have waited.
    now = context.clock.now()
    if row is None or (row.until_at is not None and row.until_at <= now):
        return None
    ended = HoldInfo.of(row)
    session.expunge(row)
    holds.delete_ids(session, [row.id])
    _record_hold(context, session, ended, None, now=now)
    return ended


def _record_hold(
    context: Context,
    session: Session,
    before: HoldInfo | None,
    after: HoldInfo | None,
    *,
    now: datetime,
) -> None:
    """Record the begin, the change or the end of a hold, and tell beat of an earlier end."""
    some = after or before
    assert some is not None  # noqa: S101 - one of both is given
    edit = audit.Edit(
        owner=some.owner,
        action=Action.RELEASE if after is None else Action.HOLD,
        old=None if before is None else _audited_hold(before),
        new=None if after is None else _audited_hold(after),
        reason=some.reason,
    )
    audit.record(context, session, [edit], now=now)
    event_type = events.HoldStarted if before is None else events.HoldReleased
    if (before is None or after is None) and has_listeners(event_type):
        event = event_type(
            owner=some.owner, actor=some.actor, reason=some.reason, until=some.until_at
        )
        emit_on_commit(session, event)
    if before is not None:
        # The schedules that wait are due at the new end, which can be earlier.
        end = None if after is None else after.until_at or holds.NEVER
        if some.owner is not None:
            holds.move_held(session, owner=some.owner, now=now, end=end)
        context.notifier.notify(session)


def _audited_hold(hold: HoldInfo) -> dict[str, Any]:
    return {name: as_json(getattr(hold, name)) for name in _HOLD_FIELDS}


class ControlCalls(ReadCalls):
    """The calls on runs and holds. Those of one owner concern only that owner."""

    def hold(
        self,
        *,
        until: datetime | None = None,
        reason: str | None = None,
    ) -> HoldInfo:
        """Stop the schedules of the owner, or of all owners, until ``release`` or ``until``.

        - Beat sends no fire times. Reruns, backfills, retries that beat sends, and runs that wait
          for something else wait as well. ``run_now`` is refused. Runs whose message beat has
          recorded still start.
        - After the hold, ``catch_up`` decides which missed fire times are sent, as after downtime.
        - A schedule's own pause does not change.
        - ``until`` is an aware datetime in the future. ``reason`` has at most 1,024 characters.
        - There is one hold of an owner, and one of everything. A second call replaces the reason,
          the end and the actor of the hold. The owner is held while its hold or the hold of
          everything is in force.

        The cost does not depend on the number of schedules. A batch that beat has claimed before
        the commit is still sent. Raises InvalidArgumentError.

        >>> mine.bound(actor="alice").hold(reason="ticket 12").reason
        'ticket 12'
        >>> [hold.actor for hold in mine.holds()]
        ['alice']
        """
        until = checks.check_instant("until", until)

        def work(session: Session) -> HoldInfo:
            now = self._context.clock.now()
            if until is not None and until <= now:
                raise checks.invalid(
                    "until", until, f"must be later than now, {now}, or None", "past"
                )
            return _hold(self._context, session, owner=self._owner, until=until)

        return self._write(work, reason=reason)

    def release(self) -> HoldInfo | None:
        """End the hold of the owner, or of everything. Return it, or None if there is none.

        It does not matter which actor made the hold. Releasing an owner does not end the hold of
        everything, and releasing everything does not end the hold of an owner. Raises
        InvalidArgumentError.

        >>> _ = mine.bound(actor="alice").hold()
        >>> mine.bound(actor="bob").release().actor
        'alice'
        """

        def work(session: Session) -> HoldInfo | None:
            return _release(self._context, session, owner=self._owner)

        return self._write(work)

    def holds(
        self,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
    ) -> Page[HoldInfo]:
        """Return one page of up to ``limit`` holds in force, the oldest first.

        For an owner, the page contains the hold of everything and the hold of the owner. Each hold
        counts the schedules that it stops and the runs that wait for its end. ``after`` is the
        ``cursor`` of the previous page. ``limit`` is at most 1,000. Raises InvalidArgumentError.
        """
        now = self._now()

        def read(session: Session, *, after: int, limit: int) -> Sequence[Hold]:
            if self._owner is None:
                return holds.page(session, now=now, after=after, limit=limit)
            found = holds.in_force(session, owner=self._owner, now=now)
            return sorted((row for row in found if row.id > after), key=lambda row: row.id)

        order, counted = OLDEST_HOLD, _with_counts
        return self._page(read, order, counted, limit=limit, after=after, first=0)

    def cancel_run(
        self,
        run_id: str,
    ) -> RunInfo:
        """Cancel a run that has not started or waits for a retry, and return it as ``revoked``.

        The guard in the worker drops the message of the run. The fire time still counts as a run.

        Raises NotFoundError, and ConflictError for a run that is running or has ended.
        To end a running one, use Celery's ``revoke(run_id, terminate=True)``.

        >>> run = mine.run_now("digest")
        >>> mine.cancel_run(run.id).status
        'revoked'
        """
        run_id = checks.check_run_id("run_id", run_id)

        def work(session: Session) -> RunInfo:
            run = runs.lock(session, run_id=run_id, owner=self._owner)
            if run is None:
                raise NotFoundError("run", run_id, owner=self._owner)
            now = self._context.clock.now()
            if not runs.revoke(session, [run_id], now=now, reason=CANCELLED):
                raise _not_cancellable(run)
            session.refresh(run)
            release_buffered(self._context, session, [run], now=now)
            edit = audit.Edit(
                owner=run.owner, name=run.name, action=Action.CANCEL, new={"run_id": run_id}
            )
            audit.record(self._context, session, [edit], now=now)
            return RunInfo.of(run)

        return self._write(work)

    def cancel_runs(
        self,
        name: str | None = None,
        *,
        limit: int = 10_000,
        **matching: Unpack[RunKeywords],
    ) -> int:
        """Cancel the matching runs that have not started or wait for a retry; return their number.

        - ``name`` and the filters are the same as in ``runs()``. If you pass none of them, all such
          runs in the scope are cancelled.
        - ``status`` is one or several of ``pending``, ``sent`` and ``retrying``. The default is all
          three.
        - ``limit`` is the largest number of runs to cancel, up to 100,000. If the call returns this
          number, more runs may match. In that case, repeat the call.

        Without a ``session``, each batch of 500 runs commits. If the call fails, repeat
        it. Runs that beat records or a worker starts during the call may not be cancelled. Raises
        InvalidArgumentError.

        >>> _ = mine.run_now("digest")
        >>> mine.cancel_runs("digest")
        1
        """
        checks.check_integer("limit", limit, minimum=1, maximum=MAX_CANCELLED)
        given = self._in_scope(RunKeywords, matching)
        found = cancellable(RunFilter(name=name, **given))
        with self._acting():
            return _cancel_all(self._context, self._session, matching=found, limit=limit)

    def rerun(
        self,
        run_id: str,
        *,
        now: bool = False,
    ) -> RunInfo:
        """Run an ended run again, even if its schedule is paused.

        The new run has the origin ``"rerun"``, and its ``rerun_of`` is the id of the original run.
        The task receives the original fire time. The run uses the schedule's current task,
        arguments, options and policies. ``expires_after`` counts from this call. A beat sends the
        run within milliseconds after the commit, unless it has to wait: for the end of a hold, for
        the end of the owner's quiet hours unless ``now`` is true, for a place, or for another run
        of the schedule if the overlap policy is not ``"allow"``.
        ``actor`` and ``reason`` are recorded in the audit; ``acting()`` sets their
        defaults.

        Raises NotFoundError, and InvalidArgumentError if the task is not allowed.
        Raises ConflictError

        - for a run that is unfinished or ``skipped``, or whose schedule was deleted;
        - if the original run has an unfinished rerun;
        - in a MySQL transaction whose snapshot is older than a rerun of the same run.
        """
        run_id = checks.check_run_id("run_id", run_id)
        checks.check_flag("now", now)

        def work(session: Session) -> RunInfo:
            run = batches.find_run(session, owner=self._owner, run_id=run_id)
            made = batches.rerun(self._context, session, run, owner=self._owner, at_once=now)
            new = RunInfo.of(made)
            values = {"run_id": new.id, "rerun_of": run_id, "now": now}
            edit = audit.Edit(owner=new.owner, name=new.name, action=Action.RERUN, new=values)
            audit.record(self._context, session, [edit], now=new.created_at)
            return new

        return self._write(work)

    def rerun_many(
        self,
        *,
        owner: str | None = None,
        since: datetime,
        until: datetime | None = None,
        ended_before: datetime | None = None,
        status: StatusFilter = (Status.FAILED, Status.LOST),
        name: str | None = None,
        task: str | None = None,
        per_minute: int = 100,
        now: bool = False,
    ) -> BatchInfo:
        """Run ended runs with since <= fire time < until again, as a batch.

        - ``owner`` selects the runs of one owner. The calls of one owner accept only that owner. In
          the calls across owners, None means all owners.
        - ``since`` and ``until`` are aware datetimes. If ``until`` is None, it is the current time.
        - ``ended_before`` selects the runs that ended before this instant, by default before the
          call.
        - ``status`` is one or several of ``failed``, ``lost``, ``revoked``, ``expired`` and
          ``succeeded``.
        - ``name`` selects runs of the schedules with this name, and ``task`` runs that had this
          task.
        - Beat sends ``per_minute`` of the new runs in a minute.
        - In the quiet hours of its owner, a run waits for their end, unless ``now`` is true.

        Runs that have a rerun do not match, but their newest rerun can match. A run whose schedule
        is deleted does not match. A run is excluded if its schedule may not run its task.

        The call records at most 10,000 runs. If more match, ``left_since`` of the result is the
        ``since`` of the next call. Pass the instant of the first call as ``ended_before`` to all of
        them. Then no call repeats a rerun that has failed meanwhile, and the calls come to an end.

        The new runs wait for the end of a hold and for a place. If runs of a schedule must not
        overlap, beat sends one at a time, while no other run of the schedule is unfinished. A
        paused schedule runs its reruns.

        ``actor`` and ``reason`` are recorded in the audit; ``acting()`` sets their defaults.

        Raises NotFoundError if the owner has no schedule ``name``. Raises
        InvalidArgumentError for an invalid argument, and if the span has too many runs to search.
        """
        pace = Pace(per_minute, now)
        scope = self._in_scope(OwnerFilter, {"owner": owner})
        matching = batches.rerun_filter(
            owner=scope["owner"],
            since=since,
            until=until,
            ended_before=ended_before,
            status=status,
            name=name,
            task=task,
            now=self._now(),
        )
        # Before the write: SQLite lets no other process write during a write.
        found = self._read_many(lambda session: batches.search(session, matching))

        def work(session: Session) -> BatchInfo:
            return batches.rerun_many(self._context, session, matching, found, pace)

        return self._write(work)
