"""Wrappers around the trigger of a schedule for planning: a budget, and skipped fire times."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import ClassVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import (
    MIN_INSTANT,
    PREPARATION_STEPS,
    BudgetExceededError,
    SearchBudget,
    Trigger,
    iter_fire_times,
    utc,
)


class BudgetedTrigger(Trigger):
    """The fire times of ``trigger``, found with the steps of one budget. It is never stored.

    Searches whose instants do not decrease share one cursor, so no search runs twice. Raises
    ``InvalidTriggerError`` when the budget is exceeded. ``count_until`` stops early instead.
    """

    __slots__ = ("_budget", "_cursor", "_searched_after", "_trigger")
    kind: ClassVar[str] = "budgeted"

    def __init__(self, trigger: Trigger, budget: SearchBudget) -> None:
        self._trigger, self._budget = trigger, budget
        self._cursor = trigger.cursor(budget)
        self._searched_after = MIN_INSTANT

    @property
    def trigger(self) -> Trigger:
        """Return the trigger without the budget."""
        return self._trigger

    @property
    def spec(self) -> str:
        """Return the spec of the trigger."""
        return self._trigger.spec

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""
        instant = utc(instant, field="instant")
        if instant < self._searched_after:
            self._cursor = self._trigger.cursor(self._budget)
        self._searched_after = instant
        try:
            return self._cursor.next_after(instant)
        except BudgetExceededError:
            raise too_many_steps(self._trigger, self._budget) from None

    @property
    def has_spare_budget(self) -> bool:
        """Whether three quarters of the steps are left, which the last searches of a plan need."""
        return 4 * self._budget.spent < self._budget.limit

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        after, until = utc(after, field="after"), utc(until, field="until")
        try:
            return self._trigger.latest_within(self._budget, after=after, until=until)
        except BudgetExceededError:
            raise too_many_steps(self._trigger, self._budget) from None

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``.

        The count takes half of the remaining steps. If they do not suffice, it is too low.
        """
        after, until = utc(after, field="after"), utc(until, field="until")
        share = SearchBudget(self._budget.remaining / 2)
        fire_times = iter_fire_times(self._trigger.cursor(share), after=after)
        inside = takewhile(lambda fire_time: fire_time <= until, fire_times)
        count = sum(1 for _ in islice(inside, max(limit, 0)))
        self._budget.spend(min(share.spent, int(share.limit)))
        return count

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the trigger."""
        return self._trigger.phrase(timezone)


def too_many_steps(
    trigger: Trigger, budget: SearchBudget, *, task: str = "planning it"
) -> InvalidTriggerError:
    """Return the error for a trigger whose searches need more steps than ``budget`` has."""
    rule = (
        f"too costly, because {task} takes more than {budget.limit:.0f} steps: combine fewer"
        " triggers, exclude fewer days, choose rules that fire more often, or make several"
        " schedules"
    )
    return InvalidTriggerError(f"{shorten(str(trigger))}: {rule}", field="spec")


def check_preparation(trigger: Trigger, steps: int) -> None:
    """Raise ``InvalidTriggerError`` for ``trigger`` if ``steps`` exceed PREPARATION_STEPS."""
    if steps > PREPARATION_STEPS:
        rule = (
            f"too costly, because its recurrence rules take {steps} steps to count through and"
            f" prepare, but the limit is {PREPARATION_STEPS}: set UNTIL instead of COUNT, combine"
            " fewer rules, or make several schedules"
        )
        raise InvalidTriggerError(f"{shorten(str(trigger))}: {rule}", field="spec")


_MICROSECOND = timedelta(microseconds=1)


class SkippingTrigger(Trigger):
    """The fire times of ``trigger`` except those in ``skipped``, which has their reasons.

    It is never stored. An instant in ``skipped`` that ``trigger`` does not yield has no effect.
    Each skipped fire time can cost one more search, so the caller bounds their number.
    """

    __slots__ = ("skipped", "trigger")
    kind: ClassVar[str] = "skipping"

    def __init__(self, trigger: Trigger, skipped: Mapping[datetime, str]) -> None:
        self.trigger, self.skipped = trigger, skipped

    @property
    def spec(self) -> str:
        """Return the spec of the trigger."""
        return self.trigger.spec

    @property
    def counts_fast(self) -> bool:  # type: ignore[override] # of an instance, not of a class
        """Whether the trigger counts fast."""
        return self.trigger.counts_fast

    @property
    def has_spare_budget(self) -> bool:
        """Whether the trigger has spare budget."""
        return self.trigger.has_spare_budget

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""
        fire_time = self.trigger.next_after(instant)
        while fire_time is not None and fire_time in self.skipped:
            fire_time = self.trigger.next_after(fire_time)
        return fire_time

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        fire_time = self.trigger.latest_until(after=after, until=until)
        while fire_time is not None and fire_time in self.skipped:
            fire_time = self.trigger.latest_until(after=after, until=fire_time - _MICROSECOND)
        return fire_time

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        after, until = utc(after, field="after"), utc(until, field="until")
        inside = sorted(at for at in self.skipped if after < at <= until)
        count = self.trigger.count_until(after=after, until=until, limit=limit + len(inside))
        return min(max(count - sum(map(self.takes_out, inside)), 0), limit)

    def takes_out(self, skipped: datetime) -> bool:
        """Return whether the trigger yields ``skipped``; True if the budget is nearly spent."""
        if skipped not in self.skipped:
            return False
        if not self.trigger.has_spare_budget:
            return True
        return self.trigger.next_after(skipped - _MICROSECOND) == skipped

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the trigger."""
        return self.trigger.phrase(timezone)


def nominal(trigger: Trigger) -> Trigger:
    """Return ``trigger`` with the fire times that ``skip()`` removed."""
    return trigger.trigger if isinstance(trigger, SkippingTrigger) else trigger


def unwrapped(trigger: Trigger) -> Trigger:
    """Return ``trigger`` with the fire times that ``skip()`` removed, and without a budget."""
    trigger = nominal(trigger)
    return trigger.trigger if isinstance(trigger, BudgetedTrigger) else trigger
