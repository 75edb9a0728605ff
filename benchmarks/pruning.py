"""The lag of a steady load while beat prunes old history."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from sqlalchemy import Engine, func, select, text

from benchmarks import history
from benchmarks.bench import Bench
from benchmarks.lags import percentile
from benchmarks.loads import Steady
from benchmarks.parts.lag import LOADED_PER_SECOND, STARTS_WITHIN, Load
from benchmarks.processes import BEAT_STARTED, Process, beat
from benchmarks.queues import queue
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Run

ROWS, LEAST_ROWS, OF_SCHEDULES = 1_000_000, 5_000, 1_000
RATE, LEAST_RATE = 500, 50
#: Seconds of the load before the prune starts, and after that.
QUIET, BUSY, LEAST_QUIET, LEAST_BUSY = 60, 300, 6, 14
RETENTION = Settings().history_retention
NEWEST = RETENTION + timedelta(days=1)
OLDEST = RETENTION + timedelta(days=30)
#: The statistics of the database may lag by this many rows.
BEHIND = timedelta(seconds=2)
ENDS_WITHIN = timedelta(minutes=20)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Lags in milliseconds, of the runs outside of the prune and during it.

    ``points`` are (seconds since the start, p99 of that second, rows deleted up to then).
    """

    deleted: int
    seconds: float
    quiet: Sequence[float]
    busy: Sequence[float]
    points: Sequence[tuple[int, float, int]]


def measure(bench: Bench) -> Pruned:
    """Measure a load with a prune. Each fire time has a run and a message. PostgreSQL only."""
    rows = bench.size(ROWS, least=LEAST_ROWS)
    quiet = bench.size(QUIET, least=LEAST_QUIET)
    seconds = quiet + bench.size(BUSY, least=LEAST_BUSY)
    rate = bench.size(RATE, least=LEAST_RATE)
    with bench.site() as site, site.application() as dynbeat, queue(site) as waiting:
        engine = dynbeat.context.database.engine
        history.finished_schedules(engine, min(rows, OF_SCHEDULES))
        written = history.write(engine, rows, oldest=OLDEST, newest=NEWEST, track=bench.track)
        lead = ceil(STARTS_WITHIN + rate * seconds / 2 / LOADED_PER_SECOND)
        start = (dynbeat.context.clock.now() + timedelta(seconds=lead)).replace(microsecond=0)
        load = Load(site, dynbeat, waiting, Steady(rate, seconds, start))
        left = (start - load.now()).total_seconds()
        with beat({**site.config(), "prune_after": left + quiet}) as process:
            process.wait_for_log(BEAT_STARTED)
            assert load.now() < start, "loading and starting took too long"
            deleted = _watch(bench, load, process, written)
        load.check()
        return _pruned(load, deleted, written)


class _Deleted:
    """The number of deleted rows over time."""

    def __init__(self, engine: Engine) -> None:
        self.points: list[tuple[datetime, int]] = []
        self._engine = engine

    def sample(self, at: datetime) -> int:
        """Return the current number of rows."""
        query = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'dynbeat_run'"
        with self._engine.connect() as connection:
            count: int = connection.execute(text(query)).scalar_one()
        self.points.append((at, count))
        return count

    def by(self, at: datetime) -> int:
        """Return the number of rows that were deleted up to then."""
        return max((count for seen_at, count in self.points if seen_at <= at), default=0)

    def span(self) -> tuple[datetime, datetime]:
        """Return the last instant before the prune and the first one after it."""
        last = self.points[-1][1]
        before = [at for at, count in self.points if count == 0]
        after = [at for at, count in self.points if count == last]
        return max(before) - BEHIND, min(after)


def _watch(bench: Bench, load: Load, process: Process, rows: int) -> _Deleted:
    """Drain the queue until all runs are sent and the prune has ended."""
    deleted = _Deleted(load.engine)
    give_up = load.steady.end + ENDS_WITHIN

    def turns() -> Iterator[None]:
        while load.now() < load.steady.end or deleted.sample(load.now()) < rows:
            assert load.now() < give_up, f"{deleted.points[-1][1]} deleted\n{process.report()}"
            yield

    for _ in bench.track(turns(), "prune"):
        load.drain()
        deleted.sample(load.now())
    while _unsent(load):
        assert load.now() < give_up, process.report()
        load.drain()
    return deleted


def _unsent(load: Load) -> int:
    statement = select(func.count()).where(*_sent(load))
    with load.engine.connect() as connection:
        return load.fires - connection.execute(statement).scalar_one()


def _sent(load: Load) -> tuple[Any, ...]:
    return (Run.id >= first_run_id(load.steady.start), Run.sent_at.is_not(None))


def _lags(load: Load) -> Sequence[tuple[datetime, float]]:
    """Return the fire time and the lag in milliseconds of each run of the load that is sent."""
    statement = select(Run.scheduled_for, Run.sent_at).where(*_sent(load))
    with load.engine.connect() as connection:
        found = connection.execute(statement.order_by(Run.scheduled_for)).all()
    return [
        (row.scheduled_for, (row.sent_at - row.scheduled_for) / timedelta(milliseconds=1))
        for row in found
    ]


def _pruned(load: Load, deleted: _Deleted, rows: int) -> Pruned:
    began_at, ended_at = deleted.span()
    quiet: list[float] = []
    busy: list[float] = []
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for at, lag in _lags(load):
        (busy if began_at <= at <= ended_at else quiet).append(lag)
        seconds[int((at - load.steady.start).total_seconds())].append(lag)
    assert quiet, "no run was sent outside of the prune"
    assert busy, "nothing fired during the deletion"
    points = [
        (second, percentile(lags, 0.99), deleted.by(load.steady.start + timedelta(seconds=second)))
        for second, lags in sorted(seconds.items())
    ]
    return Pruned(rows, (ended_at - began_at).total_seconds(), quiet, busy, points)
