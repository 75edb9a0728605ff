"""A trigger without the fire times that ``skip()`` took out. Schedules are planned with it."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import ClassVar

from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.validation import utc

_MICROSECOND = timedelta(microseconds=1)


class SkippingTrigger(Trigger):
    """The fire times of ``trigger`` except those in ``skipped``. It is never stored.

    An instant in ``skipped`` that ``trigger`` does not yield has no effect. Each skipped fire time
    can cost one more search, so the caller bounds their number.
    """

    __slots__ = ("skipped", "trigger")
    kind: ClassVar[str] = "skipping"

    def __init__(self, trigger: Trigger, skipped: Collection[datetime]) -> None:
        self.trigger = trigger
        self.skipped = frozenset(skipped)

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
        return min(max(count - sum(map(self._takes_out, inside)), 0), limit)

    def _takes_out(self, skipped: datetime) -> bool:
        """Return whether the trigger yields ``skipped``; True if the budget is nearly spent."""
        if not self.trigger.has_spare_budget:
            return True
        return self.trigger.next_after(skipped - _MICROSECOND) == skipped

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the trigger."""
        return self.trigger.phrase(timezone)


def nominal(trigger: Trigger) -> Trigger:
    """Return ``trigger`` with the fire times that ``skip()`` took out."""
    return trigger.trigger if isinstance(trigger, SkippingTrigger) else trigger
