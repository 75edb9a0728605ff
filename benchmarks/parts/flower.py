"""Measure the schedule pages in Flower with 1,000,000 schedules and 10,000,000 runs.

A real Flower serves them. The floor is a static file of the same server: what a request takes
without a query and a template. The processor time, of Flower and the connections of the database,
does not depend on other processes of the machine.
"""

import statistics
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from benchmarks import flower_pages, flower_rows
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.lag_statistics import percentile
from benchmarks.processes import Process, command
from benchmarks.response_times import PASSWORD, USER, FlowerClient, Responses
from benchmarks.services import Site
from tests.support.servers.machine import free_port
from tests.support.waiting import wait_until

SCHEDULES, RUNS = 1_000_000, 10_000_000
MIN_SCHEDULES, MIN_RUNS, MIN_BUSY_RUNS = 10_000, 100_000, 1_000
ROUNDS, MIN_ROUNDS = 12, 5
#: Milliseconds of a page, of which the floor is subtracted.
MUST, AIM = 200, 100
STARTS_WITHIN = 60


def run(bench: Bench) -> None:
    """Write the rows, start Flower, request each page in rounds, and report the medians."""
    size = flower_rows.Size(
        schedules=bench.size(SCHEDULES, minimum=MIN_SCHEDULES),
        runs=bench.size(RUNS, minimum=MIN_RUNS),
        busy_runs=bench.size(flower_rows.BUSY_RUNS, minimum=MIN_BUSY_RUNS),
    )
    rounds = bench.size(ROUNDS, minimum=MIN_ROUNDS)
    with bench.site() as site, site.application() as dynbeat:
        engine = dynbeat.context.database.engine
        flower_rows.write(engine, size, track=bench.track)
        pages = flower_pages.requests(engine)
        with _flower(site) as (port, process):
            client = FlowerClient(port, pid=process.pid, engine=engine)
            turns = bench.track(range(rounds + 1), "pages")
            found = client.measure(pages, rounds=turns)
    _report(bench, found)


@contextmanager
def _flower(site: Site) -> Iterator[tuple[int, Process]]:
    """Yield the port and the process of a Flower that answers."""
    port = free_port()
    place = (f"--port={port}", "--address=127.0.0.1")
    login = f"--basic_auth={USER}:{PASSWORD}"
    with command("dynbeat", "flower", *place, login, config=site.config()) as process:
        wait_until(lambda: _answers(process, port), within=STARTS_WITHIN, message="no Flower")
        yield port, process


def _answers(process: Process, port: int) -> bool:
    assert process.exit_status is None, process.report()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _report(bench: Bench, found: Mapping[str, Responses]) -> None:
    floor = statistics.median(found[flower_pages.FLOOR].elapsed)
    for label, responses in found.items():
        median, p95 = statistics.median(responses.elapsed), percentile(responses.elapsed, 0.95)
        bench.report(
            "flower",
            label,
            value=median,
            unit="ms",
            baseline=floor,
            baseline_name=flower_pages.FLOOR,
            compared=median - floor,
            must=at_most(MUST),
            aim=at_most(AIM),
            note=f"p95 {p95:,.0f} ms, processor {statistics.median(responses.cpu):,.0f} ms",
        )
