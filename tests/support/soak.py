"""The driver of a soak test: seeded random edits and faults.

The first beat and the main process of the first worker run to the end, so that their resources can
be measured. They are frozen, lose database connections and pool processes, but are never killed.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psutil
from sqlalchemy import Connection, func, select, text

from celery_dynbeat import Every
from celery_dynbeat.db.models import Run, Schedule
from tests.support.sites import Site
from tests.support.soak_expectations import Entry, SoakExpectations
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.processes import CeleryProcess

BEATS, WORKERS = 3, 2
#: The application name of the connections of beats and workers. Only these are terminated.
APPLICATION = "dynbeat_soak"
END_BACKEND = """
    SELECT pg_terminate_backend(pid) FROM (
        SELECT pid FROM pg_stat_activity WHERE application_name = :name
        ORDER BY random() LIMIT 1
    ) AS victim
"""
#: A beat that keeps up leaves no schedule due for longer than this.
KEEPS_UP = timedelta(seconds=1)
STARTED = {"beat": "beat started", "worker": "ready."}


class Soak:
    """One installation under load; ``counts`` counts the edits and faults."""

    def __init__(self, site: Site, server: Connection, *, seed: int, schedules: int) -> None:
        self.site = site
        self.counts: Counter[str] = Counter()
        self.expectations = SoakExpectations(
            datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=2)
        )
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._server = server
        self._schedules = schedules
        self._timers: list[threading.Timer] = []
        self._beats: list[CeleryProcess] = []
        self._workers: list[CeleryProcess] = []
        self._edits: Sequence[tuple[Callable[[Entry], None], int]] = (
            (self._change_arguments, 5),
            (self._change_interval, 3),
            (self._pause_or_resume, 4),
            (self._run_now, 4),
            (self._replace, 2),
        )
        self._faults: Sequence[tuple[Callable[[], None], int]] = (
            (self._kill_beat, 2),
            (self._kill_pool_process, 2),
            (self._kill_worker, 1),
            (self._freeze_beat, 4),
            (self._end_backend, 6),
        )

    def start(self) -> dict[str, int]:
        """Start all processes, create all schedules, and return the pids that run to the end."""
        self._beats = [self.site.beat() for _ in range(BEATS)]
        self._workers = [self.site.worker(name=f"w{n}@soak") for n in range(WORKERS)]
        for beat in self._beats:
            beat.wait_for_log(STARTED["beat"])
        for worker in self._workers:
            worker.wait_for_log(STARTED["worker"])
        for _ in range(self._schedules):
            self._create()
        return {"beat": self._beats[0].pid, "worker": self._workers[0].pid}

    def edit(self) -> None:
        """Make one edit through the API."""
        edits, weights = zip(*self._edits, strict=True)
        self._random.choices(edits, weights)[0](self._random.choice(self.expectations.existing()))
        self.counts["edits"] += 1

    def break_something(self) -> None:
        """Cause one fault; a killed process is started again."""
        faults, weights = zip(*self._faults, strict=True)
        self._random.choices(faults, weights)[0]()

    def calm(self) -> None:
        """Wait until all frozen processes run again."""
        for timer in self._timers:
            timer.join()

    def finish(self, *, within: float) -> None:
        """Stop the load, and wait until beats and workers have caught up."""
        self.calm()
        wait_until(self._caught_up, within=within, message="beat does not catch up")
        for entry in self.expectations.existing():
            entry.row = self.site.mine.pause(entry.name, reason="end of the soak test")
        wait_until(
            lambda: not self.site.count_runs(Run.finished_at.is_(None)),
            within=within,
            message="runs are unfinished",
        )
        statement = select(Schedule.name, Schedule.next_fire_at)
        rows = self.site.dynbeat.context.database.read(
            lambda session: session.execute(statement).all()
        )
        self.expectations.next_fire_at = {row.name: row.next_fire_at for row in rows}

    def _caught_up(self) -> bool:
        statement = select(func.min(Schedule.next_run_at))
        database, clock = self.site.dynbeat.context.database, self.site.dynbeat.context.clock
        earliest = database.read(lambda session: session.scalar(statement))
        return earliest is not None and earliest > clock.now() - KEEPS_UP

    def _create(self) -> None:
        interval = self._random.choice((1, 2))
        made = self.site.mine.create(
            f"s{len(self.expectations.entries)}",
            task="probe.record",
            trigger=Every(timedelta(seconds=interval)),
            start_at=self.expectations.start_at,
            catch_up=self._random.choice(("latest", "all")),
            overlap=self._random.choice(("allow", "allow", "skip", "buffer_one")),
        )
        self.expectations.created(made, interval)

    def _change_arguments(self, entry: Entry) -> None:
        self.site.mine.update(entry.name, args=[self._random.randrange(1_000)])

    def _change_interval(self, entry: Entry) -> None:
        interval = 3 - entry.interval
        row = self.site.mine.update(entry.name, trigger=Every(timedelta(seconds=interval)))
        self.expectations.changed(entry.name, row, interval)

    def _pause_or_resume(self, entry: Entry) -> None:
        if entry.row is not None and entry.row.enabled:
            entry.row = self.site.mine.pause(entry.name, reason="a whim")
        else:
            self.expectations.changed(entry.name, self.site.mine.resume(entry.name))

    def _run_now(self, entry: Entry) -> None:
        self.site.mine.run_now(entry.name)
        entry.manual += 1

    def _replace(self, entry: Entry) -> None:
        self.site.mine.delete(entry.name)
        entry.row = None
        self._create()

    def _kill_beat(self) -> None:
        number = self._random.randrange(1, BEATS)
        self._beats[number].kill()
        self._beats[number] = self.site.beat()
        self.counts["beats killed"] += 1

    def _kill_worker(self) -> None:
        number = self._random.randrange(1, WORKERS)
        self._workers[number].kill()
        self._workers[number] = self.site.worker(name=f"w{number}@soak")
        self.counts["workers killed"] += 1

    def _kill_pool_process(self) -> None:
        victim = self._random.choice(self._workers)
        # A worker exits if a pool process dies during its start, as in Celery itself.
        if STARTED["worker"] not in victim.text:
            return
        worker = psutil.Process(victim.pid)
        # The worker may have no pool process at the moment.
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            self._random.choice(worker.children()).kill()
            self.counts["pool processes killed"] += 1

    def _freeze_beat(self) -> None:
        beat, seconds = self._random.choice(self._beats), self._random.uniform(0.5, 4)
        os.kill(beat.pid, signal.SIGSTOP)
        # In a timer: an edit may wait for a row that the frozen beat has locked.
        timer = threading.Timer(seconds, _thaw, [beat.pid])
        timer.start()
        self._timers.append(timer)
        self.counts["beats frozen"] += 1

    def _end_backend(self) -> None:
        self._server.execute(text(END_BACKEND), {"name": APPLICATION})
        self.counts["backends ended"] += 1


def _thaw(pid: int) -> None:
    # The process may have been killed since.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


class PeriodicAction:
    """Calls an action at intervals of ``every`` seconds."""

    def __init__(self, action: Callable[[], None], *, every: float) -> None:
        self._action = action
        self._every = every
        self._next = time.monotonic() + every

    def run_if_due(self) -> None:
        """Call the action if its interval has passed."""
        if time.monotonic() >= self._next:
            self._action()
            self._next = time.monotonic() + self._every


def run_periodically(actions: Sequence[PeriodicAction], *, seconds: float) -> None:
    """Run the actions for ``seconds``."""
    deadline = time.monotonic() + seconds

    def over() -> bool:
        for action in actions:
            action.run_if_due()
        return time.monotonic() >= deadline

    wait_until(over, within=seconds + 600)
