"""Limit the planning time of one claim, and find the owners that come second in the next claim.

Two resources of beat are counted by owner: the rows of a full batch, and the CPU time of planning.
The other owners get the first half of the next batch and their part of its planning time, so no
owner waits for all schedules of another owner. An owner with a large share still makes progress.

The cost of one plan is bounded (``search_budget``), so only the time must be shared. The clock is
read after each row, which takes a third of a microsecond, whereas a row with a plain trigger takes
a hundred microseconds. Reading the CPU clock takes longer, so it is read only after long rows.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from time import perf_counter_ns, thread_time_ns

#: An owner with more than this fraction (1/10) of a full batch comes second in the next one.
FAIR_SHARE_DIVISOR = 10
#: The planning time of one claim. Its share of a row in a full batch, half a millisecond, is five
#: times what a row of a plain trigger takes.
PLANNING_NS = 250_000_000
#: The part of the planning time that costly owners get.
COSTLY_PLANNING_NS = 50_000_000
#: An owner is costly if its long rows took COSTLY_NS in one claim. A long row takes COSTLY_ROW_NS.
COSTLY_NS, COSTLY_ROW_NS = 5_000_000, 1_000_000
#: A claim that planned for less than this time delays no owner, so it reports no costly owner.
MIN_REPORTED_NS = 50_000_000
#: A costly owner comes second for this long after the last claim that found it costly. Without it,
#: the owner would come first in each burst, such as one every second.
COSTLY_FOR = timedelta(seconds=10)
#: The maximum number of costly owners that are remembered. Each of them is a parameter of a
#: statement.
_MAX_COSTLY_OWNERS = 100


class PlanningTime:
    """Measures the time that one claim spends on planning, row by row, by owner."""

    def __init__(
        self,
        costly_owners: Collection[str] = (),
        *,
        clock: Callable[[], int] = perf_counter_ns,
        cpu_clock: Callable[[], int] = thread_time_ns,
    ) -> None:
        self._costly_owners = costly_owners
        # The time of the costly owners, and of the other owners.
        self._costly_ns = self._other_ns = 0
        self._long_row_ns: defaultdict[str, int] = defaultdict(int)
        self._clock, self._cpu_clock = clock, cpu_clock
        self._at, self._cpu_at = clock(), cpu_clock()
        # The time of the rows since the CPU clock was read.
        self._since_cpu_read = 0

    def is_costly(self, owner: str) -> bool:
        """Return whether an earlier claim found ``owner`` costly."""
        return owner in self._costly_owners

    def has_time_for(self, owner: str) -> bool:
        """Return whether another row of ``owner`` may be planned.

        The first row of a costly owner and the first row of another owner are always planned, so
        that each claim makes progress.
        """
        if owner in self._costly_owners:
            return not self._costly_ns or self._costly_ns < COSTLY_PLANNING_NS
        return not self._other_ns or self._other_ns < PLANNING_NS

    def add_row(self, owner: str) -> None:
        """Count the time since the last row for ``owner``."""
        before, self._at = self._at, self._clock()
        elapsed = self._at - before
        if elapsed < COSTLY_ROW_NS:
            self._since_cpu_read += elapsed
        else:
            elapsed = self._cpu_time()
            if elapsed >= COSTLY_ROW_NS:
                self._long_row_ns[owner] += elapsed
        if owner in self._costly_owners:
            self._costly_ns += elapsed
        else:
            self._other_ns += elapsed

    def costly_owners(self) -> frozenset[str]:
        """Return the owners whose schedules take much longer to plan than other schedules."""
        if self._costly_ns + self._other_ns < MIN_REPORTED_NS:
            return frozenset()
        return frozenset(owner for owner, ns in self._long_row_ns.items() if ns >= COSTLY_NS)

    def _cpu_time(self) -> int:
        """Return the CPU time of the last row. Other threads may have run in the meantime."""
        before, self._cpu_at = self._cpu_at, self._cpu_clock()
        elapsed = max(self._cpu_at - before - self._since_cpu_read, 0)
        self._since_cpu_read = 0
        return elapsed


class CostlyOwners:
    """The owners that two claims within ``COSTLY_FOR`` found costly.

    One claim is not enough, because a garbage collection or an import can happen during a row of
    any owner.
    """

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        self._confirmed = frozenset[str]()

    def at(self, now: datetime) -> frozenset[str]:
        """Return the costly owners.

        An owner expires ``COSTLY_FOR`` after the last claim that found it costly.
        """
        if self._until:
            # An instant after ``now + COSTLY_FOR`` means that the clock was set back.
            self._until = {
                owner: until
                for owner, until in self._until.items()
                if now < until <= now + COSTLY_FOR
            }
            self._confirmed &= self._until.keys()
        return self._confirmed

    def add(self, owners: Collection[str], now: datetime) -> frozenset[str]:
        """Add the owners that a claim found costly; return those that come second from now on."""
        if not owners:
            return frozenset()
        confirmed = self.at(now)
        new = frozenset(owners) & self._until.keys() - confirmed
        for owner in owners:
            # Insert at the end: the owners at the front are dropped first.
            self._until.pop(owner, None)
            self._until[owner] = now + COSTLY_FOR
        for owner in list(self._until)[:-_MAX_COSTLY_OWNERS]:
            del self._until[owner]
        self._confirmed = (confirmed | new) & self._until.keys()
        return new
