"""The API: thousands of schedules in one call and one by one, and pages of a million.

The floors are inserts of the same schedules by the driver, without planning. Floors and ours take
turns, each on a new database.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select

from benchmarks import loads, pages
from benchmarks.bench import Bench
from benchmarks.figures import at_least, at_most
from benchmarks.floors import inserting
from benchmarks.lags import percentile
from benchmarks.loading import fill
from celery_dynbeat import Cron, Dynbeat, Every
from celery_dynbeat.client import NewSchedule
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.triggers import Trigger

MANY, SINGLE, LISTED = 50_000, 1_000, 1_000_000
LEAST, LEAST_LISTED = 50, 1_000
ROUNDS, PAGES = 3, 100
BULK_RATE, SINGLE_RATE, MILLISECONDS = 10_000, 300, 20
UNIT = "schedules/s"
RULES: Sequence[Trigger] = (
    Cron("0 9 * * mon-fri"),
    Cron("30 9 * * *", timezone="Europe/Berlin"),
    Every(timedelta(minutes=5)),
    Every(timedelta(days=1)),
)

#: Writes a number of schedules and returns the rate per second.
Measure = Callable[[Dynbeat, int], float]


def run(bench: Bench) -> None:
    """Measure the writes in alternating rounds, then the pages."""
    many, single = bench.size(MANY, least=LEAST), bench.size(SINGLE, least=LEAST)
    floors = {"executemany": _executemany}
    if bench.services.database == "postgresql":
        floors["COPY"] = _copy
    rates: dict[str, list[float]] = {}
    for _ in bench.track(range(ROUNDS), "create"):
        for name, measure in (floors | {"create_many": _create_many}).items():
            rates.setdefault(name, []).append(_measured(bench, measure, many))
        for name, measure in (("insert", _insert), ("create", _create)):
            rates.setdefault(name, []).append(_measured(bench, measure, single))
    _report(bench, {name: statistics.median(each) for name, each in rates.items()}, many=many)
    if bench.services.database == "postgresql":
        _report_pages(bench)


def _report(bench: Bench, rates: dict[str, float], *, many: int) -> None:
    for what, floor, against, least in (
        ("create_many", "executemany", inserting.AGAINST_MANY, BULK_RATE),
        ("create", "insert", inserting.AGAINST_ONE, SINGLE_RATE),
    ):
        bench.report(
            "create",
            f"{what} of {many:,}" if what == "create_many" else f"{what} in a loop",
            ours=rates[what],
            unit=UNIT,
            floor=rates[floor],
            against=against,
            # The bounds are absolute.
            compared=rates[what],
            must=at_least(least),
            aim=at_least(2 * least),
            note=f"{rates[what] / rates[floor]:.2f} x the floor",
        )
    if "COPY" in rates:
        bench.report("create", f"COPY of {many:,}", ours=rates["COPY"], unit=UNIT)


def _measured(bench: Bench, measure: Measure, count: int) -> float:
    """Measure on a new database. It must have all schedules afterwards."""
    with bench.site() as site, site.application() as dynbeat:
        engine = dynbeat.context.database.engine
        # The first use reads the clock and connects.
        dynbeat.context.clock.now()
        found = measure(dynbeat, count)
        with engine.connect() as connection:
            there = connection.execute(select(func.count()).select_from(Schedule)).scalar_one()
    assert there == count, f"{there} schedules, not {count}"
    return found


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
    return inserting.many(dynbeat.context.database.engine, _rows(count))


def _copy(dynbeat: Dynbeat, count: int) -> float:
    return inserting.copied(dynbeat.context.database.engine, _rows(count))


def _insert(dynbeat: Dynbeat, count: int) -> float:
    return inserting.singly(dynbeat.context.database.engine, _rows(count))


def _new(number: int) -> NewSchedule:
    return {
        "owner": f"user:{number % loads.OWNERS}",
        "name": f"schedule {number}",
        "task": loads.TASK,
        "kwargs": {"user_id": number % loads.OWNERS},
        "trigger": RULES[number % len(RULES)],
    }


def _rows(count: int) -> Sequence[loads.Row]:
    return loads.burst(count, due_at=datetime.now(UTC) + timedelta(days=1))


def _report_pages(bench: Bench) -> None:
    count = bench.size(LISTED, least=LEAST_LISTED)
    points: dict[str, dict[str, Sequence[float]]] = {}
    for whose, owner, owners in (("one owner", "user:0", 1), ("all owners", None, loads.OWNERS)):
        with bench.site() as site, site.application() as dynbeat:
            fill(dynbeat.context.database.engine, count, owners=owners)
            times = bench.size(PAGES, least=5)
            found = pages.measure(dynbeat, owner=owner, count=count, times=times)
        points[whose] = dict(found)
        for place, milliseconds in found.items():
            bench.report(
                "create",
                f"{place} page of {count:,} of {whose}, p99",
                ours=percentile(milliseconds, 0.99),
                unit="ms",
                floor=percentile(found[pages.FIRST], 0.99),
                against="the first page",
                compared=percentile(milliseconds, 0.99),
                must=at_most(MILLISECONDS),
                aim=at_most(MILLISECONDS / 2),
                note=f"median {percentile(milliseconds, 0.5):.1f} ms, {pages.LIMIT} on a page",
            )
    bench.series("pages", points)
