"""Run one ended run again, or many as a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.batches import check_pace, recorded
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.filters import OwnerFilter, StatusFilter
from celery_dynbeat.api.results import BatchResult, RunInfo
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    RunNotFoundError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.settings import Settings, check_task_allowed
from celery_dynbeat.common.states import (
    RERUNNABLE,
    Action,
    Origin,
    Status,
    can_rerun,
    was_started,
)
from celery_dynbeat.common.text import MAX_BATCH
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import reruns, runs, schedules
from celery_dynbeat.store.reruns import Found, RerunFilter
from celery_dynbeat.transitions.batches import Batch
from celery_dynbeat.transitions.reruns import Record, add_reruns, is_fire_time, rerun_record

#: Runs that one call reads, and how many of them at a time.
MAX_SEARCHED = 10_000_000
SEARCHED_AT_ONCE = 10_000


class RerunCalls(Calls):
    """The calls that run ended runs again."""

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

        Raises RunNotFoundError. Raises InvalidScheduleError

        - for a run that is unfinished or ``skipped``, or whose schedule was deleted;
        - if the original run has an unfinished rerun;
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
    ) -> BatchResult:
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

        Raises ScheduleNotFoundError if the owner has no schedule ``name``. Raises
        InvalidScheduleError for an invalid argument, and if the span has too many runs to search.
        """
        check_pace(per_minute)
        checks.check_flag("now", now)
        requested_at = self._now()
        scope = self._in_scope(OwnerFilter, {"owner": owner})
        matching = _filter(
            owner=scope["owner"],
            since=since,
            until=until,
            ended_before=ended_before,
            status=status,
            name=name,
            task=task,
            now=requested_at,
        )
        # Before the write: SQLite lets no other process write during a write.
        found = self._read_many(lambda session: _search(session, matching))

        def work(session: Session) -> BatchResult:
            result = _rerun_many(
                self._context,
                session,
                matching,
                found,
                per_minute=per_minute,
                at_once=now,
            )
            return recorded(
                self._context,
                session,
                result,
                owner=matching.owner,
                name=name,
                action=Action.RERUN_MANY,
                at=requested_at,
                since=matching.since,
                until=matching.until,
                ended_before=matching.ended_before,
                statuses=list(matching.statuses),
                task=task,
                per_minute=per_minute,
                now=now,
            )

        return self._write(work)


def _filter(
    *,
    owner: str | None,
    since: datetime,
    until: datetime | None,
    ended_before: datetime | None,
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
        ended_before=min(checks.check_instant("ended_before", ended_before) or now, now),
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


class _Search(NamedTuple):
    """The first runs that match, in the order of the search, and where the others begin."""

    runs: Sequence[Found]
    left_since: datetime | None


def _search(session: Session, matching: RerunFilter) -> _Search:
    """Return the first MAX_BATCH runs that match.

    Raises InvalidScheduleError if too many runs do not match.
    """
    matching = _with_schedule(session, matching)
    found: list[Found] = []
    searched, after = 0, matching.start()
    while True:
        last = reruns.last_position(session, matching, after=after, limit=SEARCHED_AT_ONCE)
        limit = MAX_BATCH + 1 - len(found)
        found += reruns.find(session, matching, after=after, last=last, limit=limit)
        if len(found) > MAX_BATCH:
            # A search of all owners has the order of the creation. The runs that have a rerun then
            # do not match again.
            at = matching.since if matching.owner is None else found[-1].position.at
            return _Search(found[:-1], at)
        if last is None:
            return _Search(found, None)
        searched += SEARCHED_AT_ONCE
        if searched >= MAX_SEARCHED:
            raise _too_many(matching, f"more than {MAX_SEARCHED:,} runs lie in this span")
        after = last


def _rerun_many(
    context: Context,
    session: Session,
    matching: RerunFilter,
    found: _Search,
    *,
    per_minute: int,
    at_once: bool,
) -> BatchResult:
    ids = {each.schedule_id for each in found.runs}
    rows = schedules.lock_ids(session, sorted(ids))
    now = context.clock.now()
    settings = context.settings.for_pass()
    runnable = {row.id for row in rows.values() if _can_run(row, settings=settings)}
    # Under the locks: another transaction may have run them again since the search.
    run_ids = [each.position.run_id for each in found.runs]
    newest = reruns.newest_by_ids(
        session, run_ids, owner=matching.owner, statuses=matching.statuses
    )
    by_id = {row.id: row for row in newest if row.schedule_id in runnable}
    chosen = [by_id[run_id] for run_id in run_ids if run_id in by_id]
    if found.left_since is not None and not chosen:
        raise _too_many(matching, f"none of the first {MAX_BATCH:,} runs can run again")
    batch = Batch(
        Origin.RERUN,
        now=now,
        ignores_quiet_hours=at_once,
        per_minute=per_minute,
        size=len(chosen),
    )
    records = [
        rerun_record(batch, rows[run.schedule_id], run, after=run.scheduled_for) for run in chosen
    ]
    repeated = _insert(context, session, records, rows)
    created = len(records) - len(repeated)
    return BatchResult(
        batch_id=batch.id if created else None,
        created=created,
        excluded=len(found.runs) - created,
        left_since=found.left_since,
    )


def _can_run(row: Schedule, *, settings: Settings) -> bool:
    try:
        check_task_allowed(settings, owner=row.owner, task=row.task)
    except ValueError:
        return False
    return True


def _insert(
    context: Context, session: Session, records: Sequence[Record], rows: Mapping[int, Schedule]
) -> set[str]:
    """Insert the reruns of locked schedules. Return the ids of those that were repeated before."""
    settings = context.settings
    schedules.touch(session, sorted({record["schedule_id"] for record in records}))
    calendars = schedules.calendars_of(session, rows.values())

    def is_reserved(record: Record) -> bool:
        row, instant = rows[record["schedule_id"]], record["scheduled_for"]
        return is_fire_time(row, instant, calendars=calendars, settings=settings)

    return add_reruns(session, records, is_reserved=is_reserved, settings=settings)


def _too_many(matching: RerunFilter, problem: str) -> InvalidScheduleError:
    rule = (
        f"{problem} (until = {matching.until}), the limit of one call: split the span, or name a"
        " schedule with name= or an owner with for_owner()"
    )
    return checks.invalid("since", matching.since, rule)


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
    newest = next(iter(reruns.newest_of_family(session, run)), run)
    if newest.finished_at is None:
        rule = f"its rerun {newest.id} is {newest.status}: wait until it ends"
        raise checks.invalid("run_id", newest.rerun_of, rule)
    batch = Batch(Origin.RERUN, now=now, ignores_quiet_hours=at_once)
    after = max(newest.scheduled_for, run.scheduled_for)
    record = rerun_record(batch, row, run, after=after)
    if _insert(context, session, [record], {row.id: row}):
        rule = (
            "it was rerun after the snapshot of this transaction: repeat the transaction, or use"
            " READ COMMITTED"
        )
        raise checks.invalid("run_id", run.id, rule)
    run_id = str(record["id"])
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


def _check_ended(run: Run) -> None:
    if not was_started(run.status, run.attempt):
        rule = (
            "the fire time was skipped, there is no run to repeat: call backfill() with since ="
            f" {run.scheduled_for} and a later until"
        )
        raise checks.invalid("run_id", run.id, rule)
    if not can_rerun(run.status, run.attempt):
        raise checks.invalid("run_id", run.id, f"the run is {run.status}: wait until it ends")
