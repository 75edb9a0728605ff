"""Measure the growth of tables and lag in half an hour at 300 fire times a second.

Autovacuum runs with its defaults. For five minutes an open transaction prevents the removal of dead
rows. This process writes the worker's updates of the runs in batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from typing import Any

from sqlalchemy import Engine, func, select, text

from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.lag_statistics import percentile
from benchmarks.parts.lag import LOAD_RATE, START_SECONDS, Load
from benchmarks.processes import BEAT_STARTED, Process, beat
from benchmarks.queues import queue
from benchmarks.table_statistics import Table, read_tables
from benchmarks.workloads import SteadyLoad
from celery_dynbeat.db.models import Run

RATE, MIN_RATE = 300, 30
SECONDS, MIN_SECONDS = 1_800, 30
#: The transaction is open between these shares of the time: five minutes of thirty.
OPEN_FROM, OPEN_TO = 1 / 3, 1 / 2
#: Samples of lags and tables in the whole time.
WINDOWS = 90
END_TIMEOUT = timedelta(minutes=5)
THIRD = 1 / 3

#: The updates of a worker at the start and at the end of a run.
_START = """
    UPDATE dynbeat_run SET status = 'running', attempt = attempt + 1, started_at = now(),
      overdue_at = NULL, worker = 'w1@benchmark', worker_pid = 1
    WHERE id = ANY(CAST(:ids AS uuid[])) AND status IN ('pending', 'sent')
"""
_FINISH = """
    UPDATE dynbeat_run SET status = 'succeeded', finished_at = now()
    WHERE id = ANY(CAST(:ids AS uuid[])) AND status = 'running'
"""


@dataclass(frozen=True, slots=True)
class Lag:
    """A run: its fire time in seconds since the start, and its lag in milliseconds."""

    at: float
    milliseconds: float


@dataclass(slots=True)
class Observed:
    """The samples of the tables, by their second, and the lag of each run."""

    seconds: float
    tables: list[tuple[float, Sequence[Table]]] = field(default_factory=list)
    lags: Sequence[Lag] = ()

    def between(self, begin: float, end: float) -> list[float]:
        """Return the lags of the fire times between two shares of the time."""
        span = (begin * self.seconds, end * self.seconds)
        return [each.milliseconds for each in self.lags if span[0] <= each.at < span[1]]


class _LoadWithWorker(Load):
    """A load whose messages this process consumes as a worker of no-op tasks would."""

    def drain(self) -> None:
        """Wait, empty the queue, and update its runs to succeeded."""
        before = len(self._arrived)
        super().drain()
        arrived = self._arrived[before:]
        if arrived:
            for statement in (_START, _FINISH):
                with self.engine.begin() as connection:
                    connection.execute(text(statement), {"ids": arrived})


def run(bench: Bench) -> None:
    """Observe the load and compare the last third of the time to the first."""
    seconds = bench.size(SECONDS, minimum=MIN_SECONDS)
    rate = bench.size(RATE, minimum=MIN_RATE)
    observed = Observed(seconds)
    with bench.site() as site, site.application() as dynbeat, queue(site) as task_queue:
        lead = ceil(START_SECONDS + rate * seconds / 2 / LOAD_RATE)
        start = (dynbeat.context.clock.now() + timedelta(seconds=lead)).replace(microsecond=0)
        load = _LoadWithWorker(site, dynbeat, task_queue, SteadyLoad(rate, seconds, start))
        with beat(site.config()) as process:
            process.wait_for_log(BEAT_STARTED)
            assert load.now() < start, "loading and starting took too long"
            _watch(bench, load, process, observed)
        load.check()
        observed.lags = _lags(load)
    _report(bench, observed)
    bench.series("long run", _points(observed))


def _watch(bench: Bench, load: Load, process: Process, observed: Observed) -> None:
    with ExitStack() as stack:
        for share in bench.track(range(WINDOWS), "long run"):
            if share == round(OPEN_FROM * WINDOWS):
                stack.enter_context(_idle_transaction(load.engine))
            if share == round(OPEN_TO * WINDOWS):
                stack.close()
            observed.tables.append((share / WINDOWS * observed.seconds, read_tables(load.engine)))
            until = load.steady.start + timedelta(seconds=(share + 1) / WINDOWS * observed.seconds)
            while load.now() < until:
                load.drain()
    observed.tables.append((observed.seconds, read_tables(load.engine)))
    while _sent(load.engine) < load.fire_times:
        assert load.now() < load.steady.end + END_TIMEOUT, process.report()
        load.drain()


@contextmanager
def _idle_transaction(engine: Engine) -> Iterator[None]:
    """Hold a snapshot: vacuum cannot remove rows that it can see."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT count(*) FROM dynbeat_node"))
        yield


def _sent(engine: Engine) -> int:
    statement = select(func.count()).where(Run.sent_at.is_not(None))
    with engine.connect() as connection:
        return connection.execute(statement).scalar_one()


def _lags(load: Load) -> Sequence[Lag]:
    start = load.steady.start
    statement = select(Run.fire_at, Run.sent_at).where(Run.sent_at.is_not(None))
    with load.engine.connect() as connection:
        rows = connection.execute(statement).all()
    return [
        Lag(
            (row.fire_at - start).total_seconds(),
            (row.sent_at - row.fire_at) / timedelta(milliseconds=1),
        )
        for row in rows
    ]


def _report(bench: Bench, observed: Observed) -> None:
    first, last = observed.between(0, THIRD), observed.between(1 - THIRD, 1)
    open_lags = observed.between(OPEN_FROM, OPEN_TO)
    for share, bounds in ((0.5, {"must": at_most(1.2), "aim": at_most(1.05)}), (0.99, {})):
        baseline, value = percentile(first, share), percentile(last, share)
        bench.report(
            "long_run",
            f"p{share * 100:g} lag of the last third",
            value=value,
            unit="ms",
            baseline=baseline,
            baseline_name="the first third",
            compared=value / baseline,
            note=f"while a transaction is open: {percentile(open_lags, share):.1f} ms",
            **bounds,
        )
    for table in observed.tables[-1][1]:
        _report_table(bench, observed, table)


def _report_table(bench: Bench, observed: Observed, last: Table) -> None:
    samples = [
        (at, table) for at, tables in observed.tables for table in tables if table.name == last.name
    ]
    max_dead = max(table.dead for _, table in samples)
    bench.report(
        "long_run",
        f"dead rows of {last.name} at the end",
        value=last.dead,
        unit="rows",
        note=f"at most {max_dead:,}; {last.live:,} live ones",
    )
    for index, size in last.indexes.items():
        size_after_third = next(
            t.indexes[index] for at, t in samples if at >= THIRD * observed.seconds
        )
        bench.report(
            "long_run",
            f"size of {index} at the end",
            value=size / 2**20,
            unit="MiB",
            baseline=size_after_third / 2**20,
            baseline_name="after a third",
        )


def _points(observed: Observed) -> Mapping[str, Any]:
    windows = [(each / WINDOWS, (each + 1) / WINDOWS) for each in range(WINDOWS)]
    lags = {begin * observed.seconds: observed.between(begin, end) for begin, end in windows}
    return {
        "lag": [
            (at, percentile(found, 0.5), percentile(found, 0.99))
            for at, found in lags.items()
            if found
        ],
        "tables": [
            {"at": at, "table": t.name, "live": t.live, "dead": t.dead, "bytes": t.bytes}
            | {"indexes": t.indexes}
            for at, tables in observed.tables
            for t in tables
        ],
        "open transaction": (OPEN_FROM * observed.seconds, OPEN_TO * observed.seconds),
    }
