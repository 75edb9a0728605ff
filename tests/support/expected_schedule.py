"""The expected runs of a schedule, by plain enumeration of its fire times: an oracle for beat."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from celery_dynbeat.common.text import EARLIEST
from celery_dynbeat.planning.plan import COUNT_LIMIT, MICROSECOND
from celery_dynbeat.triggers import Trigger

#: The defaults of the settings for fields that a schedule does not set.
GRACE = timedelta(seconds=30)
MAX_RUN_TIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Decision:
    """Fire times that become sent or buffered runs; ``settled`` ones are not planned again."""

    sent: tuple[datetime, ...]
    buffered: tuple[datetime, ...]
    settled: tuple[datetime, ...]

    @property
    def count(self) -> int:
        """The number of settled fire times in the history."""
        runs = len(self.sent) + len(self.buffered)
        return runs + min(len(self.settled) - runs, COUNT_LIMIT)


@dataclass(slots=True)
class ExpectedSchedule:
    """One schedule. ``fields`` are the given fields, with datetimes and timedeltas.

    Fire times later than ``after`` are neither sent nor recorded as skipped yet. ``accounted``
    counts the earlier ones since the schedule's creation, ``made`` those that became runs.
    ``exempt`` means that the schedule was planned while the clock was before one of its settled
    fire times: its counts are then not checked. ``skipped`` are the fire times that ``skip()`` took
    out, also the past ones. ``key`` is the owner and the first name.
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
    skipped: frozenset[datetime] = frozenset()
    key: str = ""

    def get(self, field: str, default: Any = None) -> Any:
        """Return a field, or ``default`` if it is not set."""
        value = self.fields.get(field)
        return default if value is None else value

    @property
    def remaining_runs(self) -> int:
        """The number of runs that ``max_runs`` still allows."""
        return int(self.get("max_runs", 10**9)) - self.made

    def due(self, now: datetime) -> tuple[datetime, ...]:
        """Return the fire times until ``now`` that are not settled."""
        if self.remaining_runs <= 0:
            return ()
        fire_times = takewhile(lambda at: at <= now, self.nominal_after(self.after))
        return tuple(at for at in fire_times if at not in self.skipped)

    def ready(self, now: datetime) -> tuple[datetime, ...]:
        """Return the fire times until ``now`` whose offset in the window has passed as well."""
        return tuple(at for at in self.due(now) if self.sent_at(at) <= now)

    def sent_at(self, at: datetime) -> datetime:
        """Return when the run of the fire time ``at`` is sent."""
        window = self.get("window", timedelta(0))
        following = self._trigger().next_after(at)
        if isinstance(window, str):
            share = int(window.removesuffix("%"))
            width = timedelta(0) if following is None else (following - at) * share / 100
        else:
            width = window if following is None else min(window, following - at)
        seed = f"window {self.key}".encode()
        place = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest())
        return at + timedelta(microseconds=width // MICROSECOND * place // 2**64)

    def next_fire_time(self) -> datetime | None:
        """Return the next fire time, skipped or not; None when the schedule has finished."""
        return next(self.nominal_after(self.after), None) if self.remaining_runs > 0 else None

    def upcoming(self, instant: datetime) -> Iterator[datetime]:
        """Yield the fire times after ``instant`` that become runs if none is missed."""
        fire_times = (at for at in self.nominal_after(instant) if at not in self.skipped)
        return islice(fire_times, max(self.remaining_runs, 0))

    def nominal_after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the fire times after ``instant`` with the skipped ones, in the schedule's span."""
        first = self.get("start_at", instant + MICROSECOND) - MICROSECOND
        at = self._trigger().next_after(max(instant, first))
        while at is not None and at <= self.get("end_at", at):
            yield at
            at = self._trigger().next_after(at)

    def plan_from(self, now: datetime, newest: datetime | None = None) -> None:
        """Plan from ``now``, or from a later ``start_at``, as after an edit of the trigger.

        ``newest`` is the newest fire time in the schedule's history.
        """
        self.exempt = self.exempt or (newest is not None and newest > now)
        self.after = max(now, self.get("start_at", now + MICROSECOND) - MICROSECOND)

    def put_back(self, skipped: datetime) -> None:
        """Put a skipped fire time back after which none is settled."""
        self.skipped -= {skipped}
        self.after = min(self.after, skipped - MICROSECOND)

    def decide(
        self, due: tuple[datetime, ...], *, now: datetime, busy: int, waiting: int
    ) -> Decision:
        """Return the decision on the ``due`` fire times.

        ``busy`` runs of the schedule are unfinished, and ``waiting`` of these are buffered.
        """
        fresh = tuple(at for at in due if self.sent_at(at) >= self._oldest(now))
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
        """Apply a decision."""
        self.accounted += decision.count
        self.made += len(decision.sent) + len(decision.buffered)
        if decision.settled:
            self.after = decision.settled[-1]

    def record_missed(self, now: datetime) -> None:
        """Treat all due fire times as recorded in one skipped row."""
        due = self.due(now)
        self.accounted += min(len(due), COUNT_LIMIT)
        if due:
            self.after = due[-1]

    def _trigger(self) -> Trigger:
        return self.trigger.anchored_at(self.get("start_at", self.anchor))

    def _oldest(self, now: datetime) -> datetime:
        limits = [self.get("catch_up_window"), GRACE if self.get("catch_up") == "none" else None]
        given = [limit for limit in limits if limit is not None]
        return now - min(given) if given else EARLIEST
