"""The cost of a long history: a burst with 10,000,000 old runs, and a prune of 1,000,000 runs.

The same schedules burst several times, in turns on a database without history and on one with it.
Then beat prunes old history under a load of 500 fire times per second.
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from benchmarks import bursts, history, loads, pruning
from benchmarks.bench import Bench
from benchmarks.bursts import Burst
from benchmarks.figures import at_most
from benchmarks.lags import percentile
from benchmarks.processes import BEAT_STARTED, beat
from benchmarks.queues import Queue, queue
from benchmarks.services import Site
from celery_dynbeat import Dynbeat
from celery_dynbeat.common.settings import Settings

SCHEDULES, HISTORY, ROUNDS = 50_000, 10_000_000, 3
LEAST, LEAST_HISTORY = 500, 5_000
DAY = timedelta(days=1)
#: Beat prunes none of it.
OLDEST = Settings().history_retention - DAY
#: Seconds from an update to its burst, and schedules that are made due per second.
LEAD, MADE_DUE = 1.0, 10_000


def run(bench: Bench) -> None:
    """Measure the bursts in turns, then the prune."""
    _grow(bench)
    _prune(bench)


def _grow(bench: Bench) -> None:
    rows = bench.size(HISTORY, least=LEAST_HISTORY)
    with ExitStack() as stack:
        without = stack.enter_context(_Bursting.on(bench, rows=0))
        grown = stack.enter_context(_Bursting.on(bench, rows=rows))
        found = [(without.burst(), grown.burst()) for _ in bench.track(range(ROUNDS), "bursts")]
    floor, ours = (
        statistics.median(burst.messages_per_second for burst in each)
        for each in zip(*found, strict=True)
    )
    bench.report(
        "growth",
        f"burst with {rows:,} old runs",
        ours=ours,
        unit="messages/s",
        floor=floor,
        against="without history",
        # The ratio of times, not of rates.
        compared=floor / ours,
        must=at_most(1.1),
        aim=at_most(1.0),
    )


class _Bursting:
    """Schedules on a site that become due several times."""

    def __init__(self, site: Site, dynbeat: Dynbeat, waiting: Queue, count: int) -> None:
        self._site = site
        self._dynbeat = dynbeat
        self._waiting = waiting
        self._count = count
        tomorrow = dynbeat.context.clock.now() + DAY
        loads.write(dynbeat, loads.burst(count, due_at=tomorrow))

    @classmethod
    @contextmanager
    def on(cls, bench: Bench, *, rows: int) -> Iterator["_Bursting"]:
        """Yield schedules with ``rows`` old runs on a new site."""
        with bench.site() as site, site.application() as dynbeat, queue(site) as waiting:
            made = cls(site, dynbeat, waiting, bench.size(SCHEDULES, least=LEAST))
            if rows:
                engine = dynbeat.context.database.engine
                history.write(engine, rows, oldest=OLDEST, newest=DAY, track=bench.track)
            yield made

    def burst(self) -> Burst:
        """Make all schedules due at one instant, for one beat. Each has one run and one message."""
        context = self._dynbeat.context
        with beat(self._site.config()) as process:
            process.wait_for_log(BEAT_STARTED)
            lead = timedelta(seconds=LEAD + self._count / MADE_DUE)
            due_at = context.clock.now() + lead
            loads.make_due(self._dynbeat, due_at)
            messages = bursts.watch(
                self._dynbeat,
                self._waiting,
                count=self._count,
                due_at=due_at,
                processes=[process],
            )
            engine = context.database.engine
            bursts.check(engine, self._waiting, count=self._count, due_at=due_at)
        return Burst(self._count, context.settings.batch_size, messages, messages)


def _prune(bench: Bench) -> None:
    pruned = pruning.measure(bench)
    floor, ours = percentile(pruned.quiet, 0.99), percentile(pruned.busy, 0.99)
    bench.report(
        "growth",
        f"p99 lag while {pruned.deleted:,} old runs are deleted",
        ours=ours,
        unit="ms",
        floor=floor,
        against="before and after it",
        compared=ours / floor,
        must=at_most(2.0),
        aim=at_most(1.1),
        note=f"{len(pruned.busy):,} fires during it, {len(pruned.quiet):,} before and after",
    )
    bench.report(
        "growth",
        "old runs deleted",
        ours=pruned.deleted / pruned.seconds,
        unit="rows/s",
        note="beat deletes 500 at most every 100 ms",
    )
    bench.series("prune", pruned.points)
