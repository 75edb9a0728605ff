"""Retries and runs that waited ask the same question as a new fire time before they are sent.

A run that waits for a place asks before it gets the place, so a hold and quiet hours keep no place.

A run of a backfill or a rerun also asks for the overlap policy of its schedule, unless that is
"allow". It is sent when no other run of the schedule is unfinished, the oldest one first. The
claim ignores a run that waits in a batch, so it blocks no fire time. The sweep asks under the lock
of the schedule, so that the claim sends no run at the same time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.beat.outgoing_runs import expiry_of
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import BATCH_ORIGINS, KEPT_ORIGINS, Status, Wait
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import NO_CALENDARS, Calendars, max_run_time, quiet_calendars
from celery_dynbeat.planning.obstacles import Waiting, before_sending, next_check
from celery_dynbeat.planning.quiet_hours import Quiet, quiet_of
from celery_dynbeat.store import calendars as stored_calendars
from celery_dynbeat.store import holds, runs
from celery_dynbeat.store.places import WaitingRun
from celery_dynbeat.store.runs import OverdueRun, unfinished
from celery_dynbeat.store.schedules import due

#: Of the runs of a schedule that wait in batches, the sweep asks the first one about each second.
#: It asks another one after this time, in case the first one has been cancelled.
OTHERS_PAUSE = timedelta(minutes=5)


def without_waiting(
    session: Session, rows: Sequence[OverdueRun], *, now: datetime, settings: Settings
) -> Sequence[OverdueRun]:
    """Let the locked runs wait that a hold or quiet hours stop; return the other rows.

    Nothing is read unless there is a hold or a calendar of quiet days.
    """
    asking = [row for row in rows if asks(row)]
    calendars = days_of(session, (row.quiet_hours for row in asking))
    owners = {row.owner for row in asking if row.any_hold}
    ends = holds.ends_with_everything(session, owners, now=now) if owners else {}
    groups: defaultdict[tuple[Wait, datetime], list[str]] = defaultdict(list)
    for row in asking:
        waiting = _waiting(row, calendars, held_until=ends.get(row.owner), now=now)
        if waiting is not None:
            expires_at = expiry_of(row, settings=settings)
            at = next_check(waiting, now=now, created_at=row.created_at, expires_at=expires_at)
            groups[waiting.reason, at].append(row.id)
    for (reason, at), ids in groups.items():
        runs.postpone(session, ids, until=at, waited_for=reason)
    waiting_ids = {run_id for ids in groups.values() for run_id in ids}
    return [row for row in rows if row.id not in waiting_ids]


def without_blocked(
    session: Session, rows: Sequence[OverdueRun], *, now: datetime, settings: Settings
) -> Sequence[OverdueRun]:
    """Let the locked runs of batches wait that must not overlap others; return the other rows."""
    asking: defaultdict[int, dict[str, OverdueRun]] = defaultdict(dict)
    for row in rows:
        waits_in_batch = row.origin in BATCH_ORIGINS and (row.sent_at, row.ready_at) == (None, None)
        if waits_in_batch and asks(row) and (row.overlap or settings.overlap) != "allow":
            asking[row.schedule_id][row.id] = row
    if not asking:
        return rows
    locked = due.lock_free(session, sorted(asking))
    # A run that began before that counts as ended.
    since = {
        row.schedule_id: now - max_run_time(row.max_run_time, settings)
        for schedule_id in locked
        for row in asking[schedule_id].values()
    }
    busy = unfinished.busy(session, since)
    first = unfinished.first_in_batches(session, sorted(locked), now=now)
    soon: list[str] = []
    later: list[str] = []
    for schedule_id, asked in asking.items():
        of_schedule = [row for row in first if row.schedule_id == schedule_id]
        has_queued = any(row.waited_for == Wait.PLACE for row in of_schedule)
        waiting = sorted({*asked, *(row.id for row in of_schedule if row.waited_for != Wait.PLACE)})
        # A fire time that waits for a place also comes first.
        is_free = schedule_id in locked and schedule_id not in busy and not has_queued
        if is_free and waiting[0] in asked:
            del asked[waiting.pop(0)]
        soon += waiting[:1]
        later += [run_id for run_id in asked if run_id not in waiting[:1]]
    # The more schedules ask, the later each asks again. They must not take all of beat's time.
    soon_at = now + timedelta(seconds=1 + len(asking) / 5)
    asked_ids = {run_id for asked in asking.values() for run_id in asked}
    again = [run_id for run_id in soon if run_id in asked_ids]
    for ids, at in ((again, soon_at), (later, now + OTHERS_PAUSE)):
        if ids:
            runs.postpone(session, ids, until=at, waited_for=Wait.PREVIOUS)
    unfinished.ask_at(session, [run_id for run_id in soon if run_id not in asked_ids], at=soon_at)
    return [row for row in rows if row.id not in asked_ids]


def stopped(session: Session, rows: Sequence[WaitingRun], *, now: datetime) -> Collection[str]:
    """Return the ids of the runs without a place that a hold or quiet hours stop.

    Nothing is read unless there is a hold or a calendar of quiet days.
    """
    owners = {row.owner for row in rows if row.any_hold}
    ends = holds.ends_with_everything(session, owners, now=now) if owners else {}
    calendars = days_of(session, (row.quiet_hours for row in rows))
    return {
        row.id
        for row in rows
        if _waiting(row, calendars, held_until=ends.get(row.owner), now=now) is not None
    }


def is_requested(row: OverdueRun | WaitingRun) -> bool:
    """Return whether a caller requested the run. A pause and a quarantine do not revoke it."""
    return row.origin in KEPT_ORIGINS


def asks(row: OverdueRun) -> bool:
    """Return whether the run is a retry or has waited. The message of another run was sent."""
    if row.status == Status.RETRYING:
        return True
    return row.status == Status.PENDING and row.waited_for is not None


def _waiting(
    row: OverdueRun | WaitingRun,
    calendars: Calendars,
    *,
    held_until: datetime | None,
    now: datetime,
) -> Waiting | None:
    # The caller asked for the first attempt only.
    is_asked = row.attempt > 0 or not row.ignores_quiet_hours
    quiet = quiet_hours_of(row.quiet_hours, calendars) if is_asked else None
    return before_sending(now=now, held_until=held_until, quiet=quiet)


def days_of(session: Session, texts: Iterable[str | None]) -> Calendars:
    """Return the calendars that columns ``quiet_hours`` name. Without any, no query is made."""
    names = {name for text in texts for name in quiet_calendars(text)}
    if not names:
        return NO_CALENDARS
    return stored_calendars.read(session, names)


def quiet_hours_of(text: str | None, calendars: Calendars) -> Quiet | None:
    """Return the quiet hours in the column of a schedule, or None without them."""
    if text is None:
        return None
    try:
        return quiet_of(text).with_days(calendars)
    except InvalidTriggerError:
        # Manual SQL wrote it. The claim quarantines the schedule.
        return None


def is_previous(
    other: Row, row: OverdueRun | WaitingRun, *, now: datetime, settings: Settings
) -> bool:
    """Return whether ``row`` must not overlap an unfinished run, which belongs to its schedule."""
    counts_for = max_run_time(row.max_run_time, settings)
    return (
        other.schedule_id == row.schedule_id
        and (other.started_at is None or now - other.started_at < counts_for)
        # A run that waits for a place does not count, because it may be waiting for this run's
        # place. A run that has had an attempt counts.
        and (
            other.status != Status.PENDING
            or other.overdue_at is not None
            or other.sent_at is not None
        )
    )
