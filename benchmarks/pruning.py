"""Measure the lag of a steady load while beat deletes old history."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from sqlalchemy import Engine, func, select, text

from benchmarks import bulk_runs
from benchmarks.bench import Bench
from benchmarks.lag_statistics import percentile
from benchmarks.parts.lag import LOAD_RATE, START_SECONDS, Load
from benchmarks.processes import BEAT_STARTED, Process, beat
from benchmarks.queues import queue
from benchmarks.workloads import SteadyLoad
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Run

ROWS, MIN_ROWS, OF_SCHEDULES = 1_000_000, 5_000, 1_000
RATE, MIN_RATE = 500, 50
#: Seconds of the load before the deletion starts, and after that.
QUIET, BUSY, MIN_QUIET, MIN_BUSY = 60, 300, 6, 14
RETENTION = Settings().history_retention
NEWEST = RETENTION + timedelta(days=1)
OLDEST = RETENTION + timedelta(days=30)
#: PostgreSQL's count of deleted rows may be this old.
STATISTICS_DELAY = timedelta(seconds=2)
END_TIMEOUT = timedelta(minutes=20)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Lags in milliseconds: ``quiet`` outside the deletion, ``busy`` during it.

    ``points`` are (seconds since the start, p99 lag of that second, rows deleted so far).
    """

    deleted: int
    seconds: float
    quiet: Sequence[float]
    busy: Sequence[float]
    points: Sequence[tuple[int, float, int]]


def measure(bench: Bench) -> Pruned:
    """Delete runs under a steady load; check each fire time's run and message. PostgreSQL only."""
    rows = bench.size(ROWS, minimum=MIN_ROWS)
    quiet = bench.size(QUIET, minimum=MIN_QUIET)
    seconds = quiet + bench.size(BUSY, minimum=MIN_BUSY)
    rate = bench.size(RATE, minimum=MIN_RATE)
    with bench.site() as site, site.application() as dynbeat, queue(site) as task_queue:
        engine = dynbeat.context.database.engine
        bulk_runs.write_finished_schedules(engine, min(rows, OF_SCHEDULES))
        written = bulk_runs.write(engine, rows, oldest=OLDEST, newest=NEWEST, track=bench.track)
        lead = ceil(START_SECONDS + rate * seconds / 2 / LOAD_RATE)
        start = (dynbeat.context.clock.now() + timedelta(seconds=lead)).replace(microsecond=0)
        load = Load(site, dynbeat, task_queue, SteadyLoad(rate, seconds, start))
        left = (start - load.now()).total_seconds()
        with beat({**site.config(), "prune_after": left + quiet}) as process:
            process.wait_for_log(BEAT_STARTED)
            assert load.now() < start, "loading and starting took too long"
            deleted = _watch(bench, load, process, written)
        load.check()
        return _pruned(load, deleted, written)


class _DeletedRows:
    """The number of deleted rows over time."""

    def __init__(self, engine: Engine) -> None:
        self.points: list[tuple[datetime, int]] = []
        self._engine = engine

    def sample(self, at: datetime) -> int:
        """Read and store the number of rows deleted so far, and return it."""
        query = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'dynbeat_run'"
        with self._engine.connect() as connection:
            count: int = connection.execute(text(query)).scalar_one()
        self.points.append((at, count))
        return count

    def count_at(self, at: datetime) -> int:
        """Return the number of rows deleted until ``at``."""
        return max((count for seen_at, count in self.points if seen_at <= at), default=0)

    def span(self) -> tuple[datetime, datetime]:
        """Return an instant before the deletion and one after it."""
        last = self.points[-1][1]
        before = [at for at, count in self.points if count == 0]
        after = [at for at, count in self.points if count == last]
        return max(before) - STATISTICS_DELAY, min(after)


def _watch(bench: Bench, load: Load, process: Process, rows: int) -> _DeletedRows:
    """Drain the queue until all runs are sent and all old rows are deleted."""
    deleted = _DeletedRows(load.engine)
    deadline = load.steady.end + END_TIMEOUT

    def samples() -> Iterator[None]:
        while load.now() < load.steady.end or deleted.sample(load.now()) < rows:
            assert load.now() < deadline, f"{deleted.points[-1][1]} deleted\n{process.report()}"
            yield

    for _ in bench.track(samples(), "prune"):
        load.drain()
        deleted.sample(load.now())
    while _unsent(load):
        assert load.now() < deadline, process.report()
        load.drain()
    return deleted


def _unsent(load: Load) -> int:
    statement = select(func.count()).where(*_sent(load))
    with load.engine.connect() as connection:
        return load.fire_times - connection.execute(statement).scalar_one()


def _sent(load: Load) -> tuple[Any, ...]:
    return (Run.id >= first_run_id(load.steady.start), Run.sent_at.is_not(None))


def _lags(load: Load) -> Sequence[tuple[datetime, float]]:
    """Return the fire time and the lag in milliseconds of each sent run of the load."""
    statement = select(Run.fire_at, Run.sent_at).where(*_sent(load))
    with load.engine.connect() as connection:
        found = connection.execute(statement.order_by(Run.fire_at)).all()
    return [(row.fire_at, (row.sent_at - row.fire_at) / timedelta(milliseconds=1)) for row in found]


def _pruned(load: Load, deleted: _DeletedRows, rows: int) -> Pruned:
    began_at, ended_at = deleted.span()
    quiet: list[float] = []
    busy: list[float] = []
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for at, lag in _lags(load):
        (busy if began_at <= at <= ended_at else quiet).append(lag)
        seconds[int((at - load.steady.start).total_seconds())].append(lag)
    assert quiet, "no fire time outside the deletion"
    assert busy, "no fire time during the deletion"
    points = [
        (
            second,
            percentile(lags, 0.99),
            deleted.count_at(load.steady.start + timedelta(seconds=second)),
        )
        for second, lags in sorted(seconds.items())
    ]
    return Pruned(rows, (ended_at - began_at).total_seconds(), quiet, busy, points)
