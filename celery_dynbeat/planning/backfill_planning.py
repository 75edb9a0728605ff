"""Which fire times of a range have no run, and what that leaves of the skipped rows: pure rules.

A fire time that was skipped has no run. When it gets one after all, it is taken out of the skipped
row that stands for it: the row keeps the newer ones, the older ones get a row of their own, so the
counts add up. A count that was bounded says "at least" and is taken at its word: only so many fire
times are known to have been skipped.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from celery_dynbeat.planning.plan import COUNT_LIMIT, TICK, Skip, following
from celery_dynbeat.planning.schedule_spec import ScheduleSpec
from celery_dynbeat.triggers import Trigger

#: How far back the fire time before another one is looked for.
_REACH = timedelta(days=3660)


class SkippedRow(Protocol):
    """A row of history that stands for fire times without a run."""

    @property
    def scheduled_for(self) -> datetime:
        """The newest of them."""

    @property
    def fire_count(self) -> int:
        """How many there are."""

    @property
    def error(self) -> str | None:
        """Why they were skipped."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of a skipped row: ``newer`` fire times in it, ``older`` ones to record anew."""

    newer: int
    older: Skip | None


def fire_times(rule: ScheduleSpec, *, start: datetime, end: datetime, limit: int) -> list[datetime]:
    """Return up to ``limit`` fire times in [start, end] within the rule's span, oldest first."""
    until = end if rule.end_at is None else min(end, rule.end_at)
    first = start if rule.start_at is None else max(start, rule.start_at)
    found: list[datetime] = []
    fire_at = rule.trigger.next_after(first - TICK)
    while fire_at is not None and fire_at <= until and len(found) < limit:
        found.append(fire_at)
        fire_at = following(rule, fire_at)
    return found


def choose(
    window: Sequence[datetime], *, present: Collection[datetime], room: int
) -> tuple[list[datetime], list[datetime]]:
    """Return the fire times that are dealt with, and those of them that become runs.

    It ends before the first that needs a run when there is no ``room`` for one.
    """
    dealt: list[datetime] = []
    wanted: list[datetime] = []
    for fire_at in window:
        if fire_at not in present:
            if len(wanted) == room:
                break
            wanted.append(fire_at)
        dealt.append(fire_at)
    return dealt, wanted


def rest_of(trigger: Trigger, row: SkippedRow, taken: Sequence[datetime]) -> Rest | None:
    """Return what is left of a skipped row without ``taken``; None: it does not stand for them.

    ``taken`` are consecutive, up to the row's newest, with no other row of history between.
    """
    newest = row.scheduled_for
    if trigger.next_after(newest - TICK) != newest:
        # Skipped under another rule: its fire times are none of today's.
        return None
    limit = row.fire_count if trigger.counts_fast else min(row.fire_count, COUNT_LIMIT)
    newer = trigger.count_until(after=taken[-1], until=newest, limit=limit)
    if newer == limit:
        return None
    older = row.fire_count - newer - len(taken)
    if older <= 0:
        return Rest(newer, None)
    before = taken[0] - TICK
    at = trigger.latest_until(after=before - _REACH, until=before) or before
    return Rest(newer, Skip(at, older, row.error or ""))
