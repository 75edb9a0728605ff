"""Measure the memory of one beat through ten bursts; the baseline is F5, stock beat.

F5 here also imports the libraries of a database: the bound is on what this package adds to them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from benchmarks import bursts, workloads
from benchmarks.baselines import stock_beat
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.processes import BEAT_STARTED, Process, beat
from benchmarks.queues import Queue, queue
from benchmarks.services import Site
from celery_dynbeat import Dynbeat

SCHEDULES = 10_000
BURSTS = 10
MB = 10**6
#: MB above F5 with the libraries of a database.
MUST, AIM = 28, 20
#: RSS after the last burst, as a ratio to that after the second. Python's allocator does not free
#: single pages, so a ratio of exactly 1 cannot be expected.
MUST_GROWTH, AIM_GROWTH = 1.03, 1.01
DUE_IN = timedelta(seconds=1)
SETTLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class BeatMemory:
    """Memory of a beat in MB, before the first burst and after each."""

    idle: float
    after: Sequence[float]


def run(bench: Bench) -> None:
    """Measure F5, beat, and F5 again on the same services; the smaller F5 counts."""
    with bench.site() as site:
        plain = stock_beat.measure(site).rss_bytes / MB
        before = stock_beat.measure(site, libraries=stock_beat.LIBRARIES).rss_bytes
    with bench.site() as site:
        memory = _hold(bench, site)
    with bench.site() as site:
        after = stock_beat.measure(site, libraries=stock_beat.LIBRARIES).rss_bytes
    stock = min(before, after) / MB
    _report(bench, memory, stock, plain)
    bench.series(
        "memory",
        {"dynbeat": list(memory.after), "idle": memory.idle, "baseline": stock},
    )


def _report(bench: Bench, memory: BeatMemory, stock: float, plain: float) -> None:
    above = {"unit": "MB", "baseline": stock, "baseline_name": stock_beat.NAME_WITH_LIBRARIES}
    most, second, last = max(memory.after), memory.after[1], memory.after[-1]
    what = f"RSS through {BURSTS} bursts, MB above F5"
    bounds = {"must": at_most(MUST), "aim": at_most(AIM)}
    bench.report("memory", what, value=most, compared=most - stock, **above, **bounds)
    what = "RSS before the first burst, MB above F5"
    bench.report("memory", what, value=memory.idle, compared=memory.idle - stock, **above)
    above = {"unit": "MB", "baseline": plain, "baseline_name": stock_beat.NAME}
    bench.report("memory", what, value=memory.idle, compared=memory.idle - plain, **above)
    bench.report(
        "memory",
        "RSS after the last burst",
        value=last,
        unit="MB",
        baseline=second,
        baseline_name="after the second burst",
        compared=last / second,
        must=at_most(MUST_GROWTH),
        aim=at_most(AIM_GROWTH),
    )


def _hold(bench: Bench, site: Site) -> BeatMemory:
    count = bench.size(SCHEDULES)
    with site.application() as dynbeat, queue(site) as task_queue:
        tomorrow = dynbeat.context.clock.now() + timedelta(days=1)
        workloads.write(dynbeat, workloads.burst(count, due_at=tomorrow))
        # As in production, the tables exist and beat only checks them.
        with beat(site.config(dynbeat_create_tables=False)) as process:
            process.wait_for_log(BEAT_STARTED)
            time.sleep(SETTLE_SECONDS)
            idle = _rss(process)
            after = [
                _burst(dynbeat, task_queue, process, count)
                for _ in bench.track(range(BURSTS), "memory")
            ]
    return BeatMemory(idle, after)


def _burst(dynbeat: Dynbeat, task_queue: Queue, process: Process, count: int) -> float:
    """Make all schedules due and return the memory of beat in MB."""
    due_at = dynbeat.context.clock.now() + DUE_IN
    workloads.make_due(dynbeat, due_at)
    bursts.watch(dynbeat, task_queue, count=count, due_at=due_at, processes=[process])
    # Read at once: memory that is freed after a burst is allocated again by the next.
    after = _rss(process)
    bursts.check(dynbeat.context.database.engine, task_queue, count=count, due_at=due_at)
    return max(after, _rss(process))


def _rss(process: Process) -> float:
    return process.usage().rss_bytes / MB
