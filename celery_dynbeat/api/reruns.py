"""Run one ended run again, or many in the background."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.filters import OwnerFilter, StatusFilter
from celery_dynbeat.api.requests import recorded
from celery_dynbeat.api.results import RequestInfo, RunInfo
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    RunNotFoundError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.settings import check_task_allowed
from celery_dynbeat.common.states import (
    RERUNNABLE,
    Action,
    RequestKind,
    Status,
    Wait,
    can_rerun,
    was_started,
)
from celery_dynbeat.common.text import MAX_REQUEST_BATCH
from celery_dynbeat.db.models import Request, Run, Schedule
from celery_dynbeat.planning import max_run_time
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds, requests, reruns, runs, schedules
from celery_dynbeat.store.reruns import RerunFilter
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.transitions.reruns import Record, add_reruns, is_fire_time, rerun_record

#: Runs of one request.
MAX_RUNS = 100_000
#: Runs that the count of a request reads, and how many of them at a time.
MAX_SEARCHED = 10_000_000
SEARCHED_AT_ONCE = 10_000


class RerunCalls(Calls):
    """The calls that run ended runs again."""

    def rerun(
        self,
        run_id: str,
        *,
        now: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> RunInfo:
        """Run an ended run again immediately, even if its schedule is paused.

        The new run has the origin ``"rerun"``, and its ``rerun_of`` is the id of the original run.
        The task receives the original fire time. The run uses the schedule's current task,
        arguments, options and policies. ``expires_after`` counts from this call. A beat sends the
        run within milliseconds after the commit. If the owner is held, the run waits for the
        release. In the quiet hours of the owner, it waits for their end, unless ``now`` is true.
        ``actor`` and ``reason`` are recorded in the audit; ``acting()`` sets their
        defaults.

        Raises RunNotFoundError. Raises InvalidScheduleError

        - for a run that is unfinished or ``skipped``, or whose schedule was deleted;
        - if the original run has an unfinished rerun;
        - if the overlap policy is not ``"allow"`` and the schedule has an unfinished run;
        - if dynbeat_allowed_tasks excludes the task;
        - in a MySQL transaction whose snapshot is older than a rerun of the same run.
        """
        run_id = checks.check_run_id("run_id", run_id)
        checks.check_flag("now", now)

        def work(session: Session) -> RunInfo:
            run = _find_run(session, owner=self._owner, run_id=run_id)
            new = RunInfo.of(_rerun(self._context, session, run, owner=self._owner, at_once=now))
            values = {"run_id": new.id, "rerun_of": run_id, "now": now}
            edit = audit.Edit(owner=new.owner, name=new.name, action=Action.RERUN, new=values)
            audit.record(self._context, session, [edit], now=new.created_at)
            return new

        return self._write(session, work, actor=actor, reason=reason)

    def rerun_many(
        self,
        *,
        owner: str | None = None,
        since: datetime,
        until: datetime | None = None,
        status: StatusFilter = (Status.FAILED, Status.LOST),
        name: str | None = None,
        task: str | None = None,
        batch_size: int = 100,
        now: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> RequestInfo:
        """Run ended runs with since <= fire time < until again, in the background.

        - ``owner`` selects the runs of one owner. The calls of one owner accept only that owner. In
          the calls across owners, None means all owners, and only these calls can see such a
          request.
        - ``since`` and ``until`` are aware datetimes. If ``until`` is None, it is the current time.
        - ``status`` is one or several of ``failed``, ``lost``, ``revoked``, ``expired`` and
          ``succeeded``.
        - ``name`` selects runs of the schedules with this name, and ``task`` runs that had this
          task.
        - At most ``batch_size`` (1 to 1,000) of the new runs are unfinished at any time.
        - In the quiet hours of its owner, a run waits for their end, unless ``now`` is true.

        Beat creates the new runs while no schedule is due. If runs of a schedule must not overlap,
        beat creates one run at a time, and only while the schedule has no unfinished run. Runs that
        have a rerun do not match, but their newest rerun can match. A second call therefore repeats
        nothing. A run is excluded if its schedule is deleted or may not run its task. A paused
        schedule runs its reruns.

        ``actor`` and ``reason`` are recorded in the audit; ``acting()`` sets their defaults.

        Raises ScheduleNotFoundError if the owner has no schedule ``name``. Raises
        InvalidScheduleError for an invalid argument, and if more than 100,000 runs match.
        """
        checks.check_flag("now", now)
        requested_at = self._context.now(session)
        scope = self._in_scope(OwnerFilter, {"owner": owner})
        matching = _filter(
            owner=scope["owner"],
            since=since,
            until=until,
            status=status,
            name=name,
            task=task,
            now=requested_at,
        )
        checks.check_integer("batch_size", batch_size, minimum=1, maximum=MAX_REQUEST_BATCH)

        def search(session: Session) -> tuple[RerunFilter, int]:
            found = _with_schedule(session, matching)
            return found, _count(session, found)

        # Before the write: SQLite lets no other process write during a write.
        found, total = self._context.read_many(session, search)

        def work(session: Session) -> RequestInfo:
            row = _new_row(found, total=total, batch_size=batch_size)
            row.ignores_quiet_hours = now
            requests.add(session, row)
            if total:
                self._context.notifier.notify(session)
            return recorded(self._context, session, row, Action.RERUN_MANY, now=requested_at)

        return self._write(session, work, actor=actor, reason=reason)


def _filter(
    *,
    owner: str | None,
    since: datetime,
    until: datetime | None,
    status: StatusFilter,
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
        owner=owner,
        name=None if name is None else checks.check_name("name", name),
        schedule_id=None,
        task=None if task is None else checks.check_name("task", task),
        statuses=_check_statuses(status),
        since=since,
        until=min(until, now),
        requested_at=now,
    )


def _check_statuses(status: StatusFilter) -> tuple[str, ...]:
    if status == Status.SKIPPED:
        raise checks.invalid(
            "status",
            status,
            "has no run to repeat: call backfill(), or rerun() for a run that its task skipped",
        )
    statuses = checks.check_choices("status", status, *RERUNNABLE)
    if not statuses:
        raise checks.invalid("status", status, f"must be one or several of {', '.join(RERUNNABLE)}")
    return statuses


def _with_schedule(session: Session, matching: RerunFilter) -> RerunFilter:
    """Return the filter with the id of its schedule, if it names a schedule."""
    if matching.owner is None or matching.name is None:
        return matching
    schedule_id = schedules.find_id(session, owner=matching.owner, name=matching.name)
    if schedule_id is None:
        raise ScheduleNotFoundError(owner=matching.owner, name=matching.name)
    return replace(matching, schedule_id=schedule_id)


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


def _new_row(matching: RerunFilter, *, total: int, batch_size: int) -> Request:
    start, now = matching.start(), matching.requested_at
    return Request(
        kind=RequestKind.RERUN,
        owner=matching.owner,
        name=matching.name,
        task=matching.task,
        statuses=list(matching.statuses),
        since=matching.since,
        until=matching.until,
        batch_size=batch_size,
        total=total,
        after_at=start.at,
        after_id=start.run_id,
        next_run_at=now if total else None,
        created_at=now,
        finished_at=None if total else now,
    )


def _find_run(session: Session, *, owner: str | None, run_id: str) -> Run:
    """Return the run; ``owner=None`` means any owner. Raises RunNotFoundError."""
    run = runs.get(session, run_id=run_id)
    if run is None or (owner is not None and run.owner != owner):
        raise RunNotFoundError(owner=owner, run_id=run_id)
    return run


def _rerun(
    context: Context, session: Session, run: Run, *, owner: str | None, at_once: bool
) -> Run:
    """Record a pending rerun that is overdue already, so that any beat publishes it at once.

    Raises InvalidScheduleError if the run cannot run again now.
    """
    row = _lock_schedule(session, run, owner=owner)
    now = context.clock.now()
    _check_ended(run)
    check_task_allowed(context.settings, owner=row.owner, task=row.task)
    schedules.touch(session, [row.id])
    newest = next(iter(reruns.newest_of_family(session, run)), run)
    _check_may_overlap(context, session, row, newest, now=now)
    run_id = _add(context, session, row, run, newest, now=now, at_once=at_once)
    context.notifier.notify(session)
    made = runs.get(session, run_id=run_id)
    assert made is not None  # noqa: S101 - inserted above
    return made


def _lock_schedule(session: Session, run: Run, *, owner: str | None) -> Schedule:
    """Return the schedule of ``run``, locked, and read the run again under the lock.

    Raises RunNotFoundError if the schedule moved from ``owner`` to another owner.
    """
    row = None
    if run.schedule_id is not None:
        row = schedules.lock_id(session, schedule_id=run.schedule_id)
    session.refresh(run)
    if row is None or run.schedule_id is None:
        rule = f"schedule {run.name!r} was deleted: create() it, and call run_now()"
        raise checks.invalid("run_id", run.id, rule)
    if owner is not None and row.owner != owner:
        raise RunNotFoundError(owner=owner, run_id=run.id)
    return row


def _add(
    context: Context,
    session: Session,
    row: Schedule,
    run: Run,
    newest: Run,
    *,
    now: datetime,
    at_once: bool,
) -> str:
    """Insert the rerun of ``run`` and return its id. ``newest`` is the last run of the family.

    If ``at_once`` is true, it does not wait for the end of quiet hours.
    """
    waits_for = None
    if holds.in_force(session, owner=row.owner, now=now):
        waits_for = Wait.HOLD
    elif not at_once and row.quiet_hours is not None:
        waits_for = Wait.QUIET
    record = rerun_record(
        row,
        run,
        run_id=new_run_id(now),
        after=max(newest.scheduled_for, run.scheduled_for),
        created_at=now,
        overdue_at=now,
        # The sweep asks before it sends a run that waits.
        waited_for=waits_for,
        ignores_quiet_hours=at_once,
    )

    calendars = schedules.calendars_of(session, [row])

    def is_reserved(record: Record) -> bool:
        instant = record["scheduled_for"]
        return is_fire_time(row, instant, calendars=calendars, settings=context.settings)

    added = add_reruns(session, [record], is_reserved=is_reserved, settings=context.settings)
    if added.repeated:
        rule = (
            "it was rerun after the snapshot of this transaction: repeat the transaction, or use"
            " READ COMMITTED"
        )
        raise checks.invalid("run_id", run.id, rule)
    return str(record["id"])


def _check_ended(run: Run) -> None:
    if not was_started(run.status, run.attempt):
        rule = (
            "the fire time was skipped, there is no run to repeat: call backfill() with since ="
            f" {run.scheduled_for} and a later until"
        )
        raise checks.invalid("run_id", run.id, rule)
    if not can_rerun(run.status, run.attempt):
        raise checks.invalid("run_id", run.id, f"the run is {run.status}: wait until it ends")


def _check_may_overlap(
    context: Context, session: Session, row: Schedule, newest: Run, *, now: datetime
) -> None:
    """Raise InvalidScheduleError if an unfinished run is in the way."""
    if newest.finished_at is None:
        rule = f"its rerun {newest.id} is {newest.status}: wait until it ends"
        raise checks.invalid("run_id", newest.rerun_of, rule)
    overlap = row.overlap or context.settings.overlap
    if overlap == "allow":
        return
    counts_for = max_run_time(row.max_run_time, context.settings)
    for other in unfinished.unfinished_runs(session, [row.id]):
        if other.started_at is None or now - other.started_at < counts_for:
            rule = (
                f"schedule {row.name!r} has overlap = {overlap!r} and the unfinished run"
                f" {other.id}: wait until it ends, or call rerun_many(), which waits"
            )
            raise checks.invalid("run_id", newest.rerun_of or newest.id, rule)
