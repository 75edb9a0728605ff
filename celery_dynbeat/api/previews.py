"""The next fire times of a schedule, with what takes each out or delays its run.

``preview`` shows when a schedule would fire, with warnings about properties of its trigger that a
user may not expect. Web forms call it while a user types. Nothing is written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice, pairwise
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from celery_dynbeat.api import limits, owner_clock
from celery_dynbeat.api.edits import Definition, planned_row
from celery_dynbeat.api.fields import to_columns
from celery_dynbeat.api.owner_clock import OwnerClock
from celery_dynbeat.api.results import FireTime, Preview, PreviewWarning
from celery_dynbeat.api.timing import RowPlan, ScheduleColumns
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.retry import Retry, effective_retry
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning import ScheduleSpec, calendar_names, spec_from_row, with_search_budget
from celery_dynbeat.planning.obstacles import HoldInForce, first_pass, stopped_by, wait_note
from celery_dynbeat.planning.plan import unskipped
from celery_dynbeat.planning.upcoming import PlannedFireTime, iter_planned, iter_runs
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import holds
from celery_dynbeat.triggers import Cron, Once, Trigger, parse_trigger
from celery_dynbeat.triggers.calendar_effects import effects_on
from celery_dynbeat.triggers.clock_notes import note_on
from celery_dynbeat.triggers.cron.expression import parse_expression
from celery_dynbeat.triggers.wrappers import nominal, unwrapped
from celery_dynbeat.triggers.zones import day_around, describe_instant, load_zone


def fire_times_of(
    context: Context, session: Session, row: Schedule, *, count: int, with_skipped: bool = True
) -> Sequence[FireTime]:
    """Return the next ``count`` fire times of a row, as ``upcoming`` does."""
    now = context.clock.now()
    with naming_schedule(row):
        plan = RowPlan(context, session, row, now=now)
        spec = plan.spec()
        found = dict(_upcoming(session, row, spec, count=count, now=now))
        if with_skipped:
            taken = _taken_by_calendars(spec, row, [*found], count=count, now=now)
            skipped = plan.skipped_in_future()
            removed = {at: {"is_skipped": True, "reason": why} for at, why in skipped.items()}
            found = {**taken, **found, **removed}
    first = sorted(found.items(), key=itemgetter(0))[:count]
    return shown(unwrapped(spec.trigger), first, timezone=row.timezone)


def shown(
    trigger: Trigger, found: Iterable[tuple[datetime, Mapping[str, Any]]], *, timezone: str
) -> Sequence[FireTime]:
    """Return fire times with their other fields, oldest first, on the clock of ``timezone``."""
    zone, times, previous = load_zone(timezone), list[FireTime](), None
    for at, values in found:
        note = note_on(trigger, at, previous=previous, timezone=timezone)
        times.append(FireTime(fire_at=at, local=_local(at, zone), clock_note=note, **values))
        previous = at
    return times


def _local(instant: datetime, zone: ZoneInfo) -> datetime:
    try:
        return instant.astimezone(zone)
    except OverflowError:
        # Only in the last hours of the year 9999.
        return instant


def _upcoming(
    session: Session, row: Schedule, spec: ScheduleSpec, *, count: int, now: datetime
) -> Iterator[tuple[datetime, Mapping[str, Any]]]:
    """Yield the next ``count`` fire times of a row that are sent, those that wait first.

    During a hold without an end, these are the fire times that it stops.
    """
    if row.next_run_at is None or row.next_fire_at is None:
        return
    hold = hold_of(session, owner=row.owner, now=now)
    is_endless = hold is not None and hold.until is None
    planned = iter_runs(
        spec._replace(quiet=None) if is_endless else spec,
        unskipped(spec, row.next_fire_at),
        now=first_pass(now, hold),
        run_count=row.run_count,
        # Beat planned it, maybe with another dynbeat_window.
        claimed_at=row.next_run_at if row.held_at is None and spec.quiet is None else None,
    )
    first = (PlannedFireTime(each.at, each.run_at) for each in islice(planned, count))
    yield from _when_sent(spec, first, now=now, timezone=row.timezone, hold=hold)


def _when_sent(
    spec: ScheduleSpec,
    planned: Iterable[PlannedFireTime],
    *,
    now: datetime,
    timezone: str,
    hold: HoldInForce | None,
) -> Iterator[tuple[datetime, Mapping[str, Any]]]:
    """Yield when the run of each fire time is sent, and why that is later."""
    for each in planned:
        sent = stopped_by(each, hold)
        note = wait_note(spec, sent, now=now, timezone=timezone, hold=hold)
        yield each.at, {"run_at": sent.run_at, "wait_note": note}


def hold_of(session: Session, *, owner: str, now: datetime) -> HoldInForce | None:
    """Return the hold in force that ends last, or None if the owner is not held."""
    found = holds.in_force(session, owner=owner, now=now)
    hold = max(found, key=lambda hold: hold.until_at or holds.NEVER, default=None)
    if hold is None:
        return None
    actor = f" by {hold.actor}" if hold.actor else ""
    return HoldInForce(hold.until_at, f"held{actor}{f' ({hold.reason})' if hold.reason else ''}")


def _taken_by_calendars(
    spec: ScheduleSpec, row: Schedule, upcoming: Sequence[datetime], *, count: int, now: datetime
) -> Mapping[datetime, Mapping[str, Any]]:
    """Return the fire times before the last of ``upcoming`` that calendars remove or move."""
    # Without calendars, only the quiet hours can name one.
    if not upcoming or not calendar_names([row]) or not spec.calendars:
        return {}
    after = now if spec.start_at is None else max(now, spec.start_at)
    effects = effects_on(nominal(spec.trigger), after=after, until=upcoming[-1], limit=count)
    return {
        each.at: {
            "is_skipped": True,
            "reason": each.describe(row.timezone),
            "calendar": each.calendar,
        }
        for each in effects
    }


_YEAR, _MICROSECOND = timedelta(days=366), timedelta(microseconds=1)
#: Fire times that a calendar removes or moves, each with a warning.
_SHOWN_EFFECTS = 5


def _warning(code: str, message: str) -> PreviewWarning:
    return PreviewWarning(code=code, message=message)


def _warnings_of(
    spec: ScheduleSpec, trigger: Trigger, fire_times: Sequence[datetime], *, now: datetime
) -> Iterator[PreviewWarning]:
    """Yield the warnings for a schedule. ``fire_times`` are its next ones, at least two if any.

    ``trigger`` is as the user wrote it, with its zone.
    """
    for cron in _crons(trigger):
        yield from _day_or(cron)
    yield from _rare(spec, fire_times, now=now)
    yield from _exclusions(spec, fire_times, now=now)


def _calendar_warnings(
    spec: ScheduleSpec, fire_times: Sequence[datetime], *, timezone: str, now: datetime
) -> Iterator[PreviewWarning]:
    """Yield the effects of calendars on fire times up to the last of ``fire_times``."""
    if not spec.calendars or not fire_times:
        return
    after = now if spec.start_at is None else max(now, spec.start_at)
    effects = effects_on(spec.trigger, after=after, until=fire_times[-1], limit=_SHOWN_EFFECTS + 1)
    for each in effects[:_SHOWN_EFFECTS]:
        yield _warning(
            "calendar",
            f"does not fire at {describe_instant(each.at, timezone)}: {each.describe(timezone)}",
        )
    if len(effects) > _SHOWN_EFFECTS:
        yield _warning(
            "calendar",
            f"calendars remove or move more than {_SHOWN_EFFECTS} fire times before the last one",
        )


def _retry_warnings(
    retry: Retry | None, fire_times: Sequence[datetime]
) -> Iterator[PreviewWarning]:
    """Yield the warnings for a retry policy. ``fire_times`` are the next fire times."""
    if retry is None or not retry.until_next_fire or not retry.max_retries:
        return
    nearest = min((later - first for first, later in pairwise(fire_times)), default=None)
    if nearest is not None and retry.backoff >= nearest:
        yield _warning(
            "retry_too_late",
            f"fire times are {format_duration(nearest)} apart, and the first retry waits for"
            f" {format_duration(retry.backoff)}: with until_next_fire no run is retried; choose a"
            " shorter backoff",
        )


def _crons(trigger: Trigger) -> Iterator[Cron]:
    """Yield each Cron that fires; excluded ones do not."""
    if isinstance(trigger, Cron):
        yield trigger
    parts: tuple[Trigger, ...] = getattr(trigger, "parts", ())
    for part in parts if trigger.kind == "any_of" else parts[:1]:
        yield from _crons(part)


def _day_or(cron: Cron) -> Iterator[PreviewWarning]:
    fields = parse_expression(cron.expression)
    is_either = cron.day_or and not (fields.day.starred or fields.weekday.starred)
    if is_either and not (fields.day.full or fields.weekday.full):
        yield _warning(
            "either_day",
            f"{cron.expression!r} names days of the month and days of the week: it fires if one of"
            " them matches, as in cron; write day_and after it if both must match",
        )


def _rare(
    spec: ScheduleSpec, fire_times: Sequence[datetime], *, now: datetime
) -> Iterator[PreviewWarning]:
    if isinstance(spec.trigger, Once) or not fire_times:
        return
    start = now if spec.start_at is None else max(now, spec.start_at)
    first, *later = fire_times
    if later and later[0] - first > _YEAR:
        when = f"on {first:%Y-%m-%d}, and then on {later[0]:%Y-%m-%d}"
        yield _warning("rare", f"fires less than once a year: {when}")
    elif first - start > _YEAR:
        when = f"the first fire time is on {first:%Y-%m-%d}"
        yield _warning("rare", f"fires less than once a year: {when}")


def _exclusions(
    spec: ScheduleSpec, fire_times: Sequence[datetime], *, now: datetime
) -> Iterator[PreviewWarning]:
    if spec.trigger.kind != "excluding" or not fire_times:
        return
    inner = spec._replace(trigger=spec.trigger.parts[0])  # type: ignore[attr-defined]
    try:
        nearest = list(islice(_iterate(inner, after=now), len(fire_times)))
        has_effect = _has_effect(spec, inner, now=now)
    except InvalidTriggerError:
        # Too costly to tell.
        return
    if nearest and not set(nearest) & set(fire_times):
        yield _warning(
            "all_excluded",
            f"the next {len(nearest)} fire times of the rule are on excluded days: the first one"
            f" that is left is on {fire_times[0]:%Y-%m-%d}",
        )
    elif not has_effect:
        message = "no excluded date is a day on which the rule fires from now on"
        yield _warning("nothing_excluded", message)


def _iterate(spec: ScheduleSpec, *, after: datetime) -> Iterator[datetime]:
    trigger = with_search_budget(spec).trigger
    instant = trigger.next_after(after if spec.start_at is None else max(after, spec.start_at))
    while instant is not None:
        yield instant
        instant = trigger.next_after(instant)


def _has_effect(spec: ScheduleSpec, inner: ScheduleSpec, *, now: datetime) -> bool:
    """Return whether an excluded date is a day on which the rule fires from ``now`` on."""
    excluding = spec.trigger
    if excluding.parts[1:] or spec.calendars:  # type: ignore[attr-defined]
        # Excluded triggers have no last day. Calendars get new days.
        return True
    zone = load_zone(excluding.timezone or "UTC")
    rule = with_search_budget(inner).trigger
    for date in excluding.dates:  # type: ignore[attr-defined]
        noon = datetime(date.year, date.month, date.day, 12, tzinfo=zone)
        day = day_around(zone, noon.astimezone(now.tzinfo))
        if day.end <= now:
            continue
        found = rule.next_after(max(day.start - _MICROSECOND, now))
        if found is not None and found < day.end:
            return True
    return False


MAX_COUNT = 100
#: Fire times that the warnings need.
_MIN_FOUND = 2


def preview(
    context: Context, session: Session | None, given: Definition, *, name: str | None, count: int
) -> Preview:
    """Return when a schedule would fire. Nothing is written."""
    settings, owner, trigger = context.settings, given.owner, given.trigger
    values = to_columns(given.fields, limit=settings.max_payload_bytes)
    now = context.now(session)

    def work(session: Session) -> tuple[OwnerClock, int | None, HoldInForce | None]:
        clock = owner_clock.read(context, session, owner)
        clock = clock.with_calendars(owner_clock.read_calendars(session, trigger))
        remaining = limits.remaining_of(settings, session, owner)
        return clock, remaining, hold_of(session, owner=owner, now=now)

    clock, remaining, hold = context.read(session, work)
    row = planned_row(context, given, {**values, "task": ""}, clock=clock, now=now)
    spec = spec_from_row(row, settings, clock.calendars)
    timezone, most = clock.timezone, max(count, _MIN_FOUND)
    found = _fire_times(spec, row, timezone=timezone, count=most, now=now, hold=hold)
    bound = parse_trigger(row.trigger_kind, row.trigger_spec, timezone=row.timezone)
    retry = effective_retry(row.retry, settings.retry)
    fire_times = [each.fire_at for each in found]
    warnings = [
        *_warnings_of(spec, bound, fire_times, now=now),
        *_retry_warnings(retry, fire_times),
        *_calendar_warnings(spec, fire_times[:count], timezone=timezone, now=now),
    ]
    if name is None and (spec.window or bound.hashed_by(spec.key) != bound):
        message = (
            "this preview has no name: the name of a schedule selects the values of its H and its"
            " offset in its window"
        )
        warnings.append(_warning("no_name", message))
    bound = bound.bound_to(spec.key)
    return Preview(
        owner=owner,
        name=name,
        text=str(trigger),
        trigger=bound,
        description=bound.describe(timezone),
        timezone=timezone,
        fire_times=tuple(found[:count]),
        warnings=tuple(warnings),
        remaining=remaining,
        min_interval=limits.min_interval_of(settings, owner)[0],
    )


def _fire_times(
    spec: ScheduleSpec,
    row: ScheduleColumns,
    *,
    timezone: str,
    count: int,
    now: datetime,
    hold: HoldInForce | None,
) -> Sequence[FireTime]:
    """Return up to ``count`` fire times."""
    found: list[tuple[datetime, Mapping[str, Any]]] = []
    try:
        limited = with_search_budget(spec)
        planned = iter_planned(limited, row.next_fire_at, now=first_pass(now, hold))
        first = islice(planned, count)
        # Keeps the fire times that are found before an error.
        found.extend(_when_sent(spec, first, now=now, timezone=timezone, hold=hold))
    except InvalidTriggerError:
        # The searches together took too many steps. The first one did not: create() accepts it.
        pass
    return shown(spec.trigger, found, timezone=timezone)
