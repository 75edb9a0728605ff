"""Parts of the page of one schedule: policies, changes, marks of its charts. PURE."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.api.results import ChangeInfo, ScheduleInfo
from celery_dynbeat.api.results.change import value_text
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.flower.base.fragments import as_json, local_time
from celery_dynbeat.flower.charts.heat_map import CalendarCell
from celery_dynbeat.flower.charts.line_chart import LineDot, LinePoint
from celery_dynbeat.insights.statistics.calendar import CalendarDay
from celery_dynbeat.insights.statistics.run_times import FailureDot, TimesBucket

#: Gives the URL of a route with arguments.
Link = Callable[..., str]

#: The groups of fields that the page shows as policies.
_GROUPS = ("policy", "report", "limit")
_ARGUMENTS = frozenset({"args", "kwargs"})
HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy, and whether the schedule sets it itself."""

    name: str
    value: str
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedField:
    """A field before and after a change, or None if the schedule did not exist."""

    name: str
    before: str | None
    after: str | None


def policies(info: ScheduleInfo, settings: Settings, zone: ZoneInfo) -> Sequence[Policy]:
    """Return the policies of the schedule, then its other fields of _GROUPS that are set."""
    found = []
    for field in (each for group in _GROUPS for each in FIELDS.values() if each.group == group):
        own = field.value_in(info)
        if own is None and field.group != "policy":
            continue
        value = getattr(settings, field.name, None) if own is None else own
        text = _text(field.type.shown(value), zone)
        found.append(Policy(name=field.name, value=text, is_default=own is None))
    return found


def _text(value: object, zone: ZoneInfo) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, datetime):
        return local_time(value, zone)
    return "none" if value is None else str(value)


def changed_fields(change: ChangeInfo, *, hides_arguments: bool) -> Sequence[ChangedField]:
    """Return the fields of a change in the order of their names."""
    before, after = change.before or {}, change.after or {}
    return [
        ChangedField(
            name=name,
            before=_field(before, name, hides_arguments=hides_arguments),
            after=_field(after, name, hides_arguments=hides_arguments),
        )
        for name in sorted({*before, *after})
    ]


def _field(values: Mapping[str, Any], name: str, *, hides_arguments: bool) -> str | None:
    if name not in values:
        return None
    if hides_arguments and name in _ARGUMENTS:
        return HIDDEN
    value = values[name]
    if hides_arguments and name == "options" and isinstance(value, Mapping) and "headers" in value:
        value = {**value, "headers": HIDDEN}
    if name == "trigger":
        return value_text(value, name)
    return value if isinstance(value, str) else as_json(value)


def calendar_cells(
    days: Sequence[CalendarDay], *, only_failed: bool, runs_url: Link
) -> Iterator[CalendarCell]:
    """Yield the days of the calendar. A day leads to its runs."""
    for day in days:
        total = day.failed if only_failed else day.total.count
        is_past = bool(day.total.count)
        yield CalendarCell(
            day=day.day,
            total=total,
            failed=day.failed,
            skipped=0 if only_failed else day.skipped,
            planned=day.planned,
            title=_day_title(day),
            href=runs_url(since=day.start_at.isoformat(), until=day.end_at.isoformat())
            if is_past
            else None,
        )


def _day_title(day: CalendarDay) -> str:
    parts = [f"{day.total} runs" if day.total.count else "no runs"]
    if day.failed:
        parts.append(f"{day.failed:,} failed")
    if day.skipped:
        parts.append(f"{day.skipped:,} skipped")
    if day.planned:
        parts.append(f"{day.planned:,}{'' if day.planned_exact else ' or more'} planned")
    return f"{day.day:%a} {day.day.day} {day.day:%b %Y}: {', '.join(parts)}"


def line_points(
    buckets: Sequence[TimesBucket], *, which: str, zone: ZoneInfo
) -> Iterator[LinePoint]:
    """Yield the points of a line: ``which`` is "lag" or "duration".

    Times without runs are left out. Those of a daily schedule would leave no line.
    """
    for each in buckets:
        p50, most = getattr(each, f"{which}_p50"), getattr(each, f"{which}_max")
        if p50 is None or most is None:
            continue
        yield LinePoint(
            start_at=each.start_at.astimezone(zone),
            end_at=each.end_at.astimezone(zone),
            p50=p50.total_seconds(),
            max=most.total_seconds(),
            title=(
                f"{local_time(each.start_at, zone)}: {which} {format_duration(p50)}, at most"
                f" {format_duration(most)}, {each.count} runs"
            ),
        )


def failure_dots(
    failures: Sequence[FailureDot], *, zone: ZoneInfo, link: Link
) -> Iterator[LineDot]:
    """Yield the failures of a line chart."""
    for each in failures:
        yield LineDot(
            at=each.at.astimezone(zone),
            seconds=None if each.duration is None else each.duration.total_seconds(),
            title=f"{each.status} {local_time(each.at, zone)}",
            href=link("dynbeat_run", each.run_id),
        )
