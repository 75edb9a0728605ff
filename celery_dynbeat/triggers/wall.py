"""Where a cron expression falls: on the wall clock by croniter, on real instants by our own rule.

The rule for changes of clocks is that of Debian's cron(8), in the words of its manual: jobs "that
run at a particular time" and fall into the skipped hour run soon after the change, those in the
repeated hour "will not be re-run"; jobs "specified with wildcards are run based on the new time
immediately". croniter gets wall times only, so that nothing of its own treatment of zones is used.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from croniter import croniter

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import shorten
from celery_dynbeat.triggers.fields import Field, Fields, month_has, parse_fields
from celery_dynbeat.triggers.zones import first_instant, fold_at, wall_at

_MICROSECOND = timedelta(microseconds=1)
# 29 February falls on a given day of the week after 40 years at the latest (2072 to 2112).
_MAX_YEARS_BETWEEN = 48
_ANY = Field("*", (), full=True)
_FEBRUARY = 2


@dataclass(frozen=True, slots=True)
class WallRule:
    """An expression ready for evaluation: it fires when any of ``searches`` does."""

    searches: tuple[croniter, ...]
    wildcard: bool

    def first_after(self, wall: datetime) -> datetime:
        """Return the first matching wall time strictly after ``wall``; there always is one."""
        return min(_next(search, wall.replace(microsecond=0)) for search in self.searches)

    def first_from(self, wall: datetime) -> datetime:
        """Return the first matching wall time at or after ``wall``."""
        return self.first_after(wall - _MICROSECOND)


@lru_cache(maxsize=4096)
def wall_rule(expression: str, *, day_or: bool) -> WallRule:
    """Prepare an expression. Raises ``InvalidTriggerError`` when no date can ever match it.

    A day matches when both day fields do, as with the rest; only if neither begins with ``*``,
    and ``day_or``, is one of the two enough (crontab(5), on "restricted" fields).
    """
    fields = parse_fields(expression)
    either = day_or and not (fields.day.starred or fields.weekday.starred)
    days = (
        ((fields.day, _ANY), (_ANY, fields.weekday)) if either else ((fields.day, fields.weekday),)
    )
    possible = [pair for pair in days if _possible(*pair, months=fields.month.values)]
    if not possible:
        message = (
            f"no such date: day of month {shorten(fields.day.text)}, month"
            f" {shorten(fields.month.text)} and day of week {shorten(fields.weekday.text)} never"
            " come together; choose days that exist"
        )
        raise InvalidTriggerError(message, field="day of month")
    searches = tuple(_search(fields, day=day, weekday=weekday) for day, weekday in possible)
    return WallRule(searches, fields.wildcard)


def next_fixed(rule: WallRule, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the next fire time of a fixed expression.

    A wall time fires at the first instant that has reached it: after the gap if it lies in one,
    in the first pass of a fold. So the second pass has nothing left but what follows the fold.
    """
    fold = fold_at(zone, instant)
    if fold is not None and fold.second_pass:
        wall = rule.first_from(fold.end)
    else:
        wall = rule.first_after(wall_at(zone, instant))
    return first_instant(zone, wall)[0]


def next_wildcard(rule: WallRule, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the next fire time of a wildcard expression: the next instant that shows a match."""
    wall = rule.first_after(wall_at(zone, instant))
    fold = fold_at(zone, instant)
    if fold is None or (not fold.second_pass and wall < fold.end):
        return _first_shown(rule, zone, wall)
    if not fold.second_pass:
        wall = rule.first_from(fold.first)
    if wall < fold.end:
        return (wall - fold.offset_in_second_pass).replace(tzinfo=instant.tzinfo)
    return _first_shown(rule, zone, wall)


def _first_shown(rule: WallRule, zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the first instant that shows ``wall``, or a later match if it lies in a gap."""
    instant, shown = first_instant(zone, wall)
    while not shown:
        wall = rule.first_from(wall_at(zone, instant))
        instant, shown = first_instant(zone, wall)
    return instant


def _next(search: croniter, wall: datetime) -> datetime:
    # A copy, because a search moves its croniter, and threads share this one.
    found: datetime = copy(search).get_next(datetime, start_time=wall)
    return found


def _possible(day: Field, weekday: Field, *, months: Iterable[int]) -> bool:
    """Whether some date matches. Every date falls on every day of the week in some year."""
    weeks = {week for _, week in weekday.nth} or {1, 2, 3, 4, 5}
    return any((date - 1) // 7 + 1 in weeks for month in months for date in _dates(day, month))


def _dates(day: Field, month: int) -> set[int]:
    longest = next(date for date in (31, 30, 29) if month_has(date, month))
    dates = {date for date in day.values or range(1, 32) if date <= longest}
    if not day.last_day:
        return dates
    last = {28, 29} if month == _FEBRUARY else {longest}
    return last | (dates if day.values else set())


def _search(fields: Fields, *, day: Field, weekday: Field) -> croniter:
    # croniter counts "l" as a day and takes 31 of them for all, unless it sees no "*" beside.
    weekdays = "0,1,2,3,4,5,6" if day.last_day and weekday.full else _canonical(weekday)
    texts = [*map(_canonical, (fields.minute, fields.hour, day, fields.month)), weekdays]
    if fields.second is not None:
        texts.append(_canonical(fields.second))
    years = _MAX_YEARS_BETWEEN
    return croniter(" ".join(texts), 0, day_or=False, max_years_between_matches=years)


def _canonical(field: Field) -> str:
    """Write a field as croniter cannot misread it: no ranges, no steps, no names."""
    if field.full:
        return "*"
    items = [str(value) for value in field.values]
    items += [f"{weekday}#{week}" for weekday, week in field.nth]
    return ",".join([*items, "l"] if field.last_day else items)
