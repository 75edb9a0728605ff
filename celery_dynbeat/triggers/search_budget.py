"""Limit the cost of a search for fire times, counted in steps.

A step is one year, week or day that a recurrence rule looks at: a little more than a microsecond.
Unlike seconds, steps are equal on every machine, so every machine refuses the same triggers.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

#: The steps to find one fire time of a ``Cron`` or an ``Every``: up to about 60 microseconds.
LOOKUP_STEPS = 50
#: The steps of one search in a combined trigger: about a tenth of a second.
SEARCH_STEPS = 1_800 * LOOKUP_STEPS
#: The steps of all searches that beat needs to plan a schedule once.
PLAN_STEPS = 2 * SEARCH_STEPS
#: The steps to prepare the recurrence rules of one trigger, COUNT included: about 25 milliseconds.
PREPARATION_STEPS = 20_000


class BudgetExceededError(Exception):
    """A search needs more steps than its budget has. Callers see ``InvalidTriggerError``."""


@dataclass(slots=True)
class SearchBudget:
    """The steps that some searches may take together, and the steps that they have taken."""

    limit: float = SEARCH_STEPS
    spent: int = 0
    _searched: set[Hashable] = field(default_factory=set)

    def spend(self, steps: int) -> None:
        """Take ``steps``. Raises ``BudgetExceededError`` when fewer are left."""
        self.spent += steps
        if self.spent > self.limit:
            raise BudgetExceededError

    def spend_once(self, key: Hashable, steps: int) -> None:
        """Take ``steps`` for the search ``key``, unless this budget has taken them before."""
        if key not in self._searched:
            self.mark_searched(key)
            self.spend(steps)

    def mark_searched(self, key: Hashable) -> None:
        """Make ``spend_once`` free for the search ``key``."""
        self._searched.add(key)

    @property
    def remaining(self) -> float:
        """Return the steps that are left."""
        return self.limit - self.spent

    def half(self) -> "SearchBudget":
        """Return a new budget of half the remaining steps. The caller spends its cost here."""
        return SearchBudget(self.remaining / 2)


def unlimited_budget() -> SearchBudget:
    """Return a budget without a limit, for an accepted trigger whose searches are bounded."""
    return SearchBudget(math.inf)
