"""Measure a minute in which nothing is due, with 1,000, 100,000 and 1,000,000 schedules.

Three beats idle at the same time, each on its own database, so that noise affects them equally.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Engine

from benchmarks import statement_counts
from benchmarks.bench import Bench
from benchmarks.bulk_schedules import fill
from benchmarks.figures import at_most
from benchmarks.processes import BEAT_STARTED, Process, beat, database_cpu_seconds
from benchmarks.statement_counts import Statement
from celery_dynbeat.common.settings import Settings

COUNTS = (1_000, 100_000, 1_000_000)
MIN_SCHEDULES = 100
SECONDS, MIN_SECONDS = 60, 12
#: Seconds for the first pass, the first maintenance and their imports.
SETTLE_SECONDS = 5.0
MIB = 2**20
POLL = Settings().poll_interval.total_seconds()
#: Only the query of a poll reads all three tables.
POLLED_TABLES = ("dynbeat_schedule", "dynbeat_run")


@dataclass(frozen=True, slots=True)
class Idle:
    """Resources of an idle beat: processor seconds of beat and of its connections, and memory."""

    schedules: int
    cpu_seconds: float
    database_cpu_seconds: float
    rss_bytes: int
    statements: Sequence[Statement] = ()
    transactions: int = 0

    @property
    def polls(self) -> Statement:
        """The query of the polls. It has two forms: the whole index, or from a watermark on."""
        found = [each for each in self.statements if is_poll(each)]
        assert 1 <= len(found) <= 2, f"not the query of a poll: {[each.text for each in found]}"
        calls, pages = sum(each.calls for each in found), sum(each.pages for each in found)
        return Statement(found[0].text, calls, pages)


def is_poll(statement: Statement) -> bool:
    """Return whether ``statement`` is the query of a poll."""
    return all(part in statement.text for part in POLLED_TABLES)


class _Beat:
    """A measured beat."""

    def __init__(self, schedules: int, process: Process, engine: Engine, *, counts: bool) -> None:
        self.process = process
        self._schedules = schedules
        self._engine = engine
        self._counts = counts

    def reset_counts(self) -> None:
        """Set the statement counts to zero."""
        if self._counts:
            statement_counts.reset_counts(self._engine)

    def read_usage(self) -> Idle:
        """Return the resources used since the start of the beat."""
        usage = self.process.usage()
        return Idle(
            schedules=self._schedules,
            cpu_seconds=usage.cpu_seconds,
            database_cpu_seconds=database_cpu_seconds(self._engine),
            rss_bytes=usage.rss_bytes,
            statements=statement_counts.read_statements(self._engine) if self._counts else (),
            transactions=statement_counts.transactions(self._engine),
        )


def run(bench: Bench) -> None:
    """Let three beats idle; compare that with the most schedules to that with the fewest."""
    seconds = bench.size(SECONDS, minimum=MIN_SECONDS)
    with ExitStack() as stack:
        counts = [bench.size(count, minimum=MIN_SCHEDULES) for count in COUNTS]
        beats = [stack.enter_context(_idling(bench, count)) for count in counts]
        for each in beats:
            each.process.wait_for_log(BEAT_STARTED)
        time.sleep(SETTLE_SECONDS)
        before = [each.read_usage() for each in beats]
        for each in beats:
            each.reset_counts()
        for _ in bench.track(range(seconds), "idle"):
            time.sleep(1)
        found = [_used(*pair) for pair in zip(before, [e.read_usage() for e in beats], strict=True)]
    _report_use(bench, found[0], found[-1], seconds=seconds)
    _report_queries(bench, found[0], found[-1], seconds=seconds)
    bench.series("idle", [_point(each, seconds=seconds) for each in found])


@contextmanager
def _idling(bench: Bench, count: int) -> Iterator[_Beat]:
    with bench.site() as site, site.application() as dynbeat:
        engine = dynbeat.context.database.engine
        fill(engine, count)
        counts = statement_counts.count_from_now(engine)
        # Close the connections of this process, so that only beat's connections stay open.
        engine.dispose()
        with beat(site.config()) as process:
            yield _Beat(count, process, engine, counts=counts)


def _used(before: Idle, after: Idle) -> Idle:
    return replace(
        after,
        cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        database_cpu_seconds=after.database_cpu_seconds - before.database_cpu_seconds,
        transactions=after.transactions - before.transactions,
    )


def _report_use(bench: Bench, minimum: Idle, most: Idle, *, seconds: float) -> None:
    a_second = 1_000 / seconds
    beat_used = (most.cpu_seconds * a_second, minimum.cpu_seconds * a_second)
    bounds = {"must": at_most(1.2), "aim": at_most(1.05)}
    _report(bench, "CPU of beat", most, minimum, beat_used, unit="ms/s", **bounds)
    database_used = (most.database_cpu_seconds * a_second, minimum.database_cpu_seconds * a_second)
    _report(bench, "CPU of its database connections", most, minimum, database_used, unit="ms/s")
    rss = (most.rss_bytes / MIB, minimum.rss_bytes / MIB)
    bounds = {"must": at_most(5), "aim": at_most(1)}
    more = rss[0] - rss[1]
    what = "RSS of beat, MiB above the baseline"
    _report(bench, what, most, minimum, rss, unit="MiB", compared=more, **bounds)


def _report(
    bench: Bench, what: str, most: Idle, minimum: Idle, values: tuple[float, float], **fields: Any
) -> None:
    """Report the value with the most schedules; that with the fewest is the baseline."""
    value, baseline = values
    bench.report(
        "idle",
        f"{what}, {most.schedules:,} schedules",
        value=value,
        baseline=baseline,
        baseline_name=f"{minimum.schedules:,} schedules",
        **{"compared": value / baseline, **fields},
    )


def _report_queries(bench: Bench, minimum: Idle, most: Idle, *, seconds: float) -> None:
    intervals = seconds / POLL
    if not most.statements:
        note = "statements were not counted: pg_stat_statements is not installed"
        a_poll = most.transactions / intervals
        bench.report("idle", "transactions in a poll interval", value=a_poll, unit="", note=note)
        return
    bench.report(
        "idle",
        "queries in a poll interval",
        value=most.polls.calls / intervals,
        unit="",
        # A span of n intervals can contain n + 1 polls.
        compared=most.polls.calls / (intervals + 1),
        must=at_most(1),
        note="maintenance and heartbeat are counted below",
    )
    pages = (most.polls.pages / most.polls.calls, minimum.polls.pages / minimum.polls.calls)
    _report(bench, "pages that this query reads", most, minimum, pages, unit="pages")
    others = [
        each for each in most.statements if not each.is_transaction_control and not is_poll(each)
    ]
    a_minute = sum(each.calls for each in others) / seconds * 60
    what = "other statements in a minute: maintenance, heartbeat, clock, pings"
    bench.report("idle", what, value=a_minute, unit="", note=f"{len(others)} different ones")


def _point(idle: Idle, *, seconds: float) -> dict[str, object]:
    return {
        "schedules": idle.schedules,
        "cpu_seconds_a_minute": idle.cpu_seconds / seconds * 60,
        "database_cpu_seconds_a_minute": idle.database_cpu_seconds / seconds * 60,
        "rss_bytes": idle.rss_bytes,
        "statements": [[each.calls, each.pages, each.text] for each in idle.statements],
    }
