"""A trigger whose questions share one budget: those that beat asks to plan a schedule once."""

from datetime import datetime
from itertools import islice, takewhile
from typing import ClassVar, NoReturn

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import Trigger, utc
from celery_dynbeat.triggers.budget import PREPARATION, Budget, SpentError
from celery_dynbeat.triggers.search_budget import BEGINNING, fire_times


class Metered(Trigger):
    """The fire times of ``trigger``, paid for from one budget. It is asked, and never stored.

    Questions about instants that do not decrease share one walk: what was found stays known. Raises
    ``InvalidTriggerError`` when the budget is spent. A count only stops early.
    """

    __slots__ = ("_asked", "_budget", "_trigger", "_walk")
    kind: ClassVar[str] = "metered"

    def __init__(self, trigger: Trigger, budget: Budget) -> None:
        self._trigger, self._budget = trigger, budget
        self._walk = trigger.walk(budget)
        self._asked = BEGINNING

    @property
    def spec(self) -> str:
        """Return that of the trigger."""
        return self._trigger.spec

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""
        instant = utc(instant, field="instant")
        if instant < self._asked:
            self._walk = self._trigger.walk(self._budget)
        self._asked = instant
        try:
            return self._walk.after(instant)
        except SpentError:
            self._refuse()

    @property
    def affords_more(self) -> bool:
        """Whether three quarters of the steps are left: for what a plan has to ask in the end."""
        return 4 * self._budget.spent < self._budget.limit

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        after, until = utc(after, field="after"), utc(until, field="until")
        try:
            return self._trigger.latest_within(self._budget, after=after, until=until)
        except SpentError:
            self._refuse()

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``.

        It takes half of the steps that are left, and there are at least so many as it returns.
        """
        after, until = utc(after, field="after"), utc(until, field="until")
        share = self._budget.half()
        found = fire_times(self._trigger.walk(share), after)
        inside = takewhile(lambda fire_time: fire_time <= until, found)
        count = sum(1 for _ in islice(inside, max(limit, 0)))
        self._budget.spend(min(share.spent, int(share.limit)))
        return count

    def phrase(self) -> str:
        """Say the trigger."""
        return self._trigger.phrase()

    def _refuse(self) -> NoReturn:
        raise too_costly(self._trigger, self._budget) from None


def too_costly(
    trigger: Trigger, budget: Budget, *, what: str = "to plan it"
) -> InvalidTriggerError:
    """Return the error for a trigger whose questions take more than the budget has."""
    rule = (
        f"too costly, {what} takes more than {budget.limit:.0f} steps: combine fewer triggers,"
        " exclude fewer days, choose rules that fire more often, or make several schedules"
    )
    return InvalidTriggerError(f"{trigger.kind} {shorten(trigger.spec)}: {rule}", field="spec")


def check_preparation(trigger: Trigger, steps: int) -> None:
    """Raise ``InvalidTriggerError`` for ``trigger`` if ``steps`` are more than one may take."""
    if steps > PREPARATION:
        rule = (
            f"too costly, its recurrence rules take {steps} steps to count through and prepare, at"
            f" most {PREPARATION} in all: set UNTIL instead of COUNT, combine fewer rules, or make"
            " several schedules"
        )
        raise InvalidTriggerError(f"{trigger.kind} {shorten(trigger.spec)}: {rule}", field="spec")
