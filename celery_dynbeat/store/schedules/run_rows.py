"""Conversions of a schedule's row to history rows and to outgoing runs, and their insertion."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Status, Wait
from celery_dynbeat.db.models import Origin, Schedule
from celery_dynbeat.planning import expires_at
from celery_dynbeat.planning.plan import OutgoingRun, Skip
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import OverdueRun
from celery_dynbeat.store.schedules.due import DueSchedule

if TYPE_CHECKING:
    from celery_dynbeat.common.retry import Retry


def check_payload(row: DueSchedule | OverdueRun) -> None:
    """Raise TypeError if Python cannot read the arguments of the row: they are None."""
    # The API rejects such arguments. Manual SQL can write numbers of 5,000 digits.
    if None in (row.args, row.kwargs, row.options):
        column = next(name for name in ("args", "kwargs", "options") if getattr(row, name) is None)
        msg = f"{column} has too many digits or levels to be read"
        raise TypeError(msg)


def new_outgoing_run(
    row: DueSchedule | Schedule,
    fire_at: datetime,
    *,
    now: datetime,
    settings: Settings,
    origin: Origin = Origin.SCHEDULE,
    next_fire_at: datetime | None = None,
) -> OutgoingRun:
    """Return a new outgoing run of the schedule in ``row``.

    ``next_fire_at`` is the next fire time of the schedule after it.
    """
    return _outgoing(
        row,
        settings,
        run_id=new_run_id(now),
        schedule_id=row.id,
        scheduled_for=fire_at,
        origin=origin,
        expires_at=expires_at(row.expires_after, created_at=now, settings=settings),
        next_fire_at=next_fire_at,
    )


def recorded_outgoing_run(row: OverdueRun, *, settings: Settings) -> OutgoingRun:
    """Return the outgoing run of a recorded run."""
    check_payload(row)
    return _outgoing(
        row,
        settings,
        run_id=row.id,
        schedule_id=row.schedule_id,
        # A rerun has the fire time of its original run.
        scheduled_for=row.nominal_at or row.scheduled_for,
        origin=row.origin,
        expires_at=expiry_of(row, settings=settings),
        attempt=row.attempt,
        retries=row.retries,
        unstarted_since=None if row.attempt else row.sent_at,
        # The next fire time replaces no run that was requested.
        next_fire_at=row.next_fire_at if row.origin == Origin.SCHEDULE else None,
        ready_at=row.ready_at,
    )


def expiry_of(row: OverdueRun, *, settings: Settings) -> datetime | None:
    """Return when a recorded run expires, or None if it never does.

    A run with an attempt that counts has started in time. The attempt of a run that its task has
    postponed does not count. A run of a batch expires only after it could be sent.
    """
    since = row.created_at if row.batch_id is None else row.ready_at
    if not row.is_unstarted or since is None:
        return None
    return expires_at(row.expires_after, created_at=since, settings=settings)


def _outgoing(
    row: DueSchedule | OverdueRun | Schedule, settings: Settings, **of_run: Any
) -> OutgoingRun:
    return OutgoingRun(
        owner=row.owner,
        name=row.name,
        version=row.version,
        task=row.task,
        args=row.args,
        kwargs=row.kwargs,
        options=row.options,
        overlap=row.overlap or settings.overlap,
        pings=_may_ping(settings, of_run["origin"]) and not isinstance(row, Schedule) and row.pings,
        retry=_retry(row, settings),
        **of_run,
    )


def _retry(row: DueSchedule | OverdueRun | Schedule, settings: Settings) -> "Retry | None":
    """Return the policy that applies to the schedule in ``row``, or None without a retry."""
    if row.retry is None and settings.retry is None:
        return None
    # A late import: few schedules have a policy.
    from celery_dynbeat.common.retry import effective_retry  # noqa: PLC0415

    retry = effective_retry(row.retry, settings.retry)
    return retry if retry is not None and retry.max_retries else None


def _may_ping(settings: Settings, origin: Origin) -> bool:
    # A backfill is about the past. Its pings would hide that the schedule does not run now.
    return settings.ping_hosts is not None and origin != Origin.BACKFILL


def pending_row(
    run: OutgoingRun, *, now: datetime, overdue_at: datetime, waits_for: Wait | None = None
) -> dict[str, Any]:
    """Return the row of a pending run. The sweep sends it after ``overdue_at``."""
    return {
        "schedule_id": run.schedule_id,
        "owner": run.owner,
        "name": run.name,
        "task": run.task,
        "id": run.run_id,
        "scheduled_for": run.scheduled_for,
        "status": Status.PENDING,
        "origin": run.origin,
        "created_at": now,
        "overdue_at": overdue_at,
        "finished_at": None,
        "waited_for": waits_for,
        "ready_at": run.ready_at,
        "fire_count": 1,
        "error": None,
    }


def skipped_row(row: Any, skip: Skip, *, now: datetime) -> dict[str, Any]:
    """Return the row of skipped fire times of the schedule in ``row``."""
    return {
        "schedule_id": row.id,
        "owner": row.owner,
        "name": row.name,
        "task": row.task,
        "id": new_run_id(now),
        "scheduled_for": skip.newest,
        "status": Status.SKIPPED,
        "origin": Origin.SCHEDULE,
        "created_at": now,
        "overdue_at": None,
        "finished_at": now,
        "waited_for": None,
        "ready_at": None,
        "fire_count": skip.count,
        "error": skip.reason,
    }


def _needs_place(record: Mapping[str, Any]) -> bool:
    return record["status"] == Status.PENDING and record.get("waited_for") != Wait.BATCH


class AddedRuns(NamedTuple):
    """The ids of the inserted rows, and of those that wait for a place."""

    ids: set[str]
    waiting: frozenset[str] = frozenset()


def add_runs(
    session: Session, records: Sequence[Mapping[str, Any]], *, settings: Settings
) -> AddedRuns:
    """Insert rows of history. A fire time that already has a row keeps it.

    A run of an owner with a limit on its runs waits for a place: it is ``pending`` without
    ``overdue_at``, so no sweep sends it before beat admits it (``beat.admission``). A run of a
    backfill or a rerun waits for its turn first. The sweep then lets it wait for a place.
    """
    if not settings.may_cap_runs:
        return AddedRuns(runs.add(session, records))
    of_pass = settings.for_pass()
    pending = [each for each in records if _needs_place(each)]
    owners = {each["owner"] for each in pending}
    keys = {owner: cap.key for owner in owners if (cap := of_pass.cap_of(owner)) is not None}
    if not keys:
        return AddedRuns(runs.add(session, records))
    waiting = {each["id"] for each in pending if each["owner"] in keys}
    added = runs.add(
        session,
        [
            {
                **each,
                "overdue_at": None,
                # Beat asks for a hold before it gives a place.
                "waited_for": (
                    Wait.PREVIOUS if each.get("waited_for") == Wait.PREVIOUS else Wait.PLACE
                ),
                "running_key": keys[each["owner"]],
            }
            if each["id"] in waiting
            else {**each, "waited_for": each.get("waited_for"), "running_key": None}
            for each in records
        ],
    )
    return AddedRuns(added, frozenset(waiting & added))
