"""Decide which fire times of a range a backfill runs, and adjust the skipped rows: pure rules.

A skipped fire time has no run. When a backfill makes a run for it, the fire time leaves the skipped
row that covers it. That row keeps the newer fire times. The older ones get a separate row, so
the counts still add up.

A bounded count means "at least". It is used without a correction, because only that many fire times
are known to have been skipped. The same is true for a count from before the trigger changed,
because only the newest of its fire times is known.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import COUNT_LIMIT, MICROSECOND, Skip, following
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.wrappers import SkippingTrigger

#: How far back to search for the previous fire time.
_LOOKBACK = timedelta(days=3660)


class SkippedRow(Protocol):
    """A row of history that covers fire times without a run."""

    @property
    def fire_at(self) -> datetime:
        """The newest fire time."""

    @property
    def fire_count(self) -> int:
        """The number of fire times."""

    @property
    def error(self) -> str | None:
        """The reason why the fire times were skipped."""


@dataclass(frozen=True, slots=True)
class SkippedRemainder:
    """What a skipped row still covers: ``newer`` fire times. The ``older`` ones need a new row."""

    newer: int
    older: Skip | None


def fire_times(
    spec: ScheduleSpec, *, after: datetime, until: datetime, limit: int
) -> list[datetime]:
    """Return up to ``limit`` fire times with after < fire time < until, oldest first.

    They are also within ``start_at`` and ``end_at`` of the schedule. If the search budget of
    ``spec`` has no spare steps left, fewer are returned, but at least one if there is one.
    """
    if spec.end_at is not None:
        until = min(until, spec.end_at + MICROSECOND)
    if spec.start_at is not None:
        after = max(after, spec.start_at - MICROSECOND)
    found: list[datetime] = []
    fire_at = spec.trigger.next_after(after)
    while fire_at is not None and fire_at < until and len(found) < limit:
        found.append(fire_at)
        if not spec.trigger.has_spare_budget:
            break
        fire_at = following(spec, fire_at)
    return found


def remainder_of(
    trigger: Trigger,
    row: SkippedRow,
    removed: Sequence[datetime],
    *,
    by_call: Collection[datetime] = (),
    is_of_trigger: bool = True,
) -> SkippedRemainder | None:
    """Return what a skipped row covers without ``removed``, or None if it does not cover them.

    ``removed`` are consecutive fire times up to the row's newest one. Between them the history has
    only rows of fire times that ``skip()`` took out. ``by_call`` are the fire times of these rows
    up to the row's newest one, which the skipped row does not count. If ``is_of_trigger`` is false,
    the row was written before the trigger changed.
    """
    newest = row.fire_at
    if row.fire_count == 1:
        return SkippedRemainder(0, None) if removed[-1] == newest else None
    if not is_of_trigger:
        return _without_newest(row) if removed[-1] == newest else None
    trigger = SkippingTrigger(trigger, dict.fromkeys(by_call, "")) if by_call else trigger
    if trigger.next_after(newest - MICROSECOND) != newest:
        # The row was written for another trigger, so it covers no fire time of this trigger.
        return None
    limit = row.fire_count if trigger.counts_fast else min(row.fire_count, COUNT_LIMIT)
    newer = trigger.count_until(after=removed[-1], until=newest, limit=limit)
    if newer == limit:
        return None
    older = row.fire_count - newer - sum(at not in by_call for at in removed)
    if older <= 0:
        return SkippedRemainder(newer, None)
    before = removed[0] - MICROSECOND
    at = trigger.latest_until(after=before - _LOOKBACK, until=before) or before
    return SkippedRemainder(newer, Skip(at, older, row.error or ""))


def _without_newest(row: SkippedRow) -> SkippedRemainder:
    """Return what a skipped row covers without its newest fire time, if the others are unknown."""
    others = row.fire_count - 1
    before = row.fire_at - MICROSECOND
    return SkippedRemainder(0, Skip(before, others, row.error or "") if others else None)
