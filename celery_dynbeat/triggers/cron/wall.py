"""Where a cron expression falls: on the wall clock by croniter, on real instants by our own rule.

The rule for changes of clocks is that of Debian's cron(8), in the words of its manual: jobs "that
run at a particular time" and fall into the skipped hour run soon after the change, those in the
repeated hour "will not be re-run"; jobs "specified with wildcards are run based on the new time
immediately". croniter gets wall times only, so that nothing of its own treatment of zones is used.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.cron.dates import possible_days, require_dates
from celery_dynbeat.triggers.cron.fields import parse_fields, picked_by
from celery_dynbeat.triggers.cron.search import Search, search
from celery_dynbeat.triggers.zones import first_instant, fold_at, wall_at

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class WallRule:
    """An expression ready for evaluation: it fires when any of ``searches`` does."""

    searches: tuple[Search, ...]
    wildcard: bool

    def first_after(self, wall: datetime) -> datetime:
        """Return the first matching wall time strictly after ``wall``; there always is one."""
        wall = wall.replace(microsecond=0)
        return min(each.first_after(wall) for each in self.searches)

    def first_from(self, wall: datetime) -> datetime:
        """Return the first matching wall time at or after ``wall``."""
        return self.first_after(wall - _MICROSECOND)


@lru_cache(maxsize=4096)
def wall_rule(expression: str, *, day_or: bool) -> WallRule:
    """Prepare an expression; what waits for a key gets the empty one.

    Raises ``InvalidTriggerError`` when no date can ever match it, whatever the key.
    """
    fields = parse_fields(expression)
    if fields.hashed:
        require_dates(fields, day_or=day_or)
        return wall_rule(picked_by("", fields), day_or=day_or)
    possible = possible_days(fields, day_or=day_or)
    return WallRule(tuple(search(fields, days) for days in possible), fields.wildcard)


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
