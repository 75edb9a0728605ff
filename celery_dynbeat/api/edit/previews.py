"""Preview when a schedule would fire. Web forms call it while a user types. Nothing is written."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.columns import ScheduleColumns
from celery_dynbeat.api.edit import edits, limits, owner_zone, used_calendars
from celery_dynbeat.api.edit.conversion import TriggerLike
from celery_dynbeat.api.edit.fields import to_columns
from celery_dynbeat.api.edit.fire_times import hold_of
from celery_dynbeat.api.edit.named import OwnerCalls
from celery_dynbeat.api.edit.owner_zone import OwnerClock
from celery_dynbeat.api.edit.preview_warnings import (
    calendar_warnings,
    no_name_warning,
    retry_warnings,
    warnings_of,
)
from celery_dynbeat.api.results.fire_time import Preview, PreviewedFireTime
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.retry import Retry, effective_retry
from celery_dynbeat.planning import Calendars, ScheduleSpec, spec_from_row, with_search_budget
from celery_dynbeat.planning.obstacles import HoldInForce, first_pass, stopped_by, wait_note
from celery_dynbeat.planning.upcoming import PlannedFireTime, iter_planned
from celery_dynbeat.process.context import Context
from celery_dynbeat.triggers import parse_trigger
from celery_dynbeat.triggers.clock_notes import note_on
from celery_dynbeat.triggers.zones import load_zone

MAX_COUNT = 100
#: Fire times that the warnings need.
_MIN_FOUND = 2


class PreviewCalls(OwnerCalls):
    """The call of OwnerSchedules for a preview."""

    def preview(
        self,
        trigger: TriggerLike,
        name: str | None = None,
        count: int = 5,
        *,
        window: timedelta | float | str | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        max_runs: int | None = None,
        catch_up: str | None = None,
        overlap: str | None = None,
        retry: Retry | Mapping[str, Any] | None = None,
    ) -> Preview:
        """Return when a schedule with these arguments would fire. Nothing is written.

        ``name`` selects the values of an ``H`` and the offset in ``window``. Without a name, a
        warning says that they can differ. The fire times show a hold in force. ``catch_up`` and
        ``overlap`` decide which fire times of one quiet time have a run. ``retry`` affects only the
        warnings. ``count`` is limited to 100. Fewer fire times are returned if the schedule
        finishes, or if finding more would take the trigger too many steps.

        The call raises the errors that ``create`` would raise for these arguments:
        InvalidTriggerError and InvalidScheduleError. It neither refuses a schedule that exceeds the
        limit on their number, nor checks whether a schedule with this name exists.

        >>> shown = mine.preview("0 9 * * mon-fri", "digest", count=2)
        >>> shown.description
        'At 09:00, Monday to Friday, UTC'
        >>> [str(each.at.date()) for each in shown.fire_times]
        ['2026-01-06', '2026-01-07']
        """
        if name is not None:
            checks.check_name("name", name)
        checks.check_integer("count", count, minimum=1, maximum=MAX_COUNT)
        given = edits.as_trigger(self._context, trigger)
        fields = {
            "window": window,
            "start_at": start_at,
            "end_at": end_at,
            "max_runs": max_runs,
            "catch_up": catch_up,
            "overlap": overlap,
            "retry": retry,
        }
        settings = self._context.settings
        values = to_columns(fields, limit=settings.max_payload_bytes)

        now = self._now()

        def work(
            session: Session,
        ) -> tuple[OwnerClock, Calendars, int | None, HoldInForce | None]:
            clock = owner_zone.read(self._context, session, self.owner)
            remaining = limits.remaining_of(settings, session, self.owner)
            hold = hold_of(session, owner=self.owner, now=now)
            return clock, used_calendars.read(session, given), remaining, hold

        clock, calendars, remaining, hold = self._read(work)
        row = edits.planned_row(
            self._context,
            owner=self.owner,
            name=name or "",
            values={**values, "task": ""},
            trigger=given.resolved_at(now),
            clock=clock,
            calendars=calendars,
            now=now,
        )
        used = {**calendars, **clock.calendars}
        spec = spec_from_row(row, settings, used)
        shown = _preview(
            self._context,
            row,
            spec,
            name=name,
            timezone=clock.timezone,
            count=count,
            now=now,
            hold=hold,
        )
        minimum = limits.min_interval_of(settings, self.owner).value
        return Preview(text=str(given), remaining=remaining, min_interval=minimum, **shown)


def _preview(
    context: Context,
    row: ScheduleColumns,
    spec: ScheduleSpec,
    *,
    name: str | None,
    timezone: str,
    count: int,
    now: datetime,
    hold: HoldInForce | None,
) -> dict[str, Any]:
    """Return the fields of the preview that follow from the row."""
    found = _fire_times(
        with_search_budget(spec),
        row,
        timezone=timezone,
        count=max(count, _MIN_FOUND),
        now=now,
        hold=hold,
    )
    trigger = parse_trigger(row.trigger_kind, row.trigger_spec, timezone=row.timezone)
    retry = effective_retry(row.retry, context.settings.retry)
    fire_times = [each.at for each, _ in found]
    warnings = [
        *warnings_of(spec, trigger, fire_times, now=now),
        *retry_warnings(retry, fire_times),
        *calendar_warnings(spec, fire_times[:count], timezone=timezone, now=now),
    ]
    if name is None and (spec.window or trigger.hashed_by(spec.key) != trigger):
        warnings.append(no_name_warning())
    trigger = trigger.bound_to(spec.key)
    return {
        "owner": row.owner,
        "name": name,
        "trigger": trigger,
        "description": trigger.describe(timezone),
        "timezone": timezone,
        "fire_times": tuple(_shown(spec, found[:count], timezone=timezone)),
        "warnings": tuple(warnings),
    }


def _fire_times(
    spec: ScheduleSpec,
    row: ScheduleColumns,
    *,
    timezone: str,
    count: int,
    now: datetime,
    hold: HoldInForce | None,
) -> Sequence[tuple[PlannedFireTime, str | None]]:
    """Return up to ``count`` fire times, each with a note on its wait."""
    found: list[tuple[PlannedFireTime, str | None]] = []
    try:
        planned = iter_planned(spec, row.next_fire_at, now=first_pass(now, hold))
        for each in islice(planned, count):
            shown = stopped_by(each, hold)
            note = wait_note(spec, shown, now=now, timezone=timezone, hold=hold)
            found.append((shown, note))
    except InvalidTriggerError:
        # The searches together took too many steps. The first one did not: create() accepts it.
        pass
    return found


def _shown(
    spec: ScheduleSpec, found: Sequence[tuple[PlannedFireTime, str | None]], *, timezone: str
) -> Sequence[PreviewedFireTime]:
    zone, shown, previous = load_zone(timezone), [], None
    for planned, wait in found:
        clock_note = note_on(spec.trigger, planned.at, previous=previous, timezone=timezone)
        shown.append(
            PreviewedFireTime(
                at=planned.at,
                run_at=planned.run_at,
                local=_local(planned.at, zone),
                note="; ".join(filter(None, (clock_note, wait))) or None,
            )
        )
        previous = planned.at
    return shown


def _local(instant: datetime, zone: ZoneInfo) -> datetime:
    try:
        return instant.astimezone(zone)
    except OverflowError:
        # Only in the last hours of the year 9999.
        return instant
