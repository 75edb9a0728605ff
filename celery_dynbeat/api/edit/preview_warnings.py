"""Warnings about properties of a valid trigger that a user may not expect."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice, pairwise

from celery_dynbeat.api.results.fire_time import PreviewWarning
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.planning import ScheduleSpec, with_search_budget
from celery_dynbeat.triggers import Cron, Once, Trigger
from celery_dynbeat.triggers.cron.expression import parse_expression
from celery_dynbeat.triggers.zones import day_around, describe_instant, load_zone

_YEAR, _MICROSECOND = timedelta(days=366), timedelta(microseconds=1)
#: Fire times that a calendar removes or moves, each with a warning.
_SHOWN_EFFECTS = 5


def no_name_warning() -> PreviewWarning:
    """Return the warning for a trigger or a window that needs the name of the schedule."""
    return _warning(
        "no_name",
        "this preview has no name: the name of a schedule selects the values of its H and its"
        " offset in its window",
    )


def _warning(code: str, message: str) -> PreviewWarning:
    return PreviewWarning(code=code, message=message)


def warnings_of(
    spec: ScheduleSpec, trigger: Trigger, fire_times: Sequence[datetime], *, now: datetime
) -> Iterator[PreviewWarning]:
    """Yield the warnings for a schedule. ``fire_times`` are its next ones, at least two if any.

    ``trigger`` is as the user wrote it, with its zone.
    """
    for cron in _crons(trigger):
        yield from _day_or(cron)
    yield from _rare(spec, fire_times, now=now)
    yield from _exclusions(spec, fire_times, now=now)


def calendar_warnings(
    spec: ScheduleSpec, fire_times: Sequence[datetime], *, timezone: str, now: datetime
) -> Iterator[PreviewWarning]:
    """Yield the effects of calendars on fire times up to the last of ``fire_times``."""
    if not spec.calendars or not fire_times:
        return
    # A late import: few triggers use calendars.
    from celery_dynbeat.triggers.calendar_effects import effects_on  # noqa: PLC0415

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


def retry_warnings(retry: Retry | None, fire_times: Sequence[datetime]) -> Iterator[PreviewWarning]:
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
