"""Run ended runs again: one of them, or many in the background; list and cancel."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks
from celery_dynbeat.client.checks import check_limit
from celery_dynbeat.client.edit import audit
from celery_dynbeat.client.filters import StatusFilter
from celery_dynbeat.client.one_rerun import find_run, rerun
from celery_dynbeat.client.results import RerunInfo, RunInfo
from celery_dynbeat.client.results.base import as_json
from celery_dynbeat.common.actions import Action
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    RerunNotFoundError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.limits import MAX_RERUN_BATCH
from celery_dynbeat.common.run_states import RERUNNABLE, Status
from celery_dynbeat.db.models import Rerun
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import reruns, schedules
from celery_dynbeat.store.reruns import RerunFilter

#: Runs of one request.
MAX_RUNS = 100_000
#: Runs that the count of a request reads, and how many of them at a time.
MAX_SEARCHED = 10_000_000
SEARCHED_AT_ONCE = 10_000


class RerunCalls:
    """The calls of OwnerSchedules and Schedules for reruns."""

    _context: Context
    #: The owner whose runs the calls see. None: all owners.
    _rerun_owner: str | None = None

    def rerun(self, run_id: str, *, session: Session | None = None) -> RunInfo:
        """Run an ended run again, at once, also if its schedule is paused or held.

        The new run has the origin ``"rerun"``, and ``rerun_of`` is the id of the original run. The
        task receives the original fire time. Task, arguments, options and policies are those of the
        schedule now. ``expires_after`` counts from this call. A beat sends the run within
        milliseconds after the commit.

        Raises RunNotFoundError. Raises InvalidScheduleError

        - for a run that is unfinished or ``skipped``, or whose schedule was deleted;
        - if the original run has an unfinished rerun;
        - if the overlap policy is not ``"allow"`` and the schedule has an unfinished run;
        - if dynbeat_allowed_tasks excludes the task;
        - in a MySQL transaction whose snapshot is older than a rerun of the same run.
        """
        run_id = checks.check_run_id("run_id", run_id)

        def work(session: Session) -> RunInfo:
            run = find_run(session, owner=self._rerun_owner, run_id=run_id)
            new = RunInfo.of(rerun(self._context, session, run))
            values = {"run_id": new.id, "rerun_of": run_id}
            edit = audit.Edit(owner=new.owner, name=new.name, action=Action.RERUN, new=values)
            audit.record(self._context, session, [edit], now=new.created_at)
            return new

        return self._context.write(session, work)

    def rerun_many(
        self,
        *,
        since: datetime,
        until: datetime | None = None,
        status: StatusFilter = (Status.FAILED, Status.LOST),
        name: str | None = None,
        task: str | None = None,
        batch_size: int = 100,
        session: Session | None = None,
    ) -> RerunInfo:
        """Run ended runs again, in the background: those with since <= fire time < until.

        - ``since`` and ``until`` are aware datetimes. ``until`` None means now.
        - ``status``: one or several of ``failed``, ``lost``, ``revoked``, ``expired`` and
          ``succeeded``.
        - ``name``: only runs of the schedules of this name. ``task``: only runs that had this task.
        - At most ``batch_size`` (1 to 1,000) of the new runs are unfinished at any time.

        Beat makes the new runs while no schedule is due. If runs of a schedule must not overlap, it
        makes one at a time, and only while the schedule has no unfinished run. Runs that have a
        rerun do not match, but their newest rerun can. So a second call repeats nothing. Runs whose
        schedule is deleted, paused or quarantined or must not run its task are left out.

        Raises ScheduleNotFoundError if the owner has no schedule ``name``. Raises
        InvalidScheduleError for an invalid argument, and if more than 100,000 runs match.
        """
        now = self._context.now(session)
        matching = self._filter(
            status=status, since=since, until=until, name=name, task=task, now=now
        )
        checks.check_integer("batch_size", batch_size, minimum=1, maximum=MAX_RERUN_BATCH)

        def search(session: Session) -> tuple[RerunFilter, int]:
            found = _with_schedule(session, matching)
            return found, _count(session, found)

        # Before the write: SQLite lets no other process write during a write.
        found, total = self._context.read_many(session, search)

        def work(session: Session) -> RerunInfo:
            row = _new_row(found, total=total, batch_size=batch_size)
            reruns.add(session, row)
            if total:
                self._context.notifier.notify(session)
            return self._recorded(session, row, Action.RERUN_MANY)

        return self._context.write(session, work)

    def reruns(self, *, limit: int = 20, session: Session | None = None) -> Sequence[RerunInfo]:
        """Return up to ``limit`` requests of ``rerun_many``, newest first.

        An owner sees the requests for its own runs. ``limit`` is at most 1,000.
        """
        check_limit("limit", limit)

        def work(session: Session) -> Sequence[RerunInfo]:
            history = reruns.history(session, owner=self._rerun_owner, limit=limit)
            return [RerunInfo.of(row) for row in history]

        return self._context.read_many(session, work)

    def get_rerun(self, rerun_id: int, *, session: Session | None = None) -> RerunInfo:
        """Return the request of ``rerun_many`` with its progress. Raises RerunNotFoundError."""
        _check_rerun_id(rerun_id)

        def work(session: Session) -> RerunInfo:
            return RerunInfo.of(self._find_rerun(session, rerun_id))

        return self._context.read(session, work)

    def cancel_rerun(self, rerun_id: int, *, session: Session | None = None) -> RerunInfo:
        """Stop a request of ``rerun_many`` and revoke its new runs that have not started.

        A request that has ended keeps its ``finished_at``. Raises RerunNotFoundError.
        """
        _check_rerun_id(rerun_id)

        def work(session: Session) -> RerunInfo:
            row = self._find_rerun(session, rerun_id, for_update=True)
            _cancel(session, row, now=self._context.clock.now())
            return self._recorded(session, row, Action.CANCEL_RERUN)

        return self._context.write(session, work)

    def _recorded(self, session: Session, row: Rerun, action: Action) -> RerunInfo:
        """Write the edit of a request to the audit and return the request."""
        info = RerunInfo.of(row)
        names = ("id", "task", "statuses", "since", "until", "total", "made")
        values = {name: as_json(getattr(info, name)) for name in names}
        edit = audit.Edit(owner=info.owner, name=info.name or "", action=action, new=values)
        audit.record(self._context, session, [edit], now=self._context.clock.now())
        return info

    def _filter(
        self,
        *,
        status: StatusFilter,
        since: datetime,
        until: datetime | None,
        name: str | None,
        task: str | None,
        now: datetime,
    ) -> RerunFilter:
        since = checks.check_required_instant("since", since)
        until = checks.check_instant("until", until) or now
        if since > now:
            raise checks.invalid("since", since, f"must not lie in the future (it is {now} now)")
        if since > until:
            raise checks.invalid("since", since, f"must not be after until = {until}")
        return RerunFilter(
            owner=self._rerun_owner,
            name=None if name is None else checks.check_name("name", name),
            schedule_id=None,
            task=None if task is None else checks.check_name("task", task),
            statuses=_check_statuses(status),
            since=since,
            until=min(until, now),
            requested_at=now,
        )

    def _find_rerun(self, session: Session, rerun_id: int, *, for_update: bool = False) -> Rerun:
        owner = self._rerun_owner
        row = reruns.get(session, rerun_id=rerun_id, owner=owner, for_update=for_update)
        if row is None:
            raise RerunNotFoundError(owner=owner, rerun_id=rerun_id)
        return row


def _check_statuses(status: StatusFilter) -> tuple[str, ...]:
    if status == Status.SKIPPED:
        raise checks.invalid("status", status, "has no run to repeat: call backfill()")
    statuses = checks.check_choices("status", status, *RERUNNABLE)
    if not statuses:
        raise checks.invalid("status", status, f"must be one or several of {', '.join(RERUNNABLE)}")
    return statuses


def _check_rerun_id(rerun_id: object) -> None:
    checks.check_integer("rerun_id", rerun_id, minimum=1, maximum=2**63 - 1)


def _with_schedule(session: Session, matching: RerunFilter) -> RerunFilter:
    """Return the filter with the id of the schedule that it names, if it names one."""
    if matching.owner is None or matching.name is None:
        return matching
    row = schedules.get(session, owner=matching.owner, name=matching.name)
    if row is None:
        raise ScheduleNotFoundError(owner=matching.owner, name=matching.name)
    return replace(matching, schedule_id=row.id)


def _count(session: Session, matching: RerunFilter) -> int:
    """Return the number of matching runs. Raises InvalidScheduleError if there are too many."""
    total = searched = 0
    after = matching.start()
    while True:
        last = reruns.last_position(session, matching, after=after, limit=SEARCHED_AT_ONCE)
        total += reruns.count(session, matching, after=after, last=last)
        searched += SEARCHED_AT_ONCE
        if total > MAX_RUNS:
            raise _too_many(matching, f"more than {MAX_RUNS:,} runs match")
        if last is None:
            return total
        if searched >= MAX_SEARCHED:
            raise _too_many(matching, f"more than {MAX_SEARCHED:,} runs lie in this span")
        after = last


def _too_many(matching: RerunFilter, problem: str) -> InvalidScheduleError:
    rule = (
        f"{problem} (until = {matching.until}), the limit of one call: split the span, or name a"
        " schedule with name= or an owner with for_owner()"
    )
    return checks.invalid("since", matching.since, rule)


def _new_row(matching: RerunFilter, *, total: int, batch_size: int) -> Rerun:
    start, now = matching.start(), matching.requested_at
    return Rerun(
        owner=matching.owner,
        name=matching.name,
        schedule_id=matching.schedule_id,
        task=matching.task,
        statuses=list(matching.statuses),
        since=matching.since,
        until=matching.until,
        batch_size=batch_size,
        total=total,
        made=0,
        left_out=0,
        after_at=start.at,
        after_id=start.run_id,
        waiting_ids=[],
        unfinished_ids=[],
        next_run_at=now if total else None,
        created_at=now,
        finished_at=None if total else now,
        cancelled=False,
    )


def _cancel(session: Session, row: Rerun, *, now: datetime) -> None:
    reason = "the rerun was cancelled"
    revoked = reruns.revoke_unstarted(session, row.unfinished_ids, now=now, reason=reason)
    if row.finished_at is None:
        row.finished_at, row.next_run_at, row.cancelled = now, None, True
    elif revoked:
        row.cancelled = True
    session.flush()
