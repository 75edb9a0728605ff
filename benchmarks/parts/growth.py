"""Measure a burst with 10,000,000 old runs, and a steady load while 1,000,000 are deleted.

Bursts of the same schedules alternate between a database without history and one with it. Then a
load of 500 fire times a second runs while beat deletes old history.
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from benchmarks import bulk_runs, bursts, pruning, workloads
from benchmarks.bench import Bench
from benchmarks.bursts import Burst
from benchmarks.figures import at_most
from benchmarks.lag_statistics import percentile
from benchmarks.processes import BEAT_STARTED, beat
from benchmarks.queues import Queue, queue
from benchmarks.services import Site
from celery_dynbeat import Dynbeat
from celery_dynbeat.common.settings import Settings

SCHEDULES, HISTORY, ROUNDS = 50_000, 10_000_000, 3
MIN_SCHEDULES, MIN_HISTORY = 500, 5_000
DAY = timedelta(days=1)
#: Within the retention, so that beat deletes nothing.
OLDEST = Settings().history_retention - DAY
#: Seconds from the update to the burst, and schedules that the update changes in a second.
LEAD, UPDATE_RATE = 1.0, 10_000


def run(bench: Bench) -> None:
    """Measure alternating bursts, then the deletion."""
    _measure_bursts(bench)
    _measure_deletion(bench)


def _measure_bursts(bench: Bench) -> None:
    rows = bench.size(HISTORY, minimum=MIN_HISTORY)
    with ExitStack() as stack:
        without = stack.enter_context(_RepeatedBurst.on(bench, rows=0))
        grown = stack.enter_context(_RepeatedBurst.on(bench, rows=rows))
        found = [(without.burst(), grown.burst()) for _ in bench.track(range(ROUNDS), "bursts")]
    baseline, value = (
        statistics.median(burst.messages_per_second for burst in each)
        for each in zip(*found, strict=True)
    )
    bench.report(
        "growth",
        f"burst with {rows:,} old runs",
        value=value,
        unit="messages/s",
        baseline=baseline,
        baseline_name="without history",
        # The ratio of the times, not of the rates.
        compared=baseline / value,
        must=at_most(1.1),
        aim=at_most(1.0),
    )


class _RepeatedBurst:
    """Schedules on a site that are made due for each burst."""

    def __init__(self, site: Site, dynbeat: Dynbeat, task_queue: Queue, count: int) -> None:
        self._site = site
        self._dynbeat = dynbeat
        self._queue = task_queue
        self._count = count
        tomorrow = dynbeat.context.clock.now() + DAY
        workloads.write(dynbeat, workloads.burst(count, due_at=tomorrow))

    @classmethod
    @contextmanager
    def on(cls, bench: Bench, *, rows: int) -> Iterator["_RepeatedBurst"]:
        """Yield schedules with ``rows`` old runs on a new site."""
        with bench.site() as site, site.application() as dynbeat, queue(site) as task_queue:
            bursting = cls(site, dynbeat, task_queue, bench.size(SCHEDULES, minimum=MIN_SCHEDULES))
            if rows:
                engine = dynbeat.context.database.engine
                bulk_runs.write(engine, rows, oldest=OLDEST, newest=DAY, track=bench.track)
            yield bursting

    def burst(self) -> Burst:
        """Make all due at one instant for one beat; check one run and one message for each."""
        context = self._dynbeat.context
        with beat(self._site.config()) as process:
            process.wait_for_log(BEAT_STARTED)
            lead = timedelta(seconds=LEAD + self._count / UPDATE_RATE)
            due_at = context.clock.now() + lead
            workloads.make_due(self._dynbeat, due_at)
            messages = bursts.watch(
                self._dynbeat,
                self._queue,
                count=self._count,
                due_at=due_at,
                processes=[process],
            )
            engine = context.database.engine
            bursts.check(engine, self._queue, count=self._count, due_at=due_at)
        return Burst(self._count, messages, messages)


def _measure_deletion(bench: Bench) -> None:
    pruned = pruning.measure(bench)
    baseline, value = percentile(pruned.quiet, 0.99), percentile(pruned.busy, 0.99)
    bench.report(
        "growth",
        f"p99 lag while {pruned.deleted:,} old runs are deleted",
        value=value,
        unit="ms",
        baseline=baseline,
        baseline_name="before and after it",
        compared=value / baseline,
        must=at_most(2.0),
        aim=at_most(1.1),
        note=f"{len(pruned.busy):,} fire times during it, {len(pruned.quiet):,} before and after",
    )
    bench.report(
        "growth",
        "old runs deleted",
        value=pruned.deleted / pruned.seconds,
        unit="rows/s",
        note="beat deletes 500 at most every 100 ms",
    )
    bench.series("prune", pruned.points)
