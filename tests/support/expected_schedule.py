"""What a schedule owes, told from its rule by plain enumeration: what beat is measured against."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_dynbeat.planning.plan import COUNT_LIMIT, MICROSECOND
from celery_dynbeat.triggers import Trigger

#: The settings' defaults for what a schedule leaves open.
GRACE = timedelta(seconds=30)
MAX_RUN_TIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Decision:
    """Which fire times become runs, and which of them wait; ``settled`` are dealt with for good."""

    sent: tuple[datetime, ...]
    buffered: tuple[datetime, ...]
    settled: tuple[datetime, ...]

    @property
    def count(self) -> int:
        """The number that the history gives for the fire times that were settled."""
        runs = len(self.sent) + len(self.buffered)
        return runs + min(len(self.settled) - runs, COUNT_LIMIT)


@dataclass(slots=True)
class ExpectedSchedule:
    """One schedule. ``fields`` are those it was given, with instants and timedeltas.

    ``after``: its fire times after this instant are neither sent nor recorded as skipped.
    ``accounted`` counts the others since it was made, ``made`` those that became runs. ``exempt``:
    it was planned while the clock stood before one that it had dealt with; no count is kept then.
    """

    id: int
    trigger: Trigger
    fields: dict[str, Any]
    anchor: datetime
    after: datetime
    enabled: bool = True
    accounted: int = 0
    made: int = 0
    exempt: bool = False

    def get(self, field: str, default: Any = None) -> Any:
        """Return a field, or ``default`` where it is left open."""
        value = self.fields.get(field)
        return default if value is None else value

    @property
    def remaining_runs(self) -> int:
        """How many more runs there may be."""
        return int(self.get("max_runs", 10**9)) - self.made

    def due(self, now: datetime) -> tuple[datetime, ...]:
        """Enumerate the fire times that are owed at ``now``, were it not for jitter."""
        found: list[datetime] = []
        at = self.next_fire_time()
        while at is not None and at <= min(now, self.get("end_at", now)):
            found.append(at)
            at = self._rule().next_after(at)
        return tuple(found)

    def next_fire_time(self) -> datetime | None:
        """Return the next fire time, None when the schedule has finished."""
        at = self._rule().next_after(self.after) if self.remaining_runs > 0 else None
        return None if at is None or at > self.get("end_at", at) else at

    def plan_from(self, now: datetime, newest: datetime | None = None) -> None:
        """Forget what passed: fire times count from ``now``, a ``start_at`` to come included.

        ``newest`` is the newest fire time in the schedule's history.
        """
        self.exempt = self.exempt or (newest is not None and newest > now)
        self.after = max(now, self.get("start_at", now + MICROSECOND) - MICROSECOND)

    def decide(
        self, due: tuple[datetime, ...], *, now: datetime, busy: int, waiting: int
    ) -> Decision:
        """Say what becomes of what is due, with ``busy`` runs unfinished, ``waiting`` of them."""
        fresh = tuple(at for at in due if at >= self._oldest(now, default=at))
        overlap, free = self.get("overlap", "allow"), 0 if busy else 1
        every = self.get("catch_up") == "all" and overlap != "cancel_previous"
        wanted = fresh if every else fresh[-1:]
        if overlap == "skip":
            sent, buffered = wanted[:free], wanted[:0]
        elif overlap == "buffer_one":
            sent, buffered = wanted[:free], wanted[free : free + (0 if waiting else 1)]
        elif overlap == "cancel_previous":
            sent, buffered = wanted[-1:], wanted[:0]
        else:
            sent, buffered = wanted, wanted[:0]
        sent, buffered = (
            sent[: self.remaining_runs],
            buffered[: max(self.remaining_runs - len(sent), 0)],
        )
        runs = sent + buffered
        spent = bool(runs) and len(runs) == self.remaining_runs
        return Decision(sent, buffered, tuple(at for at in due if at <= runs[-1]) if spent else due)

    def settle(self, decision: Decision) -> None:
        """Take a decision as made."""
        self.accounted += decision.count
        self.made += len(decision.sent) + len(decision.buffered)
        if decision.settled:
            self.after = decision.settled[-1]

    def record_missed(self, now: datetime) -> None:
        """Take all that is due as recorded in one skipped row."""
        due = self.due(now)
        self.accounted += min(len(due), COUNT_LIMIT)
        if due:
            self.after = due[-1]

    def _rule(self) -> Trigger:
        return self.trigger.anchored_at(self.get("start_at", self.anchor))

    def _oldest(self, now: datetime, *, default: datetime) -> datetime:
        limits = [self.get("catch_up_window"), GRACE if self.get("catch_up") == "none" else None]
        given = [limit for limit in limits if limit is not None]
        return now - min(given) - self.get("jitter", timedelta(0)) if given else default
