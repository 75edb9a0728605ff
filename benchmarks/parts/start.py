"""Measure the time from process start to first message, with 1,000 to 1,000,000 schedules.

One schedule is due. The baselines are F5, and F5 with the libraries of a database. The starts
alternate, so that noise affects them equally.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine, func, select, text

from benchmarks.baselines import stock_beat
from benchmarks.baselines.stock_beat import Start, measure_start
from benchmarks.bench import Bench
from benchmarks.bulk_schedules import fill
from benchmarks.figures import at_most
from benchmarks.processes import beat
from benchmarks.services import Site
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until

COUNTS = (1_000, 100_000, 1_000_000)
MIN_SCHEDULES, ROUNDS = 100, 7
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
    with_libraries: list[float] = []
    with ExitStack() as stack:
        sites = {count: stack.enter_context(_filled(bench, count)) for count in counts}
        for _ in bench.track(range(rounds), "start"):
            for count, (site, engine) in sites.items():
                starts[count].append(start(site, engine).started_in_seconds)
            stock.append(stock_beat.measure(site).started_in_seconds)
            measured = stock_beat.measure(site, libraries=stock_beat.LIBRARIES)
            with_libraries.append(measured.started_in_seconds)
        for _, engine in sites.values():
            _check(engine, rounds)
    medians = [statistics.median(starts[count]) for count in counts]
    baselines = (statistics.median(stock), statistics.median(with_libraries))
    _report(bench, counts, medians, *baselines)


def _report(
    bench: Bench,
    counts: Sequence[int],
    seconds: Sequence[float],
    stock: float,
    with_libraries: float,
) -> None:
    for baseline, baseline_name, must, aim in (
        (seconds[0], f"{counts[0]:,} schedules", 1.1, 1.05),
        (stock, stock_beat.NAME, None, None),
        (with_libraries, stock_beat.NAME_WITH_LIBRARIES, 1.15, 1.05),
    ):
        bench.report(
            "start",
            f"first message with {counts[-1]:,} schedules",
            value=seconds[-1],
            unit="s",
            baseline=baseline,
            baseline_name=baseline_name,
            compared=seconds[-1] / baseline,
            must=None if must is None else at_most(must),
            aim=None if aim is None else at_most(aim),
        )
    points = [
        {"schedules": count, "seconds": each} for count, each in zip(counts, seconds, strict=True)
    ]
    bench.series(
        "start", {"dynbeat": points, "stock beat": stock, "with libraries": with_libraries}
    )


@contextmanager
def _filled(bench: Bench, count: int) -> Iterator[tuple[Site, Engine]]:
    with bench.site() as site, site.application() as dynbeat:
        engine = dynbeat.context.database.engine
        fill(engine, count)
        yield site, engine


def start(site: Site, engine: Engine) -> Start:
    """Make one of the schedules of ``fill`` due, and start a beat that sends its message."""
    with engine.begin() as connection:
        connection.execute(text(_DUE), KEY)
    # Beat confirms the sent run before it stops.
    return measure_start(beat(site.config()), site=site)


def _check(engine: Engine, starts: int) -> None:
    query = select(func.count()).select_from(Run).where(Run.status == Status.SENT)

    def sent() -> int:
        with engine.connect() as connection:
            return connection.execute(query).scalar_one()

    wait_until(lambda: sent() == starts, within=1, message=f"not one run for each of {starts}")
