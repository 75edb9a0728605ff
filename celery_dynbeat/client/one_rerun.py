"""Run one ended run again."""

from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.errors import RunNotFoundError
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.run_states import RERUNNABLE, Status
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.planning.schedule_spec import max_run_time
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.runtime.reruns import Record, add_reruns, is_fire_time, rerun_record
from celery_dynbeat.store import overlaps, reruns, runs, schedules


def find_run(session: Session, *, owner: str | None, run_id: str) -> Run:
    """Return the run; ``owner`` None means any owner. Raises RunNotFoundError."""
    run = runs.get(session, run_id=run_id)
    if run is None or (owner is not None and run.owner != owner):
        raise RunNotFoundError(owner=owner, run_id=run_id)
    return run


def rerun(context: Context, session: Session, run: Run) -> Run:
    """Record a pending rerun that is overdue already, so that any beat publishes it at once.

    Raises InvalidScheduleError if the run cannot run again now.
    """
    row = _lock_schedule(session, run)
    now = context.clock.now()
    _check_ended(run)
    task_allowlist.check(context.settings, owner=row.owner, task=row.task)
    schedules.touch(session, [row.id])
    newest = next(iter(reruns.newest_of_family(session, run)), run)
    _check_may_overlap(context, session, row, newest, now=now)
    run_id = _add(context, session, row, run, newest, now=now)
    context.notifier.notify(session)
    made = runs.get(session, run_id=run_id)
    assert made is not None  # noqa: S101 - inserted above
    return made


def _lock_schedule(session: Session, run: Run) -> Schedule:
    """Return the schedule of ``run``, locked, and read the run again under the lock."""
    row = None
    if run.schedule_id is not None:
        row = schedules.lock_id(session, schedule_id=run.schedule_id)
    session.refresh(run)
    if row is None or run.schedule_id is None:
        rule = f"schedule {run.name!r} was deleted: create() it, and call run_now()"
        raise checks.invalid("run_id", run.id, rule)
    return row


def _add(
    context: Context, session: Session, row: Schedule, run: Run, newest: Run, *, now: datetime
) -> str:
    """Insert the rerun of ``run`` and return its id. ``newest`` is the last run of the family."""
    record = rerun_record(
        row,
        run,
        run_id=new_run_id(now),
        after=max(newest.scheduled_for, run.scheduled_for),
        created_at=now,
        overdue_at=now,
    )

    def is_reserved(record: Record) -> bool:
        return is_fire_time(row, record["scheduled_for"], settings=context.settings)

    if add_reruns(session, [record], is_reserved=is_reserved):
        rule = (
            "it was rerun after the snapshot of this transaction: repeat the transaction, or use"
            " READ COMMITTED"
        )
        raise checks.invalid("run_id", run.id, rule)
    return str(record["id"])


def _check_ended(run: Run) -> None:
    if run.status == Status.SKIPPED:
        rule = (
            "the fire time was skipped, there is no run to repeat: call backfill() with since ="
            f" {run.scheduled_for} and a later until"
        )
        raise checks.invalid("run_id", run.id, rule)
    if run.status not in RERUNNABLE:
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
    for other in overlaps.unfinished_runs(session, [row.id]):
        if other.started_at is None or now - other.started_at < counts_for:
            rule = (
                f"schedule {row.name!r} has overlap = {overlap!r} and the unfinished run"
                f" {other.id}: wait until it ends, or call rerun_many(), which waits"
            )
            raise checks.invalid("run_id", newest.rerun_of or newest.id, rule)
