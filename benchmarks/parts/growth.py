"""What a long history costs: a burst beside 10,000,000 old runs, and the deletion of 1,000,000.

The same schedules burst again and again, on a database without history and on one with it, in
turns. Then 500 fires a second go on while beat deletes what is too old.
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
#: Beat keeps all of it.
OLDEST = Settings().history_retention - DAY
#: A burst begins so long after it was announced; so many schedules are made due in a second.
LEAD, MADE_DUE = 1.0, 10_000


def run(bench: Bench) -> None:
    """Measure the bursts in turns, then the deletion."""
    _grow(bench)
    _prune(bench)


def _grow(bench: Bench) -> None:
    rows = bench.size(HISTORY, least=LEAST_HISTORY)
    with ExitStack() as stack:
        without = stack.enter_context(_Bursting.on(bench, rows=0))
        grown = stack.enter_context(_Bursting.on(bench, rows=rows))
        found = [(without.burst(), grown.burst()) for _ in bench.track(range(ROUNDS), "bursts")]
    floor, ours = (
        statistics.median(burst.messages_a_second for burst in each)
        for each in zip(*found, strict=True)
    )
    bench.report(
        "growth",
        f"burst with {rows:,} old runs",
        ours=ours,
        unit="messages/s",
        floor=floor,
        against="without history",
        # In time, not in rate.
        compared=floor / ours,
        must=at_most(1.1),
        aim=at_most(1.0),
    )


class _Bursting:
    """Schedules on a site, to be made due again and again."""

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
        """Yield schedules with so many old runs on a new site."""
        with bench.site() as site, site.application() as dynbeat, queue(site) as waiting:
            made = cls(site, dynbeat, waiting, bench.size(SCHEDULES, least=LEAST))
            if rows:
                engine = dynbeat.context.database.engine
                history.write(engine, rows, oldest=OLDEST, newest=DAY, track=bench.track)
            yield made

    def burst(self) -> Burst:
        """Let all be due at one instant, for one beat; each has one run and one message."""
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
        note=f"{len(pruned.busy):,} fires meanwhile, {len(pruned.quiet):,} before and after",
    )
    bench.report(
        "growth",
        "old runs deleted",
        ours=pruned.deleted / pruned.seconds,
        unit="rows/s",
        note="beat deletes 500 at most every 100 ms",
    )
    bench.series("prune", pruned.points)
