"""What questions about a trigger may cost, in steps.

A step is what a recurrence rule takes to look at one year, week or day: a little more than a
microsecond. Counted steps, unlike measured seconds, are the same on every machine. A question that
is refused here is refused everywhere.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

#: One fire time of a ``Cron`` or an ``Every``: about 60 microseconds.
LOOKUP = 50
#: The steps of one question about a combination: about a tenth of a second.
SEARCH = 1_800 * LOOKUP
#: The steps of all questions that beat asks to plan a schedule once.
PLAN = 2 * SEARCH
#: The steps to prepare the recurrence rules of one trigger, COUNT included: about 25 milliseconds.
PREPARATION = 20_000


class SpentError(Exception):
    """No steps are left. It never leaves this package."""


@dataclass(slots=True)
class Budget:
    """The steps that some questions may take in all, and those that they have taken."""

    limit: float = SEARCH
    spent: int = 0
    _known: set[Hashable] = field(default_factory=set)

    def spend(self, steps: int) -> None:
        """Take ``steps``. Raises ``SpentError`` when the budget has fewer left."""
        self.spent += steps
        if self.spent > self.limit:
            raise SpentError

    def note(self, key: Hashable) -> None:
        """Remember that the search ``key`` is paid for."""
        self._known.add(key)

    def spend_once(self, key: Hashable, steps: int) -> None:
        """Take ``steps`` for the search ``key``, unless it is paid for."""
        if key not in self._known:
            self.note(key)
            self.spend(steps)

    @property
    def left(self) -> float:
        """Return the steps that are left."""
        return self.limit - self.spent

    def half(self) -> "Budget":
        """Return a budget of half of what is left; to be paid for with ``spend``."""
        return Budget(self.left / 2)


def unlimited() -> Budget:
    """Return a budget for rules that were accepted, whose questions have bounds of their own."""
    return Budget(math.inf)
