"""Retries and runs that waited ask the same question as a new fire time before they are sent.

A run that waits for a place asks before it gets the place, so a hold and quiet hours keep no place.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import KEPT_ORIGINS, Status, Wait
from celery_dynbeat.planning import NO_CALENDARS, Calendars, quiet_calendars
from celery_dynbeat.planning.waiting import Waiting, before_sending, next_check
from celery_dynbeat.store import holds, runs
from celery_dynbeat.store.places import WaitingRun
from celery_dynbeat.store.runs import OverdueRun
from celery_dynbeat.store.schedules.run_rows import expiry_of

if TYPE_CHECKING:
    from celery_dynbeat.planning.quiet_hours import Quiet


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
    # A late import: few schedules use calendars.
    from celery_dynbeat.store import calendars  # noqa: PLC0415

    return calendars.read(session, names)


def quiet_hours_of(text: str | None, calendars: Calendars) -> "Quiet | None":
    """Return the quiet hours in the column of a schedule, or None without them."""
    if text is None:
        return None
    # A late import: few owners have quiet hours.
    from celery_dynbeat.planning.quiet_hours import quiet_of  # noqa: PLC0415

    try:
        return quiet_of(text).with_days(calendars)
    except InvalidTriggerError:
        # Manual SQL wrote it. The claim quarantines the schedule.
        return None


def is_quiet(text: str | None, calendars: Calendars, *, now: datetime) -> bool:
    """Return whether ``now`` is in the quiet hours in the column of a schedule."""
    return (
        before_sending(now=now, held_until=None, quiet=quiet_hours_of(text, calendars)) is not None
    )
