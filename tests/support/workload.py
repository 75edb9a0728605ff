"""The workload of a fault test, and the check that no fire time was lost or started twice.

A test creates schedules with known fire times before the fault. At the end four numbers must be
equal:

- expected: the fire times, computed from the triggers alone;
- runs: the planned fire times in the tables (a skipped row counts for its ``fire_count``);
- starts: the starts in the event log of the tasks, which is independent of the tables;
- outcomes: the runs that succeeded.

The check also compares the single fire times: each has its run and has started exactly once.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError

from celery_dynbeat import Every, Once
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.triggers import Trigger
from tests.support.sites import OWNER, Site
from tests.support.waiting import wait_until

#: A schedule's name and a fire time.
FireTime = tuple[str, datetime]

SETTLES_WITHIN = 60.0
STARTS_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The four numbers."""

    expected: int
    runs: int
    starts: int
    outcomes: int

    def __str__(self) -> str:
        return (
            f"expected {self.expected}, runs {self.runs},"
            f" starts {self.starts}, outcomes {self.outcomes}"
        )


class Workload:
    """The workload of one test on one installation; ``publish`` receives its summary line."""

    def __init__(self, site: Site, *, label: str, publish: Callable[[str], None]) -> None:
        self.site = site
        self.expected: set[FireTime] = set()
        self.started_at = datetime.now(UTC)
        self._label = label
        self._publish = publish
        self._fault_ended_at: datetime | None = None

    def create_repeating(
        self,
        schedules: int,
        *,
        seconds: int,
        first_in: float = 1.5,
        **fields: Any,
    ) -> None:
        """Create schedules that fire each second for ``seconds``, with ``catch_up="all"``."""
        trigger = Every(timedelta(seconds=1))
        start_at = datetime.now(UTC) + timedelta(seconds=first_in)
        end_at = start_at + timedelta(seconds=seconds - 1)
        names = [f"repeat-{len(self.expected)}-{n}" for n in range(schedules)]
        triggers = dict.fromkeys(names, trigger)
        self._create(triggers, start_at=start_at, end_at=end_at, **fields)
        fire_at: datetime | None = start_at
        while fire_at is not None and fire_at <= end_at:
            self.expected |= {(name, fire_at) for name in names}
            fire_at = trigger.anchored_at(start_at).next_after(fire_at)

    def create_one_offs(
        self, schedules: int, *, first_in: float = 1.5, over: float = 0, **fields: Any
    ) -> None:
        """Create one-offs, spread evenly over ``over`` seconds.

        If the machine stalls, the first instant may pass before the INSERT. The API then rejects
        all of them, and this method tries again with later instants.
        """
        first = len(self.expected)
        while True:
            begin = datetime.now(UTC) + timedelta(seconds=first_in)
            instants = {
                f"once-{first + n}": begin + timedelta(seconds=over * n / schedules)
                for n in range(schedules)
            }
            try:
                self._create({name: Once(at) for name, at in instants.items()}, **fields)
            except InvalidArgumentError:
                if datetime.now(UTC) < begin:
                    raise
            else:
                self.expected |= set(instants.items())
                return

    def _create(self, triggers: Mapping[str, Trigger], **fields: Any) -> None:
        common = {"task": "probe.record", "catch_up": "all", **fields, "owner": OWNER}
        self.site.dynbeat.schedules.create_many(
            [{**common, "name": name, "trigger": trigger} for name, trigger in triggers.items()],  # type: ignore[typeddict-item]
        )

    @contextmanager
    def fault(self) -> Iterator[None]:
        """Mark a fault. The recovery time counts from the end of the block."""
        yield
        self._fault_ended_at = datetime.now(UTC)

    def starts(self) -> Counter[FireTime]:
        """Return the number of starts of each fire time, from the event log."""
        return Counter(_fire_time(start) for start in self._own_starts())

    def wait_for_starts(self, number: int, *, within: float = STARTS_WITHIN) -> None:
        """Return when ``number`` runs have started."""

        def reached() -> bool:
            self.site.replace_crashed_workers()
            return self.starts().total() >= number

        try:
            wait_until(reached, within=within, message=f"not {number} starts")
        except AssertionError as error:
            error.add_note(self.site.report())
            raise

    def verify(
        self,
        fault: str,
        *,
        within: float = SETTLES_WITHIN,
        extra_starts: int = 0,
        drain_queue: bool = True,
    ) -> RunCounts:
        """Wait until all runs have ended, check the four numbers, and publish the summary line.

        ``extra_starts`` is the exact number of additional starts that the fault causes. With
        ``drain_queue`` it sends a plain task after all messages and waits for it: a duplicate
        among those messages has then started, too.
        """
        try:
            wait_until(self._settled, within=within, message="not settled")
            if drain_queue:
                sent = self.site.app.send_task("probe.record")
                wait_until(lambda: self.site.event_log.starts(sent.id), within=within)
            count = self._assert_equal(extra_starts)
        except AssertionError as error:
            error.add_note(self._differences())
            error.add_note(self.site.report())
            raise
        self._publish(f"{fault} [{self._label}]: {count}; {self._times()}")
        return count

    def _settled(self) -> bool:
        self.site.replace_crashed_workers()
        try:
            unfinished = self.site.count_runs(Run.finished_at.is_(None))
            ended = self.site.count_runs(Run.status == Status.SUCCEEDED)
            skipped = self._skipped()
        except DBAPIError:
            # The database may still be down.
            return False
        return not unfinished and ended >= len(self.expected) - skipped

    def _assert_equal(self, extra_starts: int) -> RunCounts:
        starts, runs = self.starts(), self.site.all_runs()
        planned = Counter((run.name, run.fire_at) for run in runs)
        count = RunCounts(
            expected=len(self.expected),
            runs=sum(run.fire_count for run in runs),
            starts=starts.total(),
            outcomes=sum(run.status == Status.SUCCEEDED for run in runs),
        )
        assert planned == Counter(self.expected), "the runs are not the expected ones"
        assert set(starts) == self.expected, "the started fire times are not the expected ones"
        allowed = len(self.expected) + extra_starts
        assert (count.runs, count.starts, count.outcomes) == (
            len(self.expected),
            allowed,
            len(self.expected),
        ), f"not equal: {count}"
        return count

    def _skipped(self) -> int:
        return sum(run.fire_count for run in self.site.all_runs() if run.status == Status.SKIPPED)

    def _own_starts(self) -> Sequence[dict[str, Any]]:
        return [
            start
            for start in self.site.event_log.starts()
            if "dynbeat_schedule" in (start["headers"] or {})
        ]

    def _differences(self) -> str:
        starts = self.starts()
        try:
            statuses = Counter(run.status for run in self.site.all_runs())
        except DBAPIError as error:
            return f"the database is unreachable: {error}"
        doubled = {key: number for key, number in starts.items() if number > 1}
        return (
            f"expected {len(self.expected)}; runs {dict(statuses)}; starts {starts.total()}\n"
            f"never started: {sorted(self.expected - set(starts))[:10]}\n"
            f"not expected: {sorted(set(starts) - self.expected)[:10]}\n"
            f"doubled: {list(doubled.items())[:10]}"
        )

    def _times(self) -> str:
        lags = [run.sent_at - run.fire_at for run in self.site.all_runs() if run.sent_at]
        text = f"lag max {max(lags, default=timedelta()).total_seconds():.1f} s"
        seconds = self.recovered_in()
        return text if seconds is None else f"{text}; recovered in {seconds:.1f} s"

    def recovered_in(self) -> float | None:
        """Return the seconds from the end of the fault to the first start of a later run."""
        over = self._fault_ended_at
        if over is None:
            return None
        started = [
            run.started_at
            for run in self.site.all_runs()
            if run.sent_at and run.started_at and min(run.sent_at, run.started_at) > over
        ]
        return (min(started) - over).total_seconds() if started else None


def _fire_time(start: dict[str, Any]) -> FireTime:
    headers = start["headers"]
    return headers["dynbeat_schedule"], datetime.fromisoformat(headers["dynbeat_fire_at"])
