"""The next fire times of a schedule in two zones, with the effect of clock changes on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from celery_dynbeat.api import Info, ScheduleInfo, checks
from celery_dynbeat.api.edit.fire_times import fire_times_of
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.insights.statistics.subject import schedule_row
from celery_dynbeat.process.context import Context
from celery_dynbeat.triggers.clock_notes import note_on


@dataclass(frozen=True, slots=True, kw_only=True)
class NextFire(Info):
    """An upcoming fire time. ``at`` is in UTC.

    - ``local`` is the same instant in the zone of the schedule, ``viewer_local`` in the zone of the
      viewer. ``to_dict`` keeps their offsets.
    - ``is_skipped`` means that ``skip`` or ``calendar`` took it out. ``skip_reason`` says who did
      it and why.
    - ``clock_note`` says how a clock change affects it. ``wait_note`` says why
      its run is sent later, and when.
    """

    at: datetime
    local: datetime
    viewer_local: datetime
    is_skipped: bool
    skip_reason: str | None
    calendar: str | None
    clock_note: str | None
    wait_note: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        local = {"local": self.local.isoformat(), "viewer_local": self.viewer_local.isoformat()}
        return {**Info.to_dict(self), **local}


def next_fire_times(
    context: Context,
    *,
    owner: str,
    name: str,
    count: int = 10,
    viewer_zone: ZoneInfo | None = None,
    session: Session | None = None,
) -> Sequence[NextFire]:
    """Return the next ``count`` fire times, including fire times that ``skip`` removed.

    ``viewer_zone=None`` means the zone of the schedule. A schedule whose trigger cannot be read, or
    that is quarantined, has none. Raises ScheduleNotFoundError, and InvalidScheduleError for a
    ``count`` beyond 1,000.
    """
    checks.check_limit("count", count)

    def work(session: Session) -> Sequence[NextFire]:
        row = schedule_row(session, owner=owner, name=name)
        return next_of_row(context, session, row, count=count, viewer_zone=viewer_zone)

    return context.read_many(session, work)


def next_of_row(
    context: Context,
    session: Session,
    row: Schedule,
    *,
    count: int,
    viewer_zone: ZoneInfo | None = None,
) -> Sequence[NextFire]:
    """Return the next ``count`` fire times of a row, as ``next_fire_times`` does."""
    schedule = ScheduleInfo.of(row)
    trigger = schedule.trigger
    if schedule.error is not None or trigger is None:
        return []
    zone = ZoneInfo(schedule.timezone)
    previous: datetime | None = None
    found: list[NextFire] = []
    for each in fire_times_of(context, session, row, count=count):
        note = note_on(trigger, each.at, previous=previous, timezone=schedule.timezone)
        fire = NextFire(
            at=each.at,
            local=each.at.astimezone(zone),
            viewer_local=each.at.astimezone(viewer_zone or zone),
            is_skipped=each.is_skipped,
            skip_reason=each.reason,
            calendar=each.calendar,
            clock_note=note,
            wait_note=each.wait_note,
        )
        found.append(fire)
        previous = each.at
    return found
