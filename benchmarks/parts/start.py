"""Measure the time from process start to first message, with 1,000 to 1,000,000 schedules.

One schedule is due. The baseline is F5. The starts alternate, so that noise affects them equally.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine, func, select, text

from benchmarks.baselines import stock_beat
from benchmarks.bench import Bench
from benchmarks.bulk_schedules import fill
from benchmarks.figures import at_most
from benchmarks.message_receiver import message_receiver
from benchmarks.processes import beat
from benchmarks.services import Site
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until

COUNTS = (1_000, 100_000, 1_000_000)
MIN_SCHEDULES, ROUNDS = 100, 7
START_TIMEOUT = 60.0
#: Seconds in which a duplicate message would still arrive.
SETTLE_SECONDS = 0.3
#: A daily schedule of ``fill``: it has only one fire time during the measurement.
#: By its key, because a scan of a million rows before a start would slow that start.
_DUE = """
UPDATE dynbeat_schedule SET next_fire_at = now(), next_run_at = now()
WHERE owner = :owner AND name = :name
"""
KEY = {"owner": "user:3", "name": "schedule 3"}


def run(bench: Bench) -> None:
    """Alternate the starts and report the medians."""
    counts = [bench.size(count, minimum=MIN_SCHEDULES) for count in COUNTS]
    rounds = bench.size(ROUNDS, minimum=2)
    starts: dict[int, list[float]] = {count: [] for count in counts}
    stock: list[float] = []
    with ExitStack() as stack:
        sites = {count: stack.enter_context(_filled(bench, count)) for count in counts}
        for _ in bench.track(range(rounds), "start"):
            for count, (site, engine) in sites.items():
                starts[count].append(_start(site, engine))
            stock.append(stock_beat.measure(site).started_in_seconds)
        for _, engine in sites.values():
            _check(engine, rounds)
    medians = [statistics.median(starts[count]) for count in counts]
    _report(bench, counts, medians, statistics.median(stock))


def _report(bench: Bench, counts: Sequence[int], seconds: Sequence[float], stock: float) -> None:
    for baseline, baseline_name, must, aim in (
        (seconds[0], f"{counts[0]:,} schedules", 1.1, 1.05),
        (stock, stock_beat.NAME, 1.3, 1.0),
    ):
        bench.report(
            "start",
            f"first message with {counts[-1]:,} schedules",
            value=seconds[-1],
            unit="s",
            baseline=baseline,
            baseline_name=baseline_name,
            compared=seconds[-1] / baseline,
            must=at_most(must),
            aim=at_most(aim),
        )
    points = [
        {"schedules": count, "seconds": each} for count, each in zip(counts, seconds, strict=True)
    ]
    bench.series("start", {"dynbeat": points, "stock beat": stock})


@contextmanager
def _filled(bench: Bench, count: int) -> Iterator[tuple[Site, Engine]]:
    with bench.site() as site, site.application() as dynbeat:
        engine = dynbeat.context.database.engine
        fill(engine, count)
        yield site, engine


def _start(site: Site, engine: Engine) -> float:
    """Make one schedule due and return the seconds from exec to its message."""
    with engine.begin() as connection:
        connection.execute(text(_DUE), KEY)
    with message_receiver(site.broker_url) as receiver, beat(site.config()) as process:
        seconds = receiver.wait(within=START_TIMEOUT) - process.started
        time.sleep(SETTLE_SECONDS)
        assert not receiver.count(), f"more than one message\n{process.report()}"
        # Beat confirms the sent run before it stops.
        return seconds


def _check(engine: Engine, starts: int) -> None:
    query = select(func.count()).select_from(Run).where(Run.status == Status.SENT)

    def sent() -> int:
        with engine.connect() as connection:
            return connection.execute(query).scalar_one()

    wait_until(lambda: sent() == starts, within=1, message=f"not one run for each of {starts}")
