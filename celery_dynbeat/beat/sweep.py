"""Sweep overdue runs: publish runs again that no worker has started, under the same id.

A run is overdue in these states:

- ``pending`` for longer than dynbeat_dispatch_timeout: beat died between commit and publish, the
  broker was unreachable, or its confirm was lost. A manual run is overdue when it is created.
- ``pending`` because its queue is refused or its router raises: overdue when the next try is due.
- ``pending`` and buffered under ``overlap="buffer_one"``: the worker that ends the previous run
  makes it overdue at once. The sweep also checks it, because that worker may die.
- ``sent`` for longer than dynbeat_resend_after: the broker lost its queue, or the queue is long. If
  both messages arrive, the guard lets one start.
- ``retrying`` after a failure, by the retry policy of its schedule: overdue when the retry is due.
  It becomes ``pending`` first. Runs that wait for Celery's retry are not overdue.

Not every overdue run is published again:

- past its ``expires_after`` before its first start: ``expired``;
- its schedule was paused or deleted: ``revoked``;
- its task is not allowed, or its arguments cannot be read: ``failed``, and its schedule is
  quarantined.
- buffered, and the previous run has not ended: it stays ``pending``.

The sweep leases each run: it moves ``overdue_at`` to the future in the same transaction. So two
beats never publish the same run at once. If beat dies, the next sweep after the lease repeats it.
"""

from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings, check_task_allowed
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import REQUESTED_ORIGINS, Origin
from celery_dynbeat.db.statements import Row, RowLockedError, format_error
from celery_dynbeat.planning import max_run_time
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import OverdueRun, unfinished
from celery_dynbeat.store.schedules import due, run_rows
from celery_dynbeat.telemetry import emit_on_commit, events

if TYPE_CHECKING:
    from celery_dynbeat.store.slots import WaitingRun


class Swept(NamedTuple):
    """The number of overdue runs that were handled, and the runs to publish again."""

    handled: int
    outgoing: Sequence[OutgoingRun]


class _Publishable(NamedTuple):
    row: OverdueRun
    run: OutgoingRun


def take_overdue(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    since: datetime | None = None,
) -> Swept:
    """Take a batch of overdue runs and return those to publish again.

    They are leased to this beat for dynbeat_dispatch_timeout. No run is overdue before ``since``.
    """
    limit = settings.batch_size
    orphans = runs.revoke_orphans(session, now=now, limit=limit, since=since)
    rows = runs.lock_overdue(session, now=now, limit=limit, since=since)
    leased = {row.id for row in rows if row.status == Status.RETRYING}
    active = _revoke_paused(session, rows, now=now)
    leased_until = now + settings.dispatch_timeout
    active = _make_pending(session, active, leased_until=leased_until)
    publishable = _fail_unpublishable(session, active, leased, now=now, settings=settings)
    live = _expire(session, publishable, now=now)
    unleased = [each.run.run_id for each in live if each.run.run_id not in leased]
    runs.lease(session, unleased, overdue_at=leased_until)
    buffered = _buffered(session, [each.row for each in live], now=now, settings=settings)
    outgoing = [
        each.run._replace(retry_taken_at=now) if each.run.run_id in leased else each.run
        for each in live
        if each.run.run_id not in buffered
    ]
    return Swept(orphans + len(rows), outgoing)


def _make_pending(
    session: Session, rows: Sequence[OverdueRun], *, leased_until: datetime
) -> Sequence[OverdueRun]:
    """Move the retrying runs to pending and lease them; return all rows as they are then.

    One UPDATE does both: a second one of the same row makes PostgreSQL check the foreign key, which
    waits for a schedule that another transaction has locked.
    """
    retrying = [row.id for row in rows if row.status == Status.RETRYING]
    if not retrying:
        return rows
    runs.make_retries_pending(session, retrying, leased_until=leased_until)
    return [
        row._replace(status=Status.PENDING, retries=row.retries + 1)
        if row.status == Status.RETRYING
        else row
        for row in rows
    ]


def _revoke_paused(
    session: Session, rows: Sequence[OverdueRun], *, now: datetime
) -> Sequence[OverdueRun]:
    """Revoke the runs of paused schedules, except requested ones; return the other rows."""
    paused = [row.id for row in rows if not row.enabled and row.origin not in REQUESTED_ORIGINS]
    runs.revoke(session, paused, now=now, reason="the schedule was paused")
    return [row for row in rows if row.id not in paused]


def _fail_unpublishable(
    session: Session,
    rows: Sequence[OverdueRun],
    leased: Container[str],
    *,
    now: datetime,
    settings: Settings,
) -> Sequence[_Publishable]:
    """Fail the runs that must not or cannot be sent; return the others."""
    publishable: list[_Publishable] = []
    for row in rows:
        try:
            check_task_allowed(settings, owner=row.owner, task=row.task)
            publishable.append(
                _Publishable(row, run_rows.recorded_outgoing_run(row, settings=settings))
            )
        # A task that is no longer allowed, unreadable arguments: only this run is affected.
        except Exception as error:  # noqa: BLE001
            if not _fail(session, row, error, now=now) and row.id not in leased:
                runs.lease(session, [row.id], overdue_at=now + settings.dispatch_timeout)
    return publishable


def _fail(session: Session, row: OverdueRun, error: Exception, *, now: datetime) -> bool:
    """Fail the run and quarantine its schedule; return False if the schedule is locked."""
    text = format_error(error)
    quarantine = partial(due.quarantine, schedule_id=row.schedule_id, version=row.version)
    try:
        is_quarantined = quarantine(session, error=text)
    except RowLockedError:
        # Both later: the error of the schedule explains why its run failed.
        return False
    runs.mark_unpublishable(session, run_id=row.id, now=now, error=str(error))
    unpublishable = events.RunUnpublishable(
        run_id=row.id,
        owner=row.owner,
        schedule=row.name,
        # Of the attempt that the message was to start.
        attempt=row.attempt + 1,
        error=str(error),
    )
    emit_on_commit(session, unpublishable)
    if is_quarantined:
        quarantined = events.ScheduleQuarantined(
            schedule_id=row.schedule_id, owner=row.owner, schedule=row.name, error=text, at=now
        )
        emit_on_commit(session, quarantined)
    return True


def _expire(
    session: Session, overdue: Sequence[_Publishable], *, now: datetime
) -> Sequence[_Publishable]:
    """Mark the runs that have expired; return the others."""
    expired = {
        run.run_id for _, run in overdue if run.expires_at is not None and run.expires_at <= now
    }
    runs.mark_expired(session, sorted(expired), now=now)
    return [each for each in overdue if each.run.run_id not in expired]


def _buffered(
    session: Session, rows: Sequence[OverdueRun], *, now: datetime, settings: Settings
) -> set[str]:
    """Return the ids of the runs that wait for another run of their schedule to end."""
    buffered = [
        row
        for row in rows
        if (row.overlap or settings.overlap) == "buffer_one"
        and row.origin == Origin.SCHEDULE
        and row.sent_at is None
    ]
    others = unfinished.unfinished_runs(session, list({row.schedule_id for row in buffered}))
    return {row.id for row in buffered if _is_blocked(row, others, now, settings)}


def _is_blocked(row: OverdueRun, others: Iterable[Row], now: datetime, settings: Settings) -> bool:
    return any(
        other.id != row.id
        and is_previous(other, row, now=now, settings=settings)
        # Of two runs that have not been sent, the older one goes first.
        and (other.sent_at is not None or other.scheduled_for < row.scheduled_for)
        for other in others
    )


def is_previous(
    other: Row, row: "OverdueRun | WaitingRun", *, now: datetime, settings: Settings
) -> bool:
    """Return whether ``row`` must not overlap an unfinished run, which belongs to its schedule."""
    counts_for = max_run_time(row.max_run_time, settings)
    return (
        other.schedule_id == row.schedule_id
        and (other.started_at is None or now - other.started_at < counts_for)
        # A run that waits for a slot does not count, because it may be waiting for this run's slot.
        and (other.status != Status.PENDING or other.overdue_at is not None)
    )
