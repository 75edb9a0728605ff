"""Measure the API: create schedules in one call and one by one, and list pages of a million.

Baselines are inserts of the same schedules by the driver, without planning. Baselines and API
alternate, each on a new database.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select

from benchmarks import list_pages, workloads
from benchmarks.baselines import inserting
from benchmarks.bench import Bench
from benchmarks.bulk_schedules import fill
from benchmarks.figures import at_least, at_most
from benchmarks.lag_statistics import percentile
from celery_dynbeat import Cron, Dynbeat, Every
from celery_dynbeat.api import NewSchedule
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.triggers import Trigger

MANY, SINGLE, LISTED = 50_000, 1_000, 1_000_000
MIN_SCHEDULES, MIN_LISTED = 50, 1_000
ROUNDS, PAGES = 3, 100
MIN_RATE_MANY, MIN_RATE_SINGLE, MAX_PAGE_MS = 10_000, 300, 20
UNIT = "schedules/s"
TRIGGERS: Sequence[Trigger] = (
    Cron("0 9 * * mon-fri"),
    Cron("30 9 * * *", timezone="Europe/Berlin"),
    Every(timedelta(minutes=5)),
    Every(timedelta(days=1)),
)

#: Writes a number of schedules and returns the schedules a second.
Measure = Callable[[Dynbeat, int], float]


def run(bench: Bench) -> None:
    """Measure writes in alternating rounds, then the pages."""
    many, single = (
        bench.size(MANY, minimum=MIN_SCHEDULES),
        bench.size(SINGLE, minimum=MIN_SCHEDULES),
    )
    baselines = {"executemany": _executemany}
    if bench.services.database == "postgresql":
        baselines["COPY"] = _copy
    rates: dict[str, list[float]] = {}
    for _ in bench.track(range(ROUNDS), "create"):
        for name, measure in (baselines | {"create_many": _create_many}).items():
            rates.setdefault(name, []).append(_measured(bench, measure, many))
        for name, measure in (("insert", _insert), ("create", _create)):
            rates.setdefault(name, []).append(_measured(bench, measure, single))
    _report(bench, {name: statistics.median(each) for name, each in rates.items()}, many=many)
    if bench.services.database == "postgresql":
        _report_pages(bench)


def _report(bench: Bench, rates: dict[str, float], *, many: int) -> None:
    for what, baseline, baseline_name, minimum in (
        ("create_many", "executemany", inserting.NAME_MANY, MIN_RATE_MANY),
        ("create", "insert", inserting.NAME_ONE, MIN_RATE_SINGLE),
    ):
        bench.report(
            "create",
            f"{what} of {many:,}" if what == "create_many" else f"{what} in a loop",
            value=rates[what],
            unit=UNIT,
            baseline=rates[baseline],
            baseline_name=baseline_name,
            # The bounds are rates, not ratios.
            compared=rates[what],
            must=at_least(minimum),
            aim=at_least(2 * minimum),
            note=f"{rates[what] / rates[baseline]:.2f} x the baseline",
        )
    if "COPY" in rates:
        bench.report("create", f"COPY of {many:,}", value=rates["COPY"], unit=UNIT)


def _measured(bench: Bench, measure: Measure, count: int) -> float:
    """Measure on a new database; AssertionError unless all schedules were written."""
    with bench.site() as site, site.application() as dynbeat:
        engine = dynbeat.context.database.engine
        # The first use reads the database's clock and opens a connection.
        dynbeat.context.clock.now()
        rate = measure(dynbeat, count)
        with engine.connect() as connection:
            written = connection.execute(select(func.count()).select_from(Schedule)).scalar_one()
    assert written == count, f"{written} schedules, not {count}"
    return rate


def _create_many(dynbeat: Dynbeat, count: int) -> float:
    new = [_new(number) for number in range(count)]
    started = time.perf_counter()
    dynbeat.schedules.create_many(new)
    return count / (time.perf_counter() - started)


def _create(dynbeat: Dynbeat, count: int) -> float:
    started = time.perf_counter()
    for number in range(count):
        new = _new(number)
        mine = dynbeat.schedules.for_owner(new["owner"])
        mine.create(new["name"], task=new["task"], trigger=new["trigger"], kwargs=new["kwargs"])
    return count / (time.perf_counter() - started)


def _executemany(dynbeat: Dynbeat, count: int) -> float:
    return inserting.insert_many(dynbeat.context.database.engine, _rows(count))


def _copy(dynbeat: Dynbeat, count: int) -> float:
    return inserting.copy_rows(dynbeat.context.database.engine, _rows(count))


def _insert(dynbeat: Dynbeat, count: int) -> float:
    return inserting.insert_singly(dynbeat.context.database.engine, _rows(count))


def _new(number: int) -> NewSchedule:
    return {
        "owner": f"user:{number % workloads.OWNERS}",
        "name": f"schedule {number}",
        "task": workloads.TASK,
        "kwargs": {"user_id": number % workloads.OWNERS},
        "trigger": TRIGGERS[number % len(TRIGGERS)],
    }


def _rows(count: int) -> Sequence[workloads.Row]:
    return workloads.burst(count, due_at=datetime.now(UTC) + timedelta(days=1))


def _report_pages(bench: Bench) -> None:
    count = bench.size(LISTED, minimum=MIN_LISTED)
    points: dict[str, dict[str, Sequence[float]]] = {}
    for label, owner, owners in (
        ("one owner", "user:0", 1),
        ("all owners", None, workloads.OWNERS),
    ):
        with bench.site() as site, site.application() as dynbeat:
            fill(dynbeat.context.database.engine, count, owners=owners)
            times = bench.size(PAGES, minimum=5)
            found = list_pages.measure(dynbeat, owner=owner, count=count, times=times)
        points[label] = dict(found)
        for place, milliseconds in found.items():
            bench.report(
                "create",
                f"{place} page of {count:,} of {label}, p99",
                value=percentile(milliseconds, 0.99),
                unit="ms",
                baseline=percentile(found[list_pages.FIRST], 0.99),
                baseline_name="the first page",
                compared=percentile(milliseconds, 0.99),
                must=at_most(MAX_PAGE_MS),
                aim=at_most(MAX_PAGE_MS / 2),
                note=f"median {percentile(milliseconds, 0.5):.1f} ms, {list_pages.LIMIT} on a page",
            )
    bench.series("pages", points)
