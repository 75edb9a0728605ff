"""Quiet hours and quiet days, on which the runs of an owner are not sent. PURE.

The clock of the owner decides: an instant is quiet while the owner's clock shows a time within a
window. An hour that the clock repeats is therefore quiet twice, and an hour that it skips is not
quiet. A date of the owner's calendar is quiet from midnight to midnight.

    QuietRule    the windows and the calendar of one owner or everybody
    Quiet        what applies to a schedule: the windows of both, in a zone, and a calendar

A fire time in a quiet time is sent at its end. A trigger that excludes times skips fire times.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidArgumentError, InvalidTriggerError
from celery_dynbeat.common.quiet_rule import WEEK, QuietRule, Span, merged_spans, quiet_spans
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers import CalendarDays, Trigger
from celery_dynbeat.triggers.calendar_days import days_of
from celery_dynbeat.triggers.zones import (
    day_around,
    end_of_offset,
    load_zone,
    wall_at,
)

_MINUTE = timedelta(minutes=1)
#: No quiet time is this long, because the windows never cover a whole week.
_LONGEST = timedelta(days=8)
#: The maximum number of excluded and quiet days in a row that one quiet time contains.
MAX_EXCLUDED_DAYS = 800
_LONGEST_EXCLUDED = timedelta(days=2 * MAX_EXCLUDED_DAYS)


def leaving_time(rules: Iterable[QuietRule]) -> Sequence[QuietRule]:
    """Return the rules with the windows that apply.

    The windows of a rule do not apply if they and the windows before them leave no time.
    """
    found: list[QuietRule] = []
    for rule in rules:
        try:
            quiet_spans([*found, rule])
            found.append(rule)
        except InvalidArgumentError:
            found.append(rule._replace(windows=()))
    return found


def resolved(rules: Iterable[QuietRule], *, timezone: str) -> str | None:
    """Return the quiet hours of an owner as text, or None if the owner has none.

    ``rules`` are the rule of everybody and the owner's own rule. Their windows apply together. The
    last calendar applies. ``timezone`` is the zone of the owner.
    Raises InvalidArgumentError if all rules together leave no time in which a run can be sent.
    """
    every = [*rules]
    quiet = quiet_spans(every)
    calendar = next((rule.calendar for rule in reversed(every) if rule.calendar), None)
    if not quiet and calendar is None:
        return None
    named = {} if calendar is None else {"calendar": calendar}
    return json.dumps({"timezone": timezone, "quiet": quiet, **named})


@dataclass(frozen=True, slots=True)
class Windows:
    """Times of the week on the clock of a zone."""

    zone: ZoneInfo
    spans: tuple[Span, ...]

    def _edge_after(self, position: timedelta) -> timedelta:
        """Return the first time of the week after ``position`` at which a span begins or ends."""
        minute = position // _MINUTE
        later = (edge for span in self.spans for edge in span if edge > minute)
        return next(later, self.spans[0][0] + WEEK) * _MINUTE

    def covers(self, instant: datetime) -> bool:
        """Return whether the clock shows a time within a span."""
        minute = _position(wall_at(self.zone, instant)) // _MINUTE
        number = bisect_right(self.spans, (minute, WEEK)) - 1
        return number >= 0 and minute < self.spans[number][1]

    def end(self, instant: datetime) -> datetime:
        """Return the first instant from ``instant`` on that no span covers.

        Near the end of the calendar, it returns ``instant`` itself.
        """
        try:
            return self.changes_at(instant) if self.covers(instant) else instant
        except OverflowError:
            return instant

    def changes_at(self, instant: datetime) -> datetime:
        """Return the first instant after ``instant`` at which a span begins or ends."""
        before, at = self.covers(instant), instant
        while True:
            position = _position(wall_at(self.zone, at))
            edge_at = at + self._edge_after(position) - position
            # A clock change can come first.
            at = end_of_offset(self.zone, at.replace(microsecond=0), edge_at)
            if self.covers(at) != before:
                return at

    def start(self, instant: datetime) -> datetime:
        """Return the first instant of the span that covers ``instant``."""
        return _first_of_span(self.end, instant, _LONGEST)


def _first_of_span(
    end_of: Callable[[datetime], datetime], instant: datetime, longest: timedelta
) -> datetime:
    """Return the first instant of the span around ``instant``, which is not ``longest``.

    The span of a later instant never ends earlier, so a binary search finds the start.
    """
    end, first = end_of(instant), instant.replace(microsecond=0)
    outside, inside = int((first - longest).timestamp()), int(first.timestamp())
    while inside - outside > 1:
        middle = (inside + outside) // 2
        if end_of(datetime.fromtimestamp(middle, instant.tzinfo)) < end:
            outside = middle
        else:
            inside = middle
    return datetime.fromtimestamp(inside, instant.tzinfo)


def _position(wall: datetime) -> timedelta:
    """Return the time since Monday 00:00 of a wall time."""
    return timedelta(
        days=wall.weekday(),
        hours=wall.hour,
        minutes=wall.minute,
        seconds=wall.second,
        microseconds=wall.microsecond,
    )


@dataclass(frozen=True, slots=True)
class Quiet:
    """The quiet hours of a schedule. Nothing is sent in ``windows``.

    Days that ``rule`` excludes are quiet as a whole, so that no run waits until such a day. None
    means that the schedule excludes no days. The dates of ``calendar`` are quiet as well, as soon
    as ``with_days`` has set its ``days``.
    """

    windows: Windows
    rule: Trigger | None = None
    calendar: str | None = None
    days: CalendarDays | None = None

    def with_days(self, calendars: Mapping[str, CalendarDays]) -> "Quiet":
        """Return the quiet hours with the days of their calendar, if they name one.

        Raises InvalidTriggerError if the calendar is missing.
        """
        if self.calendar is None:
            return self
        return replace(self, days=days_of(calendars, self.calendar))

    def excluding(self, trigger: Trigger) -> "Quiet":
        """Return the quiet hours of a schedule with this trigger."""
        return replace(self, rule=trigger) if trigger.has_excluded_days else self

    def end(self, instant: datetime) -> datetime:
        """Return ``instant``, or the end of the quiet time around it."""
        end = self.windows.end(instant)
        if self.rule is None and self.days is None:
            return end
        for _ in range(MAX_EXCLUDED_DAYS):
            is_excluded = self.rule is not None and self.rule.excludes(end)
            if not is_excluded and not self._is_quiet_day(end):
                break
            end = self.windows.end(day_around(self.windows.zone, end).end)
        return end

    def _is_quiet_day(self, instant: datetime) -> bool:
        return (
            self.days is not None and day_around(self.windows.zone, instant).date in self.days.dates
        )

    def describe(self, instant: datetime) -> str:
        """Return which quiet time ``instant`` is in: "in quiet hours", or "on" which day."""
        if self.windows.covers(instant):
            return "in quiet hours"
        if self.days is not None and self._is_quiet_day(instant):
            note = self.days.notes.get(day_around(self.windows.zone, instant).date)
            return f"on a quiet day of the calendar {self.calendar!r}{f' ({note})' if note else ''}"
        return "on an excluded day"

    def start(self, instant: datetime) -> datetime:
        """Return ``instant``, or the start of the quiet time around it."""
        end = self.end(instant)
        if end == instant:
            return instant
        if self.rule is None and self.days is None:
            return self.windows.start(instant)
        span = _LONGEST
        while span < _LONGEST_EXCLUDED and self.end(instant - span) == end:
            span *= 2
        return _first_of_span(self.end, instant, span)


@lru_cache(maxsize=1024)
def quiet_of(text: str) -> Quiet:
    """Return the quiet hours in the column ``quiet_hours`` of a schedule.

    Raises InvalidTriggerError if SQL wrote another value.
    """
    try:
        stored = json.loads(text)
        zone = load_zone(stored["timezone"])
        quiet, calendar = _spans(stored["quiet"]), stored.get("calendar")
        is_empty = not quiet and calendar is None
        if is_empty or quiet == ((0, WEEK),) or not isinstance(calendar, str | None):
            raise ValueError(text)  # noqa: TRY301
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        message = f"quiet_hours = {shorten(text)}: is not what set_quiet_hours() writes"
        raise InvalidTriggerError(message, field="quiet_hours") from error
    return Quiet(Windows(zone, quiet), calendar=calendar)


def _spans(stored: Any) -> tuple[Span, ...]:
    spans = [(int(first), int(last)) for first, last in stored]
    if any(not 0 <= first < last <= WEEK for first, last in spans):
        raise ValueError(stored)
    return tuple(merged_spans(spans))
