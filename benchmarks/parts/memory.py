"""The memory of one beat over ten bursts, with F5 as the floor: stock beat with one entry."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from benchmarks import bursts, loads
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.floors import stock_beat
from benchmarks.processes import BEAT_STARTED, Process, beat
from benchmarks.queues import Queue, queue
from benchmarks.services import Site
from celery_dynbeat import Dynbeat

SCHEDULES = 10_000
BURSTS = 10
MB = 10**6
#: MB above F5.
MOST, AIM = 40, 20
#: The ratio of the last burst to the second one: Python's allocator does not free single pages.
FLAT, FLATTER = 1.03, 1.01
DUE_IN = timedelta(seconds=1)
SETTLES_AFTER = 0.3


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of a beat in MB: before the first burst, and after each."""

    idle: float
    after: Sequence[float]


def run(bench: Bench) -> None:
    """Measure F5, ours, and F5 again on the same services; the smaller F5 counts."""
    with bench.site() as site:
        before = stock_beat.measure(site).rss_bytes
    with bench.site() as site:
        held = _hold(bench, site)
    with bench.site() as site:
        stock = min(before, stock_beat.measure(site).rss_bytes) / MB
    _report(bench, held, stock)
    bench.series(
        "memory",
        {"ours": list(held.after), "idle": held.idle, "floor": stock},
    )


def _report(bench: Bench, held: Held, stock: float) -> None:
    above = {"unit": "MB", "floor": stock, "against": stock_beat.AGAINST}
    most, second, last = max(held.after), held.after[1], held.after[-1]
    what = f"RSS through {BURSTS} bursts, MB above F5"
    bounds = {"must": at_most(MOST), "aim": at_most(AIM)}
    bench.report("memory", what, ours=most, compared=most - stock, **above, **bounds)
    what = "RSS before the first burst, MB above F5"
    bench.report("memory", what, ours=held.idle, compared=held.idle - stock, **above)
    bench.report(
        "memory",
        "RSS after the last burst",
        ours=last,
        unit="MB",
        floor=second,
        against="after the second burst",
        compared=last / second,
        must=at_most(FLAT),
        aim=at_most(FLATTER),
    )


def _hold(bench: Bench, site: Site) -> Held:
    count = bench.size(SCHEDULES)
    with site.application() as dynbeat, queue(site) as waiting:
        tomorrow = dynbeat.context.clock.now() + timedelta(days=1)
        loads.write(dynbeat, loads.burst(count, due_at=tomorrow))
        # As in production: the tables exist, and beat only checks them.
        with beat(site.config(dynbeat_create_tables=False)) as process:
            process.wait_for_log(BEAT_STARTED)
            time.sleep(SETTLES_AFTER)
            idle = _rss(process)
            after = [
                _burst(dynbeat, waiting, process, count)
                for _ in bench.track(range(BURSTS), "memory")
            ]
    return Held(idle, after)


def _burst(dynbeat: Dynbeat, waiting: Queue, process: Process, count: int) -> float:
    """Make all schedules due again, and return the memory of beat in MB."""
    due_at = dynbeat.context.clock.now() + DUE_IN
    loads.make_due(dynbeat, due_at)
    bursts.watch(dynbeat, waiting, count=count, due_at=due_at, processes=[process])
    # Without a wait: the next burst reuses the memory that is freed after this one.
    after = _rss(process)
    bursts.check(dynbeat.context.database.engine, waiting, count=count, due_at=due_at)
    return max(after, _rss(process))


def _rss(process: Process) -> float:
    return process.usage().rss_bytes / MB
