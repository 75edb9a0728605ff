"""The time from the start of beat to its first message, with 1,000 to 1,000,000 schedules, and F5.

One schedule is due, the others are not. The starts take turns, so that noise affects all alike.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine, func, select, text

from benchmarks.arrivals import arrivals
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.floors import stock_beat
from benchmarks.loading import fill
from benchmarks.processes import beat
from benchmarks.services import Site
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until

COUNTS = (1_000, 100_000, 1_000_000)
LEAST, ROUNDS = 100, 7
STARTS_WITHIN = 60.0
#: Seconds in which a duplicate message would arrive.
SETTLES_AFTER = 0.3
#: A daily schedule of ``fill``: no other fire time of it passes during the measurement.
#: By its key: a scan of a million rows before the start would warm the cache.
_DUE = """
UPDATE dynbeat_schedule SET next_fire_at = now(), next_run_at = now()
WHERE owner = :owner AND name = :name
"""
KEY = {"owner": "user:3", "name": "schedule 3"}


def run(bench: Bench) -> None:
    """Start the beats in turns, and report the medians."""
    counts = [bench.size(count, least=LEAST) for count in COUNTS]
    rounds = bench.size(ROUNDS, least=2)
    ours: dict[int, list[float]] = {count: [] for count in counts}
    floor: list[float] = []
    with ExitStack() as stack:
        sites = {count: stack.enter_context(_filled(bench, count)) for count in counts}
        for _ in bench.track(range(rounds), "start"):
            for count, (site, engine) in sites.items():
                ours[count].append(_start(site, engine))
            floor.append(stock_beat.measure(site).started_in_seconds)
        for _, engine in sites.values():
            _check(engine, rounds)
    medians = [statistics.median(ours[count]) for count in counts]
    _report(bench, counts, medians, statistics.median(floor))


def _report(bench: Bench, counts: Sequence[int], seconds: Sequence[float], stock: float) -> None:
    for floor, against, must, aim in (
        (seconds[0], f"{counts[0]:,} schedules", 1.1, 1.05),
        (stock, stock_beat.AGAINST, 1.3, 1.0),
    ):
        bench.report(
            "start",
            f"first message with {counts[-1]:,} schedules",
            ours=seconds[-1],
            unit="s",
            floor=floor,
            against=against,
            compared=seconds[-1] / floor,
            must=at_most(must),
            aim=at_most(aim),
        )
    points = [
        {"schedules": count, "seconds": each} for count, each in zip(counts, seconds, strict=True)
    ]
    bench.series("start", {"ours": points, "stock beat": stock})


@contextmanager
def _filled(bench: Bench, count: int) -> Iterator[tuple[Site, Engine]]:
    with bench.site() as site, site.application() as dynbeat:
        engine = dynbeat.context.database.engine
        fill(engine, count)
        yield site, engine


def _start(site: Site, engine: Engine) -> float:
    """Make one schedule due, and return the seconds from exec to its message."""
    with engine.begin() as connection:
        connection.execute(text(_DUE), KEY)
    with arrivals(site.broker_url) as arrived, beat(site.config()) as process:
        seconds = arrived.wait(within=STARTS_WITHIN) - process.started
        time.sleep(SETTLES_AFTER)
        assert not arrived.count(), f"more than one message\n{process.report()}"
        # Beat must confirm the run that it has sent before it stops.
        return seconds


def _check(engine: Engine, starts: int) -> None:
    query = select(func.count()).select_from(Run).where(Run.status == Status.SENT)

    def sent() -> int:
        with engine.connect() as connection:
            return connection.execute(query).scalar_one()

    wait_until(lambda: sent() == starts, within=1, message=f"not one run for each of {starts}")
