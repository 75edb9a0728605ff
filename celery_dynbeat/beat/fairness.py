"""How long one claim may plan, and which owners come second in the next.

Two shares of beat are counted by owner: rows of a full batch, and processor time of planning. An
owner with a large share is not stopped: the others get the first half of the next batch, and their
part of its planning time. So no owner waits behind all of another owner's schedules.

The cost of one plan has a bound (``triggers.budget``), so time is what is left to share. It is read
after each row. That takes a third of a microsecond, and a row of a plain trigger a hundred. So the
processor's own clock, which takes longer to read, is asked about long rows alone.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from time import perf_counter_ns, thread_time_ns

#: An owner with more than one in so many rows of a full batch waits for the others in the next.
HEAVY_SHARE = 10
#: A claim plans for so long, or for its batch at half a millisecond a row, if that is longer: five
#: times what rows of plain triggers take.
PLANNING_NS, PLANNING_NS_A_ROW = 250_000_000, 500_000
#: Of that, what owners get whose schedules are costly to plan.
COSTLY_PLANNING_NS = 50_000_000
#: They are those who took so much in one claim, in rows that took so much each.
COSTLY_NS, COSTLY_ROW_NS = 5_000_000, 1_000_000
#: And only if the claim as a whole took so much: a shorter claim delays no other owner.
LEAST_NS = 50_000_000
#: Costly owners come second for so long after the last claim that found them so. If they were
#: forgotten at once, they would come first with each burst, such as every second.
REMEMBERED = timedelta(seconds=10)
#: Each is a value of a statement.
_MOST_REMEMBERED = 100


class Planning:
    """Measures the processor time of one claim's plans, row by row, by owner."""

    def __init__(
        self,
        *,
        batch_size: int,
        costly: Collection[str] = (),
        clock: Callable[[], int] = perf_counter_ns,
        processor: Callable[[], int] = thread_time_ns,
    ) -> None:
        self._second = costly
        self._limit = max(PLANNING_NS, batch_size * PLANNING_NS_A_ROW)
        # Of the owners that come second, and of the others.
        self._of_second = self._of_others = 0
        self._costly: defaultdict[str, int] = defaultdict(int)
        self._clock, self._processor = clock, processor
        self._at, self._processor_at = clock(), processor()
        # What rows have taken since the processor's time was read.
        self._unread = 0

    def has_time_for(self, owner: str) -> bool:
        """Return whether another row of ``owner`` may be planned.

        The first row of the costly owners, and the first of the others, always may: so each claim
        gets somewhere.
        """
        if owner in self._second:
            return not self._of_second or self._of_second < COSTLY_PLANNING_NS
        return not self._of_others or self._of_others < self._limit

    def planned(self, owner: str) -> None:
        """Note that a row of ``owner`` was planned."""
        before, self._at = self._at, self._clock()
        took = self._at - before
        if took < COSTLY_ROW_NS:
            self._unread += took
        else:
            took = self._processor_time()
            if took >= COSTLY_ROW_NS:
                self._costly[owner] += took
        if owner in self._second:
            self._of_second += took
        else:
            self._of_others += took

    def costly_owners(self) -> frozenset[str]:
        """Return the owners whose schedules take much longer to plan than those of others."""
        if self._of_second + self._of_others < LEAST_NS:
            return frozenset()
        return frozenset(owner for owner, took in self._costly.items() if took >= COSTLY_NS)

    def _processor_time(self) -> int:
        """Return what the last row took of the processor: others may have had it meanwhile."""
        before, self._processor_at = self._processor_at, self._processor()
        took = max(self._processor_at - before - self._unread, 0)
        self._unread = 0
        return took


class CostlyOwners:
    """The owners that two claims within ``REMEMBERED`` found costly.

    One claim is not enough: a garbage collection or an import may fall on the row of any owner.
    """

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        self._found_again = frozenset[str]()

    def at(self, now: datetime) -> frozenset[str]:
        """Return them; each is forgotten ``REMEMBERED`` after the last claim that found it so."""
        if self._until:
            # After the second: the clock was set back.
            self._until = {
                owner: until
                for owner, until in self._until.items()
                if now < until <= now + REMEMBERED
            }
            self._found_again &= self._until.keys()
        return self._found_again

    def remember(self, owners: Collection[str], now: datetime) -> frozenset[str]:
        """Remember that a claim found ``owners`` costly; return those that come second from now."""
        if not owners:
            return frozenset()
        known = self.at(now)
        new = frozenset(owners) & self._until.keys() - known
        for owner in owners:
            # The last place is for the owner that was found last.
            self._until.pop(owner, None)
            self._until[owner] = now + REMEMBERED
        for owner in list(self._until)[:-_MOST_REMEMBERED]:
            del self._until[owner]
        self._found_again = (known | new) & self._until.keys()
        return new
