"""Quiet hours: weekly windows in which the runs of an owner are not sent. PURE.

The clock of the owner decides: an instant is quiet while the owner's clock shows a time within a
window. An hour that the clock repeats is therefore quiet twice, and an hour that it skips is not
quiet.

    QuietHours   one window, as callers give it, and its text: "mon-fri 22:00-07:00"
    QuietRule    the windows of one owner or group, and their policy, as dynbeat_owner has them
    Quiet        what applies to a schedule: the windows of its owner and groups, in a zone

Policy "after" sends a fire time at the end of the quiet time. Policy "skip" records it as skipped.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.zones import describe_instant, end_of_offset, load_zone, wall_at

POLICIES = ("after", "skip")
#: The maximum number of windows of one owner or group.
MAX_WINDOWS = 50
_WHOLE_WEEK = (
    "the windows of the owner and its groups cover the whole week, so no run would be sent; leave"
    " some out"
)
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY, _WEEK = 24 * 60, 7 * 24 * 60
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)
#: Characters of days and of a whole window: more than seven days and two times need. A search in a
#: longer text would take long.
_MAX_DAYS, _MAX_TEXT = 80, 100
_TEXT = re.compile(r"(?:(\S+)\s+)?([^\s-]+)-([^\s-]+)", re.ASCII)
_MINUTE, _MICROSECOND = timedelta(minutes=1), timedelta(microseconds=1)
#: The maximum number of quiet times that one search passes, which is more than a year of nights.
MAX_PASSED = 500
#: No quiet time is this long, because the windows never cover a whole week.
_LONGEST = timedelta(days=8)

#: A span of minutes, counted from Monday 00:00. The second number is not part of the span.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A weekly window of the clock in which runs are not sent, such as 22:00 to 07:00.

    - ``start`` and ``end`` are times such as ``"22:00"``. ``end`` is not part of the window. It is
      on the next day if it is not later than ``start``; ``"00:00"`` to ``"00:00"`` is a whole day.
    - ``days`` are the days on which the window starts, such as ``"mon-fri"`` or ``"sat,sun"``.
      ``"*"`` means every day.

    Raises InvalidScheduleError for an invalid value.

    >>> str(QuietHours("22:00", "07:00", days="mon-fri"))
    'mon-fri 22:00-07:00'
    """

    start: str
    end: str
    days: str = "*"

    def __post_init__(self) -> None:
        _minutes_of("start", self.start)
        _minutes_of("end", self.end)
        _days_of(self.days)
        # Without the blanks of "sat, sun", because from_text() must read the output of str().
        object.__setattr__(self, "days", "".join(self.days.split()).lower())

    @classmethod
    def from_text(cls, text: object) -> "QuietHours":
        """Return the window in a text such as ``"mon-fri 22:00-07:00"`` or ``"22:00-07:00"``.

        Raises InvalidScheduleError.
        """
        match = None
        if isinstance(text, str) and len(text) <= _MAX_TEXT:
            match = _TEXT.fullmatch(text.strip())
        if match is None:
            rule = "must be a text such as 'mon-fri 22:00-07:00' or '22:00-07:00'"
            raise _invalid("windows", text, rule)
        days, start, end = match.groups()
        return cls(start, end, days=days or "*")

    def __str__(self) -> str:
        days = "" if self.days == "*" else f"{self.days} "
        return f"{days}{self.start}-{self.end}"

    def spans(self) -> Sequence[Span]:
        """Return the minutes of the week in the window. A span can end in the next week."""
        start, end = _minutes_of("start", self.start), _minutes_of("end", self.end)
        length = (end - start) % _DAY or _DAY
        firsts = [day * _DAY + start for day in _days_of(self.days)]
        return [(first, first + length) for first in firsts]


def _minutes_of(field: str, value: object) -> int:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or (value == "24:00" and field == "start"):
        raise _invalid(field, value, "must be a time from '00:00' to '23:59', such as '22:00'")
    return _DAY if match[1] is None else int(match[1]) * 60 + int(match[2])


def _days_of(value: object) -> Sequence[int]:
    rule = "must be days such as 'mon-fri', 'sat,sun' or '*'"
    if not isinstance(value, str) or len(value) > _MAX_DAYS:
        raise _invalid("days", value, rule)
    days: set[int] = set()
    for part in ("mon-sun" if value == "*" else value.lower()).split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if first not in _DAYS or last not in _DAYS:
            raise _invalid("days", value, rule)
        start, end = _DAYS.index(first), _DAYS.index(last)
        days.update((start + number) % 7 for number in range((end - start) % 7 + 1))
    return sorted(days)


def _invalid(field: str, value: object, rule: str) -> InvalidScheduleError:
    return InvalidScheduleError(f"{field} = {shorten(value)}: {rule}", field=field)


class QuietRule(NamedTuple):
    """The quiet hours of one owner or group."""

    windows: Sequence[QuietHours]
    policy: str = "after"

    @classmethod
    def from_json(cls, owner: str, stored: Mapping[str, Any]) -> "QuietRule":
        """Return the rule in the column of an owner or a group.

        Raises InvalidScheduleError if SQL wrote another value.
        """
        try:
            windows, policy = stored["windows"], stored.get("policy", "after")
            if not isinstance(windows, list) or policy not in POLICIES:
                raise ValueError(stored)  # noqa: TRY301
            return cls([QuietHours.from_text(each) for each in windows], policy)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            rule = f"of {owner!r} is not what set_quiet_hours() writes; set it again"
            raise _invalid("quiet_hours", stored, rule) from error

    def to_json(self) -> dict[str, Any]:
        """Return the value of the column."""
        return {"policy": self.policy, "windows": [str(each) for each in self.windows]}


def _merged(spans: Iterable[Span]) -> Sequence[Span]:
    """Return the spans within one week, in order, without overlaps."""
    within: list[Span] = []
    for first, last in spans:
        within.append((first, min(last, _WEEK)))
        if last > _WEEK:
            within.append((0, last - _WEEK))
    merged: list[Span] = []
    for first, last in sorted(within):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def leaving_time(rules: Iterable[QuietRule]) -> Sequence[QuietRule]:
    """Return the rules that apply.

    A rule does not apply if it and the rules before it leave no time.
    """
    found: list[QuietRule] = []
    for rule in rules:
        every = [window for each in (*found, rule) for window in each.windows]
        if _merged(span for window in every for span in window.spans()) != [(0, _WEEK)]:
            found.append(rule)
    return found


def resolved(rules: Iterable[QuietRule], *, timezone: str) -> str | None:
    """Return the quiet hours of an owner as text, or None if the owner has none.

    ``rules`` are the rules of the owner's groups and the owner's own rules. ``timezone`` is the
    zone of the owner. Raises InvalidScheduleError if all rules together leave no time in which a
    run can be sent.
    """
    every = [*rules]
    quiet = _merged(span for rule in every for window in rule.windows for span in window.spans())
    if not quiet:
        return None
    if quiet == [(0, _WEEK)]:
        windows = [str(window) for rule in every for window in rule.windows]
        raise _invalid("windows", windows, _WHOLE_WEEK)
    skipping = _merged(
        span
        for rule in every
        for window in rule.windows
        for span in window.spans()
        if rule.policy == "skip"
    )
    return json.dumps({"timezone": timezone, "quiet": quiet, "skipped": skipping})


@dataclass(frozen=True, slots=True)
class Windows:
    """Times of the week on the clock of a zone."""

    zone: ZoneInfo
    spans: tuple[Span, ...]

    def _edge_after(self, position: timedelta) -> timedelta:
        """Return the first time of the week after ``position`` at which a span begins or ends."""
        minute = position // _MINUTE
        later = (edge for span in self.spans for edge in span if edge > minute)
        return next(later, self.spans[0][0] + _WEEK) * _MINUTE

    def covers(self, instant: datetime) -> bool:
        """Return whether the clock shows a time within a span."""
        minute = _position(wall_at(self.zone, instant)) // _MINUTE
        number = bisect_right(self.spans, (minute, _WEEK)) - 1
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
        end = self.end(instant)
        first = instant.replace(microsecond=0)
        outside, inside = int((first - _LONGEST).timestamp()), int(first.timestamp())
        # The span of a later instant never ends earlier, so a binary search finds the start.
        while inside - outside > 1:
            middle = (inside + outside) // 2
            if self.end(datetime.fromtimestamp(middle, instant.tzinfo)) < end:
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

    ``skipping`` is the part of ``windows`` with the policy "skip". A fire time in it is recorded as
    skipped. None means that no window has this policy.
    """

    windows: Windows
    skipping: Windows | None

    def end(self, instant: datetime) -> datetime:
        """Return ``instant``, or the end of the quiet time around it."""
        return self.windows.end(instant)

    def start(self, instant: datetime) -> datetime:
        """Return ``instant``, or the start of the quiet time around it."""
        return instant if self.end(instant) == instant else self.windows.start(instant)

    def note(self, fire_at: datetime, *, jittered_at: datetime) -> str | None:
        """Return a note if quiet hours skip or delay the run of a fire time, or else None.

        The delay by jitter ends at ``jittered_at``, which can be in quiet hours.
        """
        if self.skips(fire_at):
            return "in quiet hours: not sent"
        end = self.end(jittered_at)
        if end == jittered_at:
            end = self.end(fire_at)
        if end == fire_at:
            return None
        return f"in quiet hours: sent at {describe_instant(end, self.windows.zone.key)}"

    def skips(self, fire_at: datetime) -> bool:
        """Return whether the fire time is recorded as skipped."""
        return self.skipping is not None and self.skipping.covers(fire_at)


class AwakeTrigger(Trigger):
    """The fire times of ``trigger`` up to ``until`` that are not in ``skipping``. Never stored.

    It is for due fire times, so it does not search for later ones. If the trigger is costly and
    many windows follow each other, the search stops early. It then treats the remaining fire times
    as skipped.
    """

    __slots__ = ("_skipping", "_trigger", "_until")
    kind: ClassVar[str] = "awake"

    def __init__(self, trigger: Trigger, skipping: Windows, *, until: datetime) -> None:
        self._trigger, self._skipping, self._until = trigger, skipping, until

    @property
    def spec(self) -> str:
        """Return the spec of the trigger."""
        return self._trigger.spec

    @property
    def counts_fast(self) -> bool:  # type: ignore[override] # of an instance, not of a class
        """Whether the trigger counts fast."""
        return self._trigger.counts_fast

    @property
    def has_spare_budget(self) -> bool:
        """Whether the trigger has spare budget."""
        return self._trigger.has_spare_budget

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, or any one after ``until``."""
        at = self._trigger.next_after(instant)
        for number in range(MAX_PASSED):
            if at is None or at > self._until or not self._skipping.covers(at):
                return at
            if self._is_costly(number):
                break
            at = self._trigger.next_after(self._skipping.end(at) - _MICROSECOND)
        return self._trigger.next_after(self._until)

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        for number in range(MAX_PASSED):
            at = self._trigger.latest_until(after=after, until=until)
            if at is None or not self._skipping.covers(at):
                return at
            until = self._skipping.start(at) - _MICROSECOND
            if until <= after or self._is_costly(number):
                return None
        return None

    def _is_costly(self, number: int) -> bool:
        """Return whether a search ends after window ``number``, counted from 0."""
        return number > 0 and not self.has_spare_budget

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        count, at = 0, self.next_after(after)
        for number in range(MAX_PASSED):
            if at is None or at > until or count >= limit or self._is_costly(number):
                break
            stop = min(self._skipping.changes_at(at) - _MICROSECOND, until)
            count += 1 + self._trigger.count_until(after=at, until=stop, limit=limit - count - 1)
            at = self.next_after(stop)
        return min(count, limit)

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the trigger."""
        return self._trigger.phrase(timezone)


@lru_cache(maxsize=1024)
def quiet_of(text: str) -> Quiet:
    """Return the quiet hours in the column ``quiet_hours`` of a schedule.

    Raises InvalidTriggerError if SQL wrote another value.
    """
    try:
        stored = json.loads(text)
        zone = load_zone(stored["timezone"])
        quiet, skipping = (_spans(stored[name]) for name in ("quiet", "skipped"))
        if not quiet or quiet == ((0, _WEEK),):
            raise ValueError(text)  # noqa: TRY301
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        message = f"quiet_hours = {shorten(text)}: is not what set_quiet_hours() writes"
        raise InvalidTriggerError(message, field="quiet_hours") from error
    return Quiet(Windows(zone, quiet), Windows(zone, skipping) if skipping else None)


def _spans(stored: Any) -> tuple[Span, ...]:
    spans = [(int(first), int(last)) for first, last in stored]
    if any(not 0 <= first < last <= _WEEK for first, last in spans):
        raise ValueError(stored)
    return tuple(_merged(spans))
