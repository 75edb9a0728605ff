"""Sweep overdue runs: publish runs again that no worker has started, under the same id.

A run is overdue in these states:

- ``pending`` for longer than dynbeat_dispatch_timeout: beat died between commit and publish, the
  broker was unreachable, or its confirm was lost. A manual run is overdue when it is created.
- ``pending`` and of a backfill or a rerun: overdue at its turn in its batch.
- ``pending`` because its queue is refused or its router raises: overdue when the next try is due.
- ``pending`` and buffered under ``overlap="buffer_one"``: the worker that ends the previous run
  makes it overdue at once. The sweep also checks it, because that worker may die.
- ``sent`` for longer than dynbeat_resend_after: the broker lost its queue, or the queue is long. If
  both messages arrive, the guard lets one start.
- ``retrying`` after a failure, by the retry policy of its schedule: overdue when the retry is due.
  It becomes ``pending`` first, and waits for a place if a limit applies to the runs of its owner.
  Runs that wait for Celery's retry are not overdue.

Not every overdue run is published again:

- past its ``expires_after`` before its first start: ``expired``;
- its schedule was paused or deleted: ``revoked``. A retry and a run that waited are also revoked
  if their schedule is quarantined;
- its task is not allowed, or its arguments cannot be read: ``failed``, and its schedule is
  quarantined.
- buffered, and the previous run has not ended: it stays ``pending``.
- a retry or a run that waited, while its owner is held or in quiet hours: it waits (``waiting``).
- of a backfill or a rerun whose schedule has an unfinished run, unless its runs may overlap: it
  waits (``waiting``).
- a run that waited without a place, if a limit applies to the runs of its owner: it waits for one.

The sweep leases each run: it moves ``overdue_at`` to the future in the same transaction. So two
beats never publish the same run at once. If beat dies, the next sweep after the lease repeats it.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.beat import outgoing_runs
from celery_dynbeat.beat.outgoing_runs import expiry_of
from celery_dynbeat.beat.refused import FULL_BATCH, Part, changing
from celery_dynbeat.beat.waiting import (
    asks,
    is_previous,
    is_requested,
    without_blocked,
    without_waiting,
)
from celery_dynbeat.common.errors import concerns_process
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import WITHOUT_PLACE, Status
from celery_dynbeat.db.models import Origin
from celery_dynbeat.db.statements import Row, RowLockedError, format_error
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import OverdueRun, unfinished
from celery_dynbeat.store.schedules import due
from celery_dynbeat.telemetry import emit_on_commit, events

#: A run that waits for a place has ``ready_at`` when it gets the place.
_CHECKED = frozenset(WITHOUT_PLACE)


class Swept(NamedTuple):
    """The number of overdue runs that were handled, and the runs to publish again.

    ``has_waiting`` means that runs wait for a place before their retry.
    """

    handled: int
    outgoing: Sequence[OutgoingRun]
    has_waiting: bool = False


class _Publishable(NamedTuple):
    row: OverdueRun
    run: OutgoingRun


def take_overdue(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    since: datetime | None = None,
    part: Part = FULL_BATCH,
) -> Swept:
    """Take a batch of overdue runs and return those to publish again.

    They are leased to this beat for dynbeat_dispatch_timeout. No run is overdue before ``since``.
    ``part`` is the part of the overdue runs to take. Raises RefusedBatchError if the database
    refuses a change of a run.
    """
    first: dict[str, Any] = {"limit": part.limit, "except_ids": part.except_ids}
    orphans = runs.lock_orphans(session, now=now, since=since, **first)
    with changing(session, orphans, part):
        reason = "the schedule was deleted"
        runs.revoke(session, [row.id for row in orphans], now=now, reason=reason)
    rows = runs.lock_overdue(session, now=now, since=since, **first)
    with changing(session, rows, part):
        return _take(session, rows, len(orphans), now=now, settings=settings)


def _take(
    session: Session,
    rows: Sequence[OverdueRun],
    orphans: int,
    *,
    now: datetime,
    settings: Settings,
) -> Swept:
    leased = {row.id for row in rows if row.status == Status.RETRYING}
    active = _revoke_stopped(session, rows, now=now)
    active = _expire(session, active, now=now, settings=settings)
    active = without_waiting(session, active, now=now, settings=settings)
    active = without_blocked(session, active, now=now, settings=settings)
    leased_until = now + settings.dispatch_timeout
    pending = _make_pending(session, active, now=now, leased_until=leased_until, settings=settings)
    has_waiting = len(pending) < len(active)
    buffered = _buffered(session, pending, now=now, settings=settings)
    ready = {row.id for row in pending if _has_waited(row)} - buffered
    active = [row._replace(ready_at=now) if row.id in ready else row for row in pending]
    live = _fail_unpublishable(session, active, leased, now=now, settings=settings)
    taken = {each.row.id for each in live} - leased
    runs.lease(session, sorted(taken - ready), overdue_at=leased_until)
    runs.lease(session, sorted(taken & ready), overdue_at=leased_until, ready_at=now)
    outgoing = [
        each.run._replace(retry_taken_at=now if each.row.id in leased else None)
        for each in live
        if each.row.id not in buffered
    ]
    return Swept(orphans + len(rows), outgoing, has_waiting=has_waiting)


def _make_pending(
    session: Session,
    rows: Sequence[OverdueRun],
    *,
    now: datetime,
    leased_until: datetime,
    settings: Settings,
) -> Sequence[OverdueRun]:
    """Move the retrying runs to pending and lease them; return all rows as they are then.

    A run of an owner with a limit on its runs waits for a place instead, and is left out. The same
    is true for a run that waited without a place.

    One UPDATE does both: a second one of the same row makes PostgreSQL check the foreign key, which
    waits for a schedule that another transaction has locked.
    """
    retrying = [row for row in rows if row.status == Status.RETRYING]
    placeless = [row for row in rows if _has_waited(row) and row.waited_for in WITHOUT_PLACE]
    if not retrying and not placeless:
        return rows
    waiting: defaultdict[str, list[str]] = defaultdict(list)
    resuming: defaultdict[str, list[str]] = defaultdict(list)
    for row in placeless:
        if row.status == Status.PENDING and (key := _running_key(row, settings)) is not None:
            resuming[key].append(row.id)
    for key, ids in resuming.items():
        runs.wait_for_place(session, ids, running_key=key)
    for row in retrying:
        if (key := _running_key(row, settings)) is not None:
            waiting[key].append(row.id)
    for key, ids in waiting.items():
        runs.make_retries_pending(session, ids, leased_until=None, running_key=key)
    left_out = {run_id for ids in (*waiting.values(), *resuming.values()) for run_id in ids}
    leased = [row for row in retrying if row.id not in left_out]
    for has_waited, ready_at in ((False, None), (True, now)):
        ids = [row.id for row in leased if _has_waited(row) == has_waited]
        runs.make_retries_pending(session, ids, leased_until=leased_until, ready_at=ready_at)
    return [
        row._replace(status=Status.PENDING, retries=row.retries + 1)
        if row.status == Status.RETRYING
        else row
        for row in rows
        if row.id not in left_out
    ]


def _running_key(row: OverdueRun, settings: Settings) -> str | None:
    """Return the key of the place that the run needs, or None if it needs none."""
    limits = settings.owner_limits
    cap = limits.cap_of(row.owner)
    if cap is None:
        return None if limits.knows(row.owner) else row.running_key
    return cap.key


def _revoke_stopped(
    session: Session, rows: Sequence[OverdueRun], *, now: datetime
) -> Sequence[OverdueRun]:
    """Revoke the runs of paused schedules, except requested ones; return the other rows.

    Of a quarantined schedule, only the retries and the runs that waited are revoked. The message of
    another run may be in its queue.
    """
    planned = [row for row in rows if not is_requested(row)]
    paused = {row.id for row in planned if not row.enabled}
    quarantined = {row.id for row in planned if row.is_quarantined and asks(row)} - paused
    runs.revoke(session, sorted(paused), now=now, reason="the schedule was paused")
    runs.revoke(session, sorted(quarantined), now=now, reason="the schedule is quarantined")
    return [row for row in rows if row.id not in paused | quarantined]


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
            settings.owner_limits.check_task(owner=row.owner, task=row.task)
            publishable.append(
                _Publishable(row, outgoing_runs.recorded_run(row, settings=settings))
            )
        # A task that is no longer allowed, unreadable arguments: only this run is affected.
        except Exception as error:
            if concerns_process(error):
                raise
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
    session: Session, rows: Sequence[OverdueRun], *, now: datetime, settings: Settings
) -> Sequence[OverdueRun]:
    """Mark the runs that have expired; return the others."""
    expired = {
        row.id
        for row in rows
        if (expires_at := expiry_of(row, settings=settings)) is not None and expires_at <= now
    }
    runs.mark_expired(session, sorted(expired), now=now)
    return [row for row in rows if row.id not in expired]


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


def _has_waited(row: OverdueRun) -> bool:
    """Return whether the run waited for something that beat checks here."""
    return row.waited_for in _CHECKED and row.ready_at is None


def _is_blocked(row: OverdueRun, others: Iterable[Row], now: datetime, settings: Settings) -> bool:
    return any(
        other.id != row.id
        and is_previous(other, row, now=now, settings=settings)
        # Of two runs that have not been sent, the older one goes first.
        and (other.sent_at is not None or other.fire_at < row.fire_at)
        for other in others
    )
