"""A minute in which nothing is due, with 1,000, 100,000 and 1,000,000 schedules.

The three beats are idle at the same time, each on its own database. So noise affects all alike.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Engine, text

from benchmarks import statements
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.loading import fill
from benchmarks.processes import BEAT_STARTED, Process, beat, cpu_seconds
from benchmarks.statements import Statement
from celery_dynbeat.common.settings import Settings

COUNTS = (1_000, 100_000, 1_000_000)
LEAST = 100
SECONDS, LEAST_SECONDS = 60, 12
#: Seconds until the first pass, the first maintenance and their imports have ended.
SETTLES_AFTER = 5.0
MIB = 2**20
POLL = Settings().poll_interval.total_seconds()
#: The query of a poll is the only one that reads all three.
ASKED = ("dynbeat_schedule", "dynbeat_run", "dynbeat_backfill")


@dataclass(frozen=True, slots=True)
class Idle:
    """The CPU seconds of one idle beat and of its database connections, and its bytes of memory."""

    schedules: int
    cpu_seconds: float
    database_cpu_seconds: float
    rss_bytes: int
    statements: Sequence[Statement] = ()
    transactions: int = 0

    @property
    def polls(self) -> Statement:
        """The query of a poll: a full one, or one that starts at the watermark."""
        found = [each for each in self.statements if is_poll(each)]
        assert 1 <= len(found) <= 2, f"which is the query: {[each.text for each in found]}"
        calls, pages = sum(each.calls for each in found), sum(each.pages for each in found)
        return Statement(found[0].text, calls, pages)


def is_poll(statement: Statement) -> bool:
    """Return whether it is the query of a poll."""
    return all(part in statement.text for part in ASKED)


class _Beat:
    """A beat that is measured."""

    def __init__(self, schedules: int, process: Process, engine: Engine, *, counts: bool) -> None:
        self.process = process
        self._schedules = schedules
        self._engine = engine
        self._counts = counts

    def begin(self) -> None:
        """Count statements from now on."""
        if self._counts:
            statements.forget(self._engine)

    def sample(self) -> Idle:
        """Return CPU time and memory since the start."""
        usage = self.process.usage()
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        with self._engine.connect() as connection:
            own = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            pids = [pid for pid in connection.scalars(text(query)) if pid != own]
        return Idle(
            schedules=self._schedules,
            cpu_seconds=usage.cpu_seconds,
            database_cpu_seconds=sum(map(cpu_seconds, pids)),
            rss_bytes=usage.rss_bytes,
            statements=statements.counted(self._engine) if self._counts else (),
            transactions=statements.transactions(self._engine),
        )


def run(bench: Bench) -> None:
    """Run three idle beats, and compare the one with the most schedules with the smallest one."""
    seconds = bench.size(SECONDS, least=LEAST_SECONDS)
    with ExitStack() as stack:
        counts = [bench.size(count, least=LEAST) for count in COUNTS]
        beats = [stack.enter_context(_idling(bench, count)) for count in counts]
        for each in beats:
            each.process.wait_for_log(BEAT_STARTED)
        time.sleep(SETTLES_AFTER)
        before = [each.sample() for each in beats]
        for each in beats:
            each.begin()
        for _ in bench.track(range(seconds), "idle"):
            time.sleep(1)
        found = [_used(*pair) for pair in zip(before, [e.sample() for e in beats], strict=True)]
    _report_use(bench, found[0], found[-1], seconds=seconds)
    _report_queries(bench, found[0], found[-1], seconds=seconds)
    bench.series("idle", [_point(each, seconds=seconds) for each in found])


@contextmanager
def _idling(bench: Bench, count: int) -> Iterator[_Beat]:
    with bench.site() as site, site.application() as dynbeat:
        engine = dynbeat.context.database.engine
        fill(engine, count)
        counts = statements.count_from_now(engine)
        # Close the connections of this process. Only those of beat stay open.
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


def _report_use(bench: Bench, least: Idle, most: Idle, *, seconds: float) -> None:
    a_second = 1_000 / seconds
    beat_used = (most.cpu_seconds * a_second, least.cpu_seconds * a_second)
    bounds = {"must": at_most(1.2), "aim": at_most(1.05)}
    _report(bench, "CPU of beat", most, least, beat_used, unit="ms/s", **bounds)
    database_used = (most.database_cpu_seconds * a_second, least.database_cpu_seconds * a_second)
    _report(bench, "CPU of its database connections", most, least, database_used, unit="ms/s")
    held = (most.rss_bytes / MIB, least.rss_bytes / MIB)
    bounds = {"must": at_most(5), "aim": at_most(1)}
    more = held[0] - held[1]
    what = "RSS of beat, MiB above the floor"
    _report(bench, what, most, least, held, unit="MiB", compared=more, **bounds)


def _report(
    bench: Bench, what: str, most: Idle, least: Idle, values: tuple[float, float], **fields: Any
) -> None:
    """Report the value with the most schedules, with that of the fewest as its floor."""
    ours, floor = values
    bench.report(
        "idle",
        f"{what}, {most.schedules:,} schedules",
        ours=ours,
        floor=floor,
        against=f"{least.schedules:,} schedules",
        **{"compared": ours / floor, **fields},
    )


def _report_queries(bench: Bench, least: Idle, most: Idle, *, seconds: float) -> None:
    intervals = seconds / POLL
    if not most.statements:
        note = "statements were not counted: pg_stat_statements is not installed"
        a_poll = most.transactions / intervals
        bench.report("idle", "transactions in a poll interval", ours=a_poll, unit="", note=note)
        return
    bench.report(
        "idle",
        "queries in a poll interval",
        ours=most.polls.calls / intervals,
        unit="",
        # A span of n intervals has n + 1 ends.
        compared=most.polls.calls / (intervals + 1),
        must=at_most(1),
        note="maintenance and heartbeat are counted below",
    )
    pages = (most.polls.pages / most.polls.calls, least.polls.pages / least.polls.calls)
    _report(bench, "pages that this query touches", most, least, pages, unit="pages")
    rest = [each for each in most.statements if not each.is_frame and not is_poll(each)]
    a_minute = sum(each.calls for each in rest) / seconds * 60
    what = "other statements in a minute: maintenance, heartbeat, clock, pings"
    bench.report("idle", what, ours=a_minute, unit="", note=f"{len(rest)} different ones")


def _point(idle: Idle, *, seconds: float) -> dict[str, object]:
    return {
        "schedules": idle.schedules,
        "cpu_seconds_a_minute": idle.cpu_seconds / seconds * 60,
        "database_cpu_seconds_a_minute": idle.database_cpu_seconds / seconds * 60,
        "rss_bytes": idle.rss_bytes,
        "statements": [[each.calls, each.pages, each.text] for each in idle.statements],
    }
