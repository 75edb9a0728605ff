"""Cron: fire times at matching wall times of a zone.

``WallTimes`` has the dates and wall times that an expression matches, without regard to zones. The
instants follow the rule of Debian's cron(8). Its manual says about clock changes: jobs "that run at
a particular time" and fall into the skipped hour run soon after the change, those in the repeated
hour "will not be re-run"; jobs "specified with wildcards are run based on the new time
immediately".

A count does not search for each fire time. While the offset of a zone stays the same, its clock
shows each wall time once. The span is therefore cut where the offset changes, and the matching wall
times of each piece are counted. A wildcard expression fires whenever the clock shows a match, so
its count is the sum of the pieces. A fixed expression fires when the clock reaches a match. Wall
times that an earlier piece has shown do not count again, and wall times in a gap share one instant.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import product
from math import prod
from typing import ClassVar
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import EARLIEST, LATEST, shorten
from celery_dynbeat.triggers.base import Trigger, require_text, utc
from celery_dynbeat.triggers.cron.description import describe_cron
from celery_dynbeat.triggers.cron.expression import (
    CronExpression,
    CronField,
    Month,
    parse_expression,
    resolve_hashes,
)
from celery_dynbeat.triggers.zones import (
    end_of_offset,
    first_instant,
    fold_at,
    load_zone,
    next_wall,
    wall_at,
    zone_name,
)

#: 29 February falls on its day of the week again after 40 years at the latest (2072 to 2112).
MAX_YEARS_BETWEEN = 48
#: In these years every date, including 29 February, falls on every day of the week.
_EVERY_CALENDAR = range(2001, 2029)
_ANY = CronField("*", (), full=True)
# This does not match the h of "thu".
_HASHED = re.compile(r"\bh")
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
#: The day of month and the day of week.
DayFields = tuple[CronField, CronField]


class WallTimes:
    """The matching times of day on the matching days. Threads may share it."""

    __slots__ = (
        "_clock",
        "_day_fields",
        "_days",
        "_months",
        "_times_per_day",
        "wildcard",
    )

    def __init__(self, expression: CronExpression, *, day_or: bool) -> None:
        #: Whether the expression follows elapsed time around a clock change.
        self.wildcard = expression.wildcard
        seconds = (0,) if expression.second is None else expression.second.values
        self._clock = (expression.hour.values, expression.minute.values, seconds)
        self._times_per_day = prod(map(len, self._clock))
        self._months = expression.month.values
        self._day_fields: tuple[DayFields, ...] = possible_days(expression, day_or=day_or)
        # The days of each kind of month, of which there are 28, as bits: the 1st is bit 1.
        self._days: dict[Month, int] = {}

    def first_after(self, wall: datetime) -> datetime:
        """Return the first matching wall time strictly after ``wall``.

        There is always such a time.
        """
        start = wall.replace(microsecond=0) + _SECOND
        day = self._first_day(start.year, start.month, start.day)
        rank = self._times_before(start) if day == start.date() else 0
        if rank == self._times_per_day:
            day, rank = self._first_day(start.year, start.month, start.day + 1), 0
        return self._time_of(day, rank)

    def first_from(self, wall: datetime) -> datetime:
        """Return the first matching wall time at or after ``wall``."""
        return self.first_after(wall - _MICROSECOND)

    def count_between(self, start: datetime, stop: datetime) -> int:
        """Count the matching wall times in ``[start, stop)``. Both are whole seconds."""
        first, last = start.year * 12 + start.month - 1, stop.year * 12 + stop.month - 1
        days = 0
        for number in range(first, last + 1):
            bits = self._days_of(number)
            if number == last:
                bits &= (1 << stop.day) - 1
            if number == first:
                bits = bits >> start.day << start.day
            days += bits.bit_count()
        # The last day counts up to ``stop``, and the first day from ``start``.
        count = days * self._times_per_day
        if self._days_of(last) >> stop.day & 1:
            count += self._times_before(stop)
        if self._days_of(first) >> start.day & 1:
            count -= self._times_before(start)
        return count

    def _first_day(self, year: int, month: int, day: int) -> date:
        """Return the first matching date from a day on, which may lie past the end of its month."""
        for number in (later for later in self._months if later >= month):
            bits = self._days_of(year * 12 + number - 1)
            if number == month:
                bits = bits >> day << day
            if bits:
                return _lowest(year, number, bits)
        # The months that match, and no other: 29 February can be 40 years away.
        for later in range(year + 1, year + MAX_YEARS_BETWEEN):
            for number in self._months:
                if bits := self._days_of(later * 12 + number - 1):
                    return _lowest(later, number, bits)
        raise AssertionError("possible_days finds expressions without dates")

    def _days_of(self, number: int) -> int:
        """Return the matching days of a month as bits. Months count from January of year 0."""
        if number % 12 + 1 not in self._months:
            return 0
        month = Month.of(number // 12, number % 12 + 1)
        bits = self._days.get(month)
        if bits is None:
            days = set[int]().union(*(days_in(fields, month) for fields in self._day_fields))
            bits = self._days[month] = sum(1 << day for day in days)
        return bits

    def _times_before(self, wall: datetime) -> int:
        """Return the number of matching times of day before the time of ``wall``."""
        rank, exact = 0, True
        for values, value in zip(self._clock, (wall.hour, wall.minute, wall.second), strict=True):
            place = bisect_left(values, value) if exact else 0
            rank = rank * len(values) + place
            exact = exact and value in values[place : place + 1]
        return rank

    def _time_of(self, day: date, rank: int) -> datetime:
        """Return the matching wall time with ``rank`` other times before it on its day."""
        hours, minutes, seconds = self._clock
        rank, second = divmod(rank, len(seconds))
        hour, minute = divmod(rank, len(minutes))
        clock = hours[hour], minutes[minute], seconds[second]
        return datetime(day.year, day.month, day.day, *clock)  # noqa: DTZ001 - a wall time


def _lowest(year: int, month: int, bits: int) -> date:
    return date(year, month, (bits & -bits).bit_length() - 1)


@lru_cache(maxsize=4096)
def wall_times(expression: str, *, day_or: bool) -> WallTimes:
    """Return the wall times of an expression. Each ``H`` gets the values of the key "".

    Raises ``InvalidTriggerError`` when no date can ever match, for any key.
    """
    parsed = parse_expression(expression)
    if parsed.hashed:
        require_dates(parsed, day_or=day_or)
        return wall_times(resolve_hashes("", parsed), day_or=day_or)
    return WallTimes(parsed, day_or=day_or)


def days_in(fields: DayFields, month: Month) -> set[int]:
    """Return the days of a month on which both the day of month and the day of week match."""
    day, weekday = fields
    days = set(range(1, month.length + 1)) if day.full else _month_days(day, month)
    if weekday.full:
        return days
    nth = {rule.on(month) for rule in weekday.day_rules}
    return {day for day in days if month.weekday(day) in weekday.values or day in nth}


def possible_days(expression: CronExpression, *, day_or: bool) -> tuple[DayFields, ...]:
    """Return pairs of day fields, one of which must match. Pairs that never match are left out.

    A day matches when both day fields match. If ``day_or``, and neither field begins with ``*``,
    one matching field is enough ("restricted" fields in crontab(5)).

    Raises ``InvalidTriggerError`` when no date can ever match.
    """
    both = (expression.day, expression.weekday)
    either = day_or and not any(field.starred for field in both)
    pairs: tuple[DayFields, ...] = (both,)
    if either:
        pairs = ((expression.day, _ANY), (_ANY, expression.weekday))
    possible = tuple(pair for pair in pairs if _exist(pair, months=expression.month.values))
    if not possible:
        raise _no_such_date(expression)
    return possible


def require_dates(expression: CronExpression, *, day_or: bool) -> None:
    """Raise ``InvalidTriggerError`` if some key selects dates for an ``H`` that never match."""
    days, months, weekdays = map(_outcomes, (expression.day, expression.month, expression.weekday))
    if not expression.day.day_rules:
        # One weekday is enough: in some year a date falls on any of them.
        weekdays = weekdays[:1]
    for day, month, weekday in product(days, months, weekdays):
        possible_days(replace(expression, day=day, month=month, weekday=weekday), day_or=day_or)


def _exist(fields: DayFields, *, months: Iterable[int]) -> bool:
    return any(
        days_in(fields, Month.of(year, month)) for year, month in product(_EVERY_CALENDAR, months)
    )


def _month_days(day: CronField, month: Month) -> set[int]:
    numbers = {number for number in day.values if number <= month.length}
    ruled = {rule.on(month) for rule in day.day_rules}
    return numbers | {number for number in ruled if number is not None}


def _outcomes(field: CronField) -> list[CronField]:
    """Return the fields that keys can select, with as few values as possible."""
    plain = replace(field, hashed_items=())
    if not field.hashed_items or field.values or field.day_rules:
        return [plain]
    outcomes = field.hashed_items[0].outcomes
    return [replace(plain, values=tuple(sorted(values))) for values in outcomes]


def _no_such_date(expression: CronExpression) -> InvalidTriggerError:
    fields = (expression.day, expression.month, expression.weekday)
    day, month, weekday = (field.text for field in fields)
    never, hint = "never occur", "choose days that exist"
    if _HASHED.search(f"{day} {month} {weekday}"):
        never, hint = "do not always occur", "give H a range of days that exist, such as H(1-28)"
    return InvalidTriggerError(
        f"no such date: day of month {shorten(day)}, month {shorten(month)} and day of week"
        f" {shorten(weekday)} {never} together; {hint}",
        field="day of month",
    )


# Short pieces, so that a count stops soon after it reaches its limit.
_MAX_PIECE = timedelta(days=400)


def next_fixed(times: WallTimes, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the next fire time of a fixed expression.

    A wall time fires at the first instant that has reached it: after a gap, or in the first pass of
    a fold. In the second pass, the next wall time is therefore a time after the fold.
    """
    return first_instant(zone, times.first_from(next_wall(zone, instant)))[0]


def next_wildcard(times: WallTimes, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the next fire time of a wildcard expression, at which the clock shows a match."""
    wall = times.first_after(wall_at(zone, instant))
    fold = fold_at(zone, instant)
    if fold is None or (not fold.second_pass and wall < fold.end):
        return _first_shown(times, zone, wall)
    if not fold.second_pass:
        wall = times.first_from(fold.first)
    if wall < fold.end:
        return (wall - fold.offset_in_second_pass).replace(tzinfo=instant.tzinfo)
    return _first_shown(times, zone, wall)


def _first_shown(times: WallTimes, zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the first instant that shows ``wall``, or a later match if ``wall`` is in a gap."""
    instant, shown = first_instant(zone, wall)
    while not shown:
        wall = times.first_from(wall_at(zone, instant))
        instant, shown = first_instant(zone, wall)
    return instant


def count_fire_times(
    times: WallTimes, zone: ZoneInfo, *, after: datetime, until: datetime, limit: int
) -> int:
    """Count the fire times in ``(after, until]``, at most up to ``limit``, which is positive.

    The span lies between EARLIEST and LATEST.
    """
    # Fire times fall on whole seconds, so the ends of the span may be rounded down.
    after, until = after.replace(microsecond=0), until.replace(microsecond=0)
    pieces = _pieces(zone, after + _SECOND, until + _SECOND)
    counts: Iterable[int]
    if times.wildcard:
        counts = (times.count_between(start, stop) for start, stop in pieces)
    else:
        counts = _fixed_counts(times, pieces, unreached=next_wall(zone, after))
    total = 0
    for count in counts:
        total += count
        if total >= limit:
            return limit
    return total


def _fixed_counts(
    times: WallTimes, pieces: Iterable[tuple[datetime, datetime]], *, unreached: datetime
) -> Iterator[int]:
    """Yield how many fixed times each piece reaches, beginning with the time ``unreached``."""
    for start, stop in pieces:
        if unreached < start:
            # The wall times in the gap and the one right after it fire at one instant.
            yield min(times.count_between(unreached, start + _SECOND), 1)
            unreached = start + _SECOND
        if unreached < stop:
            yield times.count_between(unreached, stop)
            unreached = stop


def _pieces(zone: ZoneInfo, start: datetime, stop: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the wall times of ``[start, stop)`` in pieces with one offset each.

    A piece is its first wall time and its end. The clock does not show the end if it changes there.
    """
    while start < stop:
        end = end_of_offset(zone, start, min(stop, start + _MAX_PIECE))
        wall = wall_at(zone, start)
        yield wall, wall + (end - start)
        start = end


_DAY_AND = "day_and"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Cron(Trigger):
    """Fire when the wall clock of ``timezone`` matches a cron expression.

    The expression has five fields (minute, hour, day of month, month, day of week), or six with
    seconds as the sixth. If neither day field begins with ``*``, one matching day field is enough,
    as in cron. With ``day_or=False``, both must match, as in Celery's ``crontab``. If a day field
    begins with ``*``, this makes no difference, and ``day_or`` is True. The default zone is UTC.

    Each ``H`` stands for values that the key of ``hashed_by(key)`` selects. The default key is "",
    and beat uses the owner and name of the schedule. ``bound_to(key)`` keeps the text of the
    expression. The trigger of a stored schedule is bound.

    Around a clock change, a fixed time (neither minute nor hour begins with ``*``) fires once. If
    the clock skips the time, it fires at the first instant after the gap. If the clock repeats the
    time, it fires at the first occurrence. Any other expression fires at each real instant whose
    wall clock matches: twice in the repeated hour, and not at all in the skipped hour.

    Raises ``InvalidTriggerError``. ``field`` names the invalid part: ``"minute"``, ``"hour"``,
    ``"day of month"``, ``"month"``, ``"day of week"``, ``"second"`` or ``"timezone"``.

    >>> weekdays = Cron("0 9 * * mon-fri", timezone="Asia/Seoul")
    >>> weekdays.describe()
    'At 09:00, Monday to Friday, Asia/Seoul'
    >>> str(weekdays.next_after(datetime(2026, 11, 21, tzinfo=UTC)))
    '2026-11-23 00:00:00+00:00'
    """

    kind: ClassVar[str] = "cron"
    counts_fast: ClassVar[bool] = True

    expression: str
    timezone: str | None = field(default=None)
    day_or: bool = field(default=True)
    #: The key of ``bound_to``, and the trigger without an ``H`` that finds its fire times.
    key: str | None = field(default=None, init=False)
    _resolved: "Cron | None" = field(default=None, init=False, compare=False)

    def __init__(
        self, expression: str, *, timezone: str | ZoneInfo | None = None, day_or: bool = True
    ) -> None:
        expression = require_text(
            expression, field=None, example="0 9 * * mon-fri", label="cron expression"
        )
        parsed = parse_expression(expression)
        # With a * in a day field both settings mean the same, so such triggers compare equal.
        day_or = bool(day_or) or parsed.day.starred or parsed.weekday.starred
        # Checks that there is a matching date.
        wall_times(parsed.text, day_or=day_or)
        timezone = None if timezone is None else zone_name(timezone)
        object.__setattr__(self, "expression", parsed.text)
        object.__setattr__(self, "timezone", timezone)
        object.__setattr__(self, "day_or", day_or)
        object.__setattr__(self, "key", None)
        object.__setattr__(self, "_resolved", None)

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for an expression, which the word ``day_and`` may follow."""
        words = spec.split()
        day_or = not (words and words[-1].lower() == _DAY_AND)
        expression = " ".join(words if day_or else words[:-1])
        return cls(expression, timezone=timezone, day_or=day_or)

    def __repr__(self) -> str:
        call = f"Cron(expression={self.expression!r}, timezone={self.timezone!r}, "
        call += f"day_or={self.day_or!r})"
        return call if self.key is None else f"{call}.bound_to({self.key!r})"

    @property
    def spec(self) -> str:
        """Return the expression, followed by the word ``day_and`` when ``day_or`` is False."""
        return self.expression if self.day_or else f"{self.expression} {_DAY_AND}"

    def to_text(self) -> str:
        """Return the expression with its zone as cronie, robfig/cron and Kubernetes write it.

        The values of an ``H`` are not in it, because they belong to a schedule.
        """
        return self.spec if self.timezone is None else f"CRON_TZ={self.timezone} {self.spec}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 9900."""
        if self._resolved is not None:
            return self._resolved.next_after(instant)
        instant = max(utc(instant, field="instant"), EARLIEST)
        fire_time = _first_after(self, instant.replace(second=0, microsecond=0))
        if fire_time is None or fire_time > instant:
            return fire_time
        # The minute contains fire times because there is a seconds field, or an offset with
        # seconds.
        return _first_after(self, instant.replace(microsecond=0))

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        if self._resolved is not None:
            return self._resolved.count_until(after=after, until=until, limit=limit)
        after = max(utc(after, field="after"), EARLIEST)
        until = min(utc(until, field="until"), LATEST)
        if limit <= 0 or after >= until:
            return 0
        times = wall_times(self.expression, day_or=self.day_or)
        zone = load_zone(self.timezone or "UTC")
        return count_fire_times(times, zone, after=after, until=until, limit=limit)

    def phrase(self, timezone: str | None = None) -> str:  # noqa: ARG002 - it has no instant
        """Describe the expression and its zone."""
        words = describe_cron(parse_expression(self.expression), day_or=self.day_or)
        return f"{words}, {self.timezone or 'UTC'}"

    @property
    def needs_zone(self) -> bool:
        """Whether the trigger names no zone."""
        return self.timezone is None

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger in the zone ``name``, itself if it has a zone already."""
        return self if self.timezone is not None else replace(self, timezone=name)

    def hashed_by(self, key: str) -> "Cron":
        """Return this trigger with the values that ``key`` selects for each ``H``, else itself.

        The values never change and are equal on every machine.
        """
        parsed = parse_expression(self.expression)
        return replace(self, expression=resolve_hashes(key, parsed)) if parsed.hashed else self

    def bound_to(self, key: str) -> Trigger:
        """Return this trigger with the same text and the fire times of ``hashed_by(key)``.

        It compares equal to a trigger bound to the same key. Without an ``H`` it is this trigger.
        """
        resolved = self.hashed_by(key)
        if resolved is self:
            return self
        bound = replace(self)
        object.__setattr__(bound, "key", key)
        object.__setattr__(bound, "_resolved", resolved)
        return bound


@lru_cache(maxsize=8192)
def _first_after(trigger: Cron, instant: datetime) -> datetime | None:
    """Return the first fire time after ``instant``.

    Callers round ``instant`` down, so that equal triggers share a cache entry. A result is valid
    for the exact instant if it lies after it. Microseconds never matter to fire times.
    """
    if instant > LATEST:
        return None
    times = wall_times(trigger.expression, day_or=trigger.day_or)
    zone = load_zone(trigger.timezone or "UTC")
    search = next_wildcard if times.wildcard else next_fixed
    return search(times, zone, instant)
