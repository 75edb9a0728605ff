"""The effects of a trigger's calendars on its fire times, for previews."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.base import SEARCH_STEPS, BudgetExceededError, SearchBudget, Trigger
from celery_dynbeat.triggers.calendar_days import empty_calendars
from celery_dynbeat.triggers.composite.any_of import AnyOf
from celery_dynbeat.triggers.composite.base import Composite
from celery_dynbeat.triggers.composite.excluding import Excluding
from celery_dynbeat.triggers.composite.on_business_day import (
    MAX_SHIFT,
    BusinessDays,
    Direction,
    OnBusinessDay,
    moved_to,
)
from celery_dynbeat.triggers.zones import LocalDay, day_around, describe_instant, load_zone

_MICROSECOND = timedelta(microseconds=1)
_LONGEST_SHIFT = timedelta(days=MAX_SHIFT + 1)


class CalendarEffect(NamedTuple):
    """A fire time that a calendar removes, or moves: ``moved_to`` is then its business day.

    ``note`` is the note of the day in the calendar, or "".
    """

    at: datetime
    calendar: str
    note: str = ""
    moved_to: datetime | None = None

    def describe(self, timezone: str) -> str:
        """Return the calendar with its note, and the instant on the business day."""
        calendar = f"calendar {self.calendar}{f' ({self.note})' if self.note else ''}"
        if self.moved_to is None:
            return calendar
        return f"{calendar}: moves to {describe_instant(self.moved_to, timezone)}"


def effects_on(
    trigger: Trigger, *, after: datetime, until: datetime, limit: int
) -> list[CalendarEffect]:
    """Return the first ``limit`` effects on fire times in ``(after, until]``, in order.

    Fewer are returned if they take too many steps. ``trigger`` is resolved.
    """
    found: list[CalendarEffect] = []
    try:
        for effect in islice(_effects(trigger, after, until, SearchBudget(SEARCH_STEPS)), limit):
            found.append(effect)  # noqa: PERF402 - an exceeded budget must not lose the others
    except BudgetExceededError:
        pass
    return found


def taken_at(trigger: Trigger, instant: datetime) -> bool:
    """Return whether calendars are the reason that ``trigger`` does not yield ``instant``.

    ``trigger`` yields the instant with some days of its calendars. It does not if the instant was
    planned with another release of the tz database.
    """
    if not trigger.calendar_names:
        return False
    if isinstance(trigger, OnBusinessDay):
        return _can_move_to(trigger, instant)
    parts = trigger.parts if isinstance(trigger, Composite) else ()
    if any(taken_at(part, instant) for part in parts):
        return True
    plain = trigger.resolved(empty_calendars(trigger.calendar_names))
    return plain.next_after(instant - _MICROSECOND) == instant


def _can_move_to(rule: OnBusinessDay, instant: datetime) -> bool:
    """Return whether a fire time of the trigger is at ``instant``, or can move to it."""
    zone = load_zone(rule.timezone or "UTC")
    day = day_around(zone, instant)
    after, until = day.start - _MICROSECOND, day.end - _MICROSECOND
    if rule.direction == Direction.NEXT:
        after -= _LONGEST_SHIFT
    else:
        until += _LONGEST_SHIFT
    try:
        return any(
            instant in {at, moved_to(zone, at, day.date)}
            for _, fire_times in _days(rule.trigger, zone, after, until, SearchBudget(SEARCH_STEPS))
            for at in fire_times
        )
    except BudgetExceededError:
        # The days are not known. Do not send a run on a day that may be a holiday.
        return True


def _effects(
    trigger: Trigger, after: datetime, until: datetime, budget: SearchBudget
) -> Iterator[CalendarEffect]:
    if not trigger.calendar_names:
        return iter(())
    if isinstance(trigger, AnyOf):
        return merge(*(_effects(part, after, until, budget) for part in trigger.parts))
    if isinstance(trigger, Excluding):
        inner = _effects(trigger.trigger, after, until, budget)
        return merge(inner, _taken(trigger, after, until, budget))
    assert isinstance(trigger, OnBusinessDay)  # noqa: S101 - no other kind names calendars
    return _moved(trigger, after, until, budget)


def _taken(
    rule: Excluding, after: datetime, until: datetime, budget: SearchBudget
) -> Iterator[CalendarEffect]:
    zone = load_zone(rule.timezone or "UTC")
    for day, fire_times in _days(rule.trigger, zone, after, until, budget):
        days = next((each for each in rule.days if day.date in each.dates), None)
        if days is not None:
            note = days.notes.get(day.date, "")
            yield from (CalendarEffect(at, days.name, note) for at in fire_times)


def _moved(
    rule: OnBusinessDay, after: datetime, until: datetime, budget: SearchBudget
) -> Iterator[CalendarEffect]:
    business = BusinessDays(rule)
    notes = rule.days.notes if rule.days is not None else {}
    for day, fire_times in _days(rule.trigger, business.zone, after, until, budget):
        if business.includes(day.date):
            continue
        target = business.target(day.date)
        for at in fire_times:
            moved = None if target is None else moved_to(business.zone, at, target)
            yield CalendarEffect(at, rule.calendar, notes.get(day.date, ""), moved)


def _days(
    trigger: Trigger, zone: ZoneInfo, after: datetime, until: datetime, budget: SearchBudget
) -> Iterator[tuple[LocalDay, Iterator[datetime]]]:
    """Yield each day with fire times in ``(after, until]``, and an iterator over these."""
    fire_time = trigger.cursor(budget).next_after(after)
    while fire_time is not None and fire_time <= until:
        day = day_around(zone, fire_time)
        yield day, _fire_times(trigger, fire_time, min(until, day.end - _MICROSECOND), budget)
        fire_time = trigger.cursor(budget).next_after(day.end - _MICROSECOND)


def _fire_times(
    trigger: Trigger, first: datetime, until: datetime, budget: SearchBudget
) -> Iterator[datetime]:
    cursor = trigger.cursor(budget)
    fire_time: datetime | None = first
    while fire_time is not None and fire_time <= until:
        yield fire_time
        fire_time = cursor.next_after(fire_time)
