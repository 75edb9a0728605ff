"""Compare what a run, a task and a start cost with recorded limits; exit with 1 if one is exceeded.

python -m benchmarks.gate             measure, print a table, compare
python -m benchmarks.gate --record    measure, print a table, write new limits

Each round measures this project and its baseline one after the other, on PostgreSQL and Redis. Only
the ratio to the baseline counts, so that a limit holds on another machine. All times are processor
time, which other processes on the machine change less than elapsed time.

The limits are in gate_limits.json. A limit is the median ratio of the rounds and its noise: the
share by which a run of the same code may be above it. PostgreSQL counts the statements, for both
sides of each ratio, by pg_stat_statements.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
from rich.console import Console
from sqlalchemy import Engine, make_url, text

from benchmarks import bursts, statement_counts, workloads
from benchmarks.baselines import claiming, stock_beat
from benchmarks.baselines import worker as plain_worker
from benchmarks.baselines.publishing import sender
from benchmarks.bench import Bench
from benchmarks.bulk_schedules import fill
from benchmarks.figures import Results, at_most, describe_machine, results_table
from benchmarks.parts.start import start
from benchmarks.parts.worker import count_done, dispatch_due, results_database
from benchmarks.processes import (
    BEAT_STARTED,
    Process,
    beat,
    cpu_seconds,
    database_cpu_seconds,
    worker,
)
from benchmarks.queues import queue
from benchmarks.services import Services, Site
from celery_dynbeat import Dynbeat
from celery_dynbeat.beat.refused import BATCH_SIZE
from tests.support.waiting import wait_until

LIMITS = Path(__file__).with_name("gate_limits.json")
TABLE_WIDTH = 180
#: The first round is not counted: processes import modules, fill caches and open connections.
WARM_UP, ROUNDS = 1, 7
BURST, TASKS, SCHEDULES = 4_000, 600, 1_000
BARE_PASSES = 4
#: The Redis database of the plain worker's messages. Both workers run at the same time.
PLAIN_DATABASE = "2"
DUE_IN = timedelta(seconds=1)
DUE_SINCE = timedelta(seconds=1)
TASKS_TIMEOUT = 120.0
#: The median of seven rounds has about half the standard deviation of a round. This many times the
#: interquartile range of the rounds is three standard deviations of the difference of two medians.
NOISE_OF_RANGE = 1.5
#: Runs of the same code differ by more than their rounds do: the least noise, for counts and for
#: processor times. The most must still show a doubling.
MIN_NOISE, MIN_TIME_NOISE, MAX_TIME_NOISE = 0.05, 0.3, 0.4
#: The same code cost PostgreSQL 1.3 to 2.6 times its baseline on one machine: its processes share
#: the caches of the processor with beat and the worker, and the baseline has the caches alone. So
#: only three times the cost is certain to fail.
DATABASE_NOISE = 0.95
#: A worker writes the ends of many runs at once, or each by itself on a slow machine: little more
#: than one statement, or two.
HELD_NOISE = 1.05
#: Units of processor times.
MS, US = "ms", "us"
MICROSECONDS, MB = 1e6, 1e-6

_START_RUN = """
UPDATE dynbeat_run SET status = 'running', attempt = 1, started_at = now(),
    overdue_at = NULL, worker = 'w1@benchmark', worker_pid = 1
WHERE id = %s
"""
_END_RUN = "UPDATE dynbeat_run SET status = 'succeeded', finished_at = now() WHERE id = %s"


@dataclass(frozen=True, slots=True)
class Limit:
    """A recorded ratio, and the share by which a later ratio may be above it."""

    ratio: float
    noise: float

    @property
    def highest(self) -> float:
        """The highest ratio that is no regression."""
        return self.ratio * (1 + self.noise)


@dataclass(slots=True)
class Rounds:
    """The values of one figure in the rounds, and of its baseline in the same rounds.

    Without baselines the value itself is compared: it is a count.
    """

    unit: str
    baseline_name: str = ""
    min_noise: float = MIN_NOISE
    values: list[float] = field(default_factory=list)
    baselines: list[float] = field(default_factory=list)

    def add(self, value: float, baseline: float | None = None) -> None:
        """Add one round."""
        self.values.append(value)
        if baseline is not None:
            self.baselines.append(baseline)

    def limit(self) -> Limit:
        """Return the median ratio and the noise of these rounds.

        Of counts it is the least: what happens at times, such as a heartbeat, only adds to them.
        """
        if not self.baselines:
            return Limit(round(min(self.values), 3), self.min_noise)
        ratio = statistics.median(self.ratios)
        low, _, high = statistics.quantiles(self.ratios, n=4)
        noise = max(self.min_noise, NOISE_OF_RANGE * (high - low) / ratio)
        if self.unit in {MS, US}:
            noise = max(self.min_noise, min(max(MIN_TIME_NOISE, noise), MAX_TIME_NOISE))
        return Limit(round(ratio, 3), round(noise, 3))

    @property
    def ratios(self) -> Sequence[float]:
        """The ratios of the rounds to their baselines."""
        return [each / base for each, base in zip(self.values, self.baselines, strict=True)]


#: By the name of the figure.
Measured = Mapping[str, Rounds]


def compare(ratios: Mapping[str, float], limits: Mapping[str, Limit]) -> Sequence[str]:
    """Return a sentence for each regression, missing figure, and figure without a limit."""
    record = "record the limits again with --record"
    missing = [
        f"{name} was not measured: measure it, or {record}" for name in limits.keys() - ratios
    ]
    unknown = [f"{name} has no limit: {record}" for name in ratios.keys() - limits]
    exceeded = [
        f"{name} is {ratios[name]:.3f}; the limit is {limit.highest:.3f}"
        f" ({limit.ratio:.3f} was recorded, its noise is {limit.noise:.1%})"
        for name, limit in limits.items()
        if name in ratios and ratios[name] > limit.highest
    ]
    return [*exceeded, *sorted(missing), *sorted(unknown)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and compare with the limits or write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", action="store_true", help=f"write {LIMITS.name}")
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        # Rich wraps the table at 80 columns when the output is a file.
        console.width = TABLE_WIDTH
    started = time.perf_counter()
    results, measured = Results(), dict[str, Rounds]()
    with closing(Services("postgresql", "redis")) as services:
        bench = Bench(services, scale=1, results=results, console=console)
        for measure in (measure_starts, measure_bursts, measure_tasks):
            measured |= measure(bench)
    if options.record:
        _write_limits(measured)
    limits = read_limits()
    _report(bench, measured, limits)
    seconds = time.perf_counter() - started
    console.print(
        results_table(results.figures, title=f"medians of {ROUNDS} rounds, {seconds:.0f} s")
    )
    problems = compare({name: rounds.limit().ratio for name, rounds in measured.items()}, limits)
    if problems:
        raise SystemExit("\n".join(problems))


def read_limits() -> Mapping[str, Limit]:
    """Return the recorded limits by the names of their figures."""
    content = json.loads(LIMITS.read_text())
    return {name: Limit(**limit) for name, limit in content["limits"].items()}


def _write_limits(measured: Measured) -> None:
    content = {
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{describe_machine()}, load average {os.getloadavg()[1]:.1f}",
        "limits": {name: asdict(rounds.limit()) for name, rounds in measured.items()},
    }
    LIMITS.write_text(json.dumps(content, indent=1) + "\n")


def _report(bench: Bench, measured: Measured, limits: Mapping[str, Limit]) -> None:
    for name, rounds in measured.items():
        limit = limits.get(name)
        baselines = rounds.baselines
        part, _, what = name.partition(": ")
        bench.report(
            part,
            what,
            value=statistics.median(rounds.values) if baselines else min(rounds.values),
            unit=rounds.unit,
            baseline=statistics.median(baselines) if baselines else None,
            baseline_name=rounds.baseline_name,
            compared=rounds.limit().ratio,
            must=limit and at_most(round(limit.highest, 3)),
            aim=limit and at_most(limit.ratio),
        )


def measure_starts(bench: Bench) -> Measured:
    """Measure the start of beat and of stock beat with the libraries of a database."""
    stock = stock_beat.NAME_WITH_LIBRARIES
    cpu, rss = Rounds(MS, stock), Rounds("MB", stock)
    with bench.site() as site, _application(site) as dynbeat:
        engine = dynbeat.context.database.engine
        fill(engine, SCHEDULES)
        for is_counted in _rounds():
            baseline = stock_beat.measure(site, libraries=stock_beat.LIBRARIES)
            measured = start(site, engine)
            if is_counted:
                cpu.add(measured.cpu_seconds * 1_000, baseline.cpu_seconds * 1_000)
                rss.add(measured.rss_bytes * MB, baseline.rss_bytes * MB)
    return {
        "start: CPU of beat": cpu,
        "start: RSS of beat": rss,
    }


def measure_bursts(bench: Bench) -> Measured:
    """Measure bursts of one beat, and of a loop that claims, advances, records and publishes."""
    cpu = Rounds(US, "F1, a message")
    database = Rounds(US, "F2, a row", DATABASE_NOISE)
    statements, round_trips = Rounds(""), Rounds("")
    with ExitStack() as stack:
        # Both sites before the first process: a site begins with an empty broker.
        site, bare_site = (stack.enter_context(bench.site()) for _ in range(2))
        dynbeat, bare = (stack.enter_context(_application(each)) for each in (site, bare_site))
        task_queue = stack.enter_context(queue(site))
        engine = dynbeat.context.database.engine
        later = datetime.now(UTC) + timedelta(days=1)
        for each in (dynbeat, bare):
            workloads.write(each, workloads.burst(BURST, due_at=later))
            _count_statements(each.context.database.engine)
        process = stack.enter_context(beat(site.config()))
        process.wait_for_log(BEAT_STARTED)
        batches = BURST / BATCH_SIZE
        for is_counted in _rounds():
            baseline = _bare_burst(bare_site, bare)
            assert len(task_queue.drain()) == BURST
            statement_counts.reset_counts(engine)
            before = process.usage().cpu_seconds, database_cpu_seconds(engine)
            due_at = dynbeat.context.clock.now() + DUE_IN
            _make_due(dynbeat, due_at)
            bursts.watch(dynbeat, task_queue, count=BURST, due_at=due_at, processes=[process])
            bursts.check(engine, task_queue, count=BURST, due_at=due_at)
            after = process.usage().cpu_seconds, database_cpu_seconds(engine)
            if is_counted:
                used = _per_item(before, after, count=BURST)
                cpu.add(used[0], baseline[0])
                database.add(used[1], baseline[1])
                _add_counts(engine, statements, round_trips, count=batches)
    return {
        "beat: CPU of a run": cpu,
        "beat: CPU of PostgreSQL for a run": database,
        "beat: statements of a batch": statements,
        "beat: round trips of a batch": round_trips,
    }


def measure_tasks(bench: Bench) -> Measured:
    """Measure no-op tasks of a worker, and of a plain worker with Redis results."""
    cpu = Rounds(US, f"{plain_worker.NAME} with Redis results")
    database = Rounds(US, "two UPDATEs of psycopg", DATABASE_NOISE)
    statements, round_trips = (Rounds("", min_noise=HELD_NOISE) for _ in range(2))
    with ExitStack() as stack:
        site = stack.enter_context(bench.site())
        results_url = stack.enter_context(results_database(site))
        plain_url = make_url(site.broker_url).set(database=PLAIN_DATABASE)
        plain_site = Site(site.database_url, str(plain_url))
        dynbeat = stack.enter_context(_application(site))
        engine = dynbeat.context.database.engine
        later = datetime.now(UTC) + timedelta(days=1)
        workloads.write(dynbeat, workloads.burst(TASKS, due_at=later))
        _count_statements(engine)
        config = {"plain": True, "result_backend": results_url, "libraries": stock_beat.LIBRARIES}
        plain = stack.enter_context(worker({"broker_url": plain_site.broker_url, **config}))
        process = stack.enter_context(worker(site.config()))
        for number, is_counted in enumerate(_rounds(), start=1):
            with plain_worker.stored_results(results_url, TASKS) as is_done:
                started = plain.usage().cpu_seconds
                plain_worker.publish(plain_site, TASKS)
                wait_until(is_done, within=TASKS_TIMEOUT, message=plain.report())
                baseline = (plain.usage().cpu_seconds - started) / TASKS * MICROSECONDS
            due_at = dynbeat.context.clock.now() - DUE_SINCE
            _make_due(dynbeat, due_at)
            statement_counts.reset_counts(engine)
            engine.dispose()
            before = process.usage().cpu_seconds, database_cpu_seconds(engine)
            dispatch_due(dynbeat)
            _wait_for_done(engine, process, count=number * TASKS)
            after = process.usage().cpu_seconds, database_cpu_seconds(engine)
            if is_counted:
                used = _per_item(before, after, count=TASKS)
                cpu.add(used[0], baseline)
                _add_counts(engine, statements, round_trips, count=TASKS)
                database.add(used[1], _bare_updates(site, due_at))
    return {
        "worker: CPU of a task": cpu,
        "worker: CPU of PostgreSQL for a task": database,
        "worker: statements of a run": statements,
        "worker: round trips of a run": round_trips,
    }


def _wait_for_done(engine: Engine, process: Process, *, count: int) -> None:
    """Return when ``count`` runs have succeeded, each at its first attempt."""
    wait_until(
        lambda: count_done(engine) == (count, count),
        within=TASKS_TIMEOUT,
        message=process.report(),
    )


def _rounds() -> Iterator[bool]:
    """Yield for each round whether it counts."""
    return (number >= WARM_UP for number in range(WARM_UP + ROUNDS))


@contextmanager
def _application(site: Site) -> Iterator[Dynbeat]:
    """Yield an application whose own statements PostgreSQL does not count."""
    options = {"options": "-c pg_stat_statements.track=none"}
    url = make_url(site.database_url).update_query_dict(options)
    uncounted = url.render_as_string(hide_password=False)
    with site.application(dynbeat_database_url=uncounted) as dynbeat:
        yield dynbeat


def _make_due(dynbeat: Dynbeat, due_at: datetime) -> None:
    """Make all schedules due, with the same number of dead rows and new statistics in each round.

    Autovacuum would remove the dead rows in some rounds only, which changes what PostgreSQL reads.
    """
    engine = dynbeat.context.database.engine
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE dynbeat_schedule, dynbeat_run"))
    workloads.make_due(dynbeat, due_at)


def _count_statements(engine: Engine) -> None:
    counts = statement_counts.count_from_now(engine)
    assert counts, "install pg_stat_statements, on Debian with the package postgresql"


def _add_counts(engine: Engine, statements: Rounds, round_trips: Rounds, *, count: float) -> None:
    """Add the statements since the last reset, for one of ``count`` runs or batches.

    A statement with fewer calls than half of ``count`` depends on the time and not on the runs: a
    heartbeat, a poll. A round trip is a statement, or the begin or end of a transaction. In a
    pipeline of the driver several share one, so that the figure is an upper bound.
    """
    executed = statement_counts.read_statements(engine)
    repeated = [each for each in executed if each.calls >= count / 2]
    rows = [each for each in repeated if not each.is_transaction_control]
    statements.add(sum(each.calls for each in rows) / count)
    round_trips.add(sum(each.calls for each in repeated) / count)


def _per_item(
    before: tuple[float, float], after: tuple[float, float], *, count: int
) -> tuple[float, float]:
    """Return the microseconds of processor time that one of ``count`` items cost."""
    own, database = ((b - a) / count * MICROSECONDS for a, b in zip(before, after, strict=True))
    return own, database


def _bare_burst(site: Site, dynbeat: Dynbeat) -> tuple[float, float]:
    """Send a burst with F2 and F1 in this thread.

    Return the microseconds of this process for F1, and of the database for F2, of one run.
    """
    _make_due(dynbeat, dynbeat.context.clock.now() - DUE_SINCE)
    engine = dynbeat.context.database.engine
    published = 0.0
    with (
        claiming.claimer(site.database_url, claiming.tomorrow) as rows,
        sender(site.broker_url) as messages,
    ):
        before = database_cpu_seconds(engine)
        while runs := rows.claim(datetime.now(UTC)):
            started = time.thread_time()
            messages.send(run.message for run in runs)
            published += time.thread_time() - started
        used = database_cpu_seconds(engine) - before
    return published / BURST * MICROSECONDS, used / BURST * MICROSECONDS


def _bare_updates(site: Site, due_at: datetime) -> float:
    """Start and end the runs of ``due_at`` with two UPDATEs each, and return their cost.

    That is the microseconds of the database for one run: the least of a few passes, because a pass
    is so short that other processes change its cost. The dead rows of the worker are removed
    before; otherwise these UPDATEs would remove some of them.
    """
    url = make_url(site.database_url).set(drivername="postgresql")
    query = "SELECT id FROM dynbeat_run WHERE fire_at = %s"
    costs: list[float] = []
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        ids = [row[0] for row in connection.execute(query, (due_at,))]
        assert len(ids) == TASKS, f"{len(ids)} runs of {TASKS}"
        for _ in range(BARE_PASSES):
            connection.execute("VACUUM dynbeat_run")
            before = cpu_seconds(connection.info.backend_pid)
            for run_id in ids:
                connection.execute(_START_RUN, (run_id,))
                connection.execute(_END_RUN, (run_id,))
            costs.append(cpu_seconds(connection.info.backend_pid) - before)
    return min(costs) / TASKS * MICROSECONDS


if __name__ == "__main__":
    main()
