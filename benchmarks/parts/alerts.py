"""Measure the lag of a steady load while the schedules of another owner fail, with alerts on.

The baseline is the same load, with the same failures, on a beat and a worker without alerts. A
third variant exports metrics instead, and Prometheus' scrape is simulated. The variants alternate,
each time on new tables.

With alerts, each failing schedule opens an alert. A webhook accepts the messages. The mail server
accepts the connection and never answers.
"""

import re
import statistics
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Select, func, select

from benchmarks import workloads
from benchmarks.bench import Bench
from benchmarks.figures import Bound, at_most
from benchmarks.lag_statistics import percentile
from benchmarks.parts.lag import Fire, Load, Watch, fire_dynbeat, measure
from benchmarks.processes import Process, worker
from benchmarks.workloads import FAILING_QUEUE, FAILING_TASK
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.alert_models import Alert, AlertMessage
from celery_dynbeat.db.models import Run
from tests.support.sinks import HttpSink, hanging_server, mail_url
from tests.support.waiting import wait_until

ROUNDS = 3
#: Fire times of the load in a second, and its seconds. Each schedule of the incident fires once in
#: this time: more failures a second would saturate a worker on two cores, and delay beat.
RATE, SECONDS = 100, 60
FAILING, MIN_FAILING = 5_000, 50
#: Seconds between two messages to a target; the default is 300.
ALERT_INTERVAL = 5
#: Seconds between two scrapes; Prometheus' default is 60.
SCRAPE_EVERY = 5.0
#: The measurement counts if this share of the failing schedules has an alert.
OPEN_SHARE = 0.5
INCIDENT_TIMEOUT = 300.0
SCRAPE_TIMEOUT = 5.0
_EXPORTED = re.compile(r"metrics exported on (http://\S+)")
WITHOUT, ALERTS, METRICS = "without alerts and metrics", "with alerts", "with metrics"
#: Percentile as a share, and the bounds of its ratio.
SHARES: Sequence[tuple[float, Mapping[str, Bound]]] = (
    (0.5, {}),
    (0.99, {"must": at_most(1.25), "aim": at_most(1.05)}),
)

Lags = Sequence[float]
OPENED = select(func.count()).select_from(Alert)
FAILED = select(func.count()).where(Run.task == FAILING_TASK, Run.status == Status.FAILED)


@dataclass(frozen=True, slots=True)
class Compared:
    """A percentile of each round of a variant, and of the baseline, in milliseconds."""

    values: Sequence[float]
    baselines: Sequence[float]

    @property
    def ratios(self) -> Sequence[float]:
        """The ratio of each round: both sides were measured one after the other."""
        return [value / base for value, base in zip(self.values, self.baselines, strict=True)]


def run(bench: Bench) -> None:
    """Measure the variants in alternating rounds and report the medians of the rounds."""
    rounds = [_round(bench, number) for number in range(ROUNDS)]
    for name in (ALERTS, METRICS):
        for share, bounds in SHARES:
            _report(bench, name, share, compare(rounds, name, share), bounds)


def _round(bench: Bench, number: int) -> Mapping[str, Lags]:
    lags = {}
    for name in order(number):
        lags[name] = measure(bench, FIRES[name], rate=RATE, seconds=SECONDS)
        shown = [f"p{share * 100:g} {percentile(lags[name], share):.1f} ms" for share, _ in SHARES]
        bench.console.print(f"round {number + 1} {name}: {', '.join(shown)}")
    return lags


def order(number: int) -> Sequence[str]:
    """Return the variants in the order of a round: every other one is reversed.

    So a machine that becomes slower does not put the same variant last in each round.
    """
    return list(FIRES)[:: 1 if number % 2 == 0 else -1]


def compare(rounds: Sequence[Mapping[str, Lags]], name: str, share: float) -> Compared:
    """Return the percentile ``share`` of variant ``name`` next to the one of the baseline."""
    return Compared(
        [percentile(each[name], share) for each in rounds],
        [percentile(each[WITHOUT], share) for each in rounds],
    )


def _report(
    bench: Bench, name: str, share: float, found: Compared, bounds: Mapping[str, Bound]
) -> None:
    bench.report(
        "alerts",
        f"lag {name}, p{share * 100:g}",
        value=statistics.median(found.values),
        unit="ms",
        baseline=statistics.median(found.baselines),
        baseline_name=WITHOUT,
        compared=statistics.median(found.ratios),
        note=f"{len(found.ratios)} rounds: {_span(found.ratios, '.2f')}; "
        f"the baseline {_span(found.baselines, '.1f')} ms",
        **bounds,
    )


def _span(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}} to {max(values):{form}}"


class _Incident:
    """The failing schedules of one measurement, next to its load."""

    def __init__(self, bench: Bench, load: Load) -> None:
        self.engine = load.engine
        steady = load.steady
        rows = workloads.failing(
            bench.size(FAILING, minimum=MIN_FAILING),
            every=timedelta(seconds=steady.seconds),
            start=steady.start,
            end=steady.end,
        )
        self.count = len(rows)
        workloads.write(load.dynbeat, rows)

    def wait_for_alerts(self, webhook: HttpSink) -> None:
        """Wait for the alerts, and for a message that only the webhook accepted."""
        self._wait(OPENED, round(self.count * OPEN_SHARE), "alerts")
        wait_until(lambda: webhook.bodies, within=INCIDENT_TIMEOUT, message="no message arrived")
        is_delayed = AlertMessage.error.is_not(None) & AlertMessage.sent_at.is_(None)
        self._wait(select(func.count()).where(is_delayed), 1, "delayed messages")

    def read(self, counting: Select[int]) -> int:
        """Return the count of a statement."""
        with self.engine.connect() as connection:
            return connection.execute(counting).scalar_one()

    def _wait(self, counting: Select[int], count: int, what: str) -> None:
        message = f"fewer than {count} {what}"
        wait_until(lambda: self.read(counting) >= count, within=INCIDENT_TIMEOUT, message=message)


def _fire_without(bench: Bench, load: Load) -> Lags:
    incident = _Incident(bench, load)
    return _fire(bench, incident, load, settings={})


def _fire_alerts(bench: Bench, load: Load) -> Lags:
    incident = _Incident(bench, load)
    with hanging_server() as mail_port, HttpSink().serving() as webhook:
        settings = {
            "dynbeat_alert_urls": [mail_url(mail_port), webhook.url],
            "dynbeat_alert_interval": ALERT_INTERVAL,
        }

        @contextmanager
        def watch(_: Process) -> Iterator[None]:
            yield
            bench.console.print(f"{incident.read(OPENED):,} alerts at the end of the load")
            incident.wait_for_alerts(webhook)

        return _fire(bench, incident, load, settings=settings, watch=watch)


def _fire_metrics(bench: Bench, load: Load) -> Lags:
    incident = _Incident(bench, load)
    return _fire(bench, incident, load, settings={"dynbeat_metrics_port": 0}, watch=_scraped)


def _fire(
    bench: Bench,
    incident: _Incident,
    load: Load,
    *,
    settings: Mapping[str, Any],
    watch: Watch = nullcontext,
) -> Lags:
    config = load.site.config(**settings)
    with worker(config, queue=FAILING_QUEUE):
        lags = fire_dynbeat(bench, load, settings=settings, watch=watch)
        assert incident.read(FAILED), "no run has failed"
        return lags


FIRES: Mapping[str, Fire] = {
    WITHOUT: _fire_without,
    ALERTS: _fire_alerts,
    METRICS: _fire_metrics,
}


@contextmanager
def _scraped(process: Process) -> Iterator[None]:
    """Scrape the metrics of a beat at intervals, in a thread."""
    found = _EXPORTED.search(process.text)
    assert found is not None, process.report()
    closing = threading.Event()
    thread = threading.Thread(target=partial(_scrape, found[1], closing), daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join(SCRAPE_TIMEOUT)


def _scrape(url: str, closing: threading.Event) -> None:
    while not closing.wait(SCRAPE_EVERY):
        with urllib.request.urlopen(url, timeout=SCRAPE_TIMEOUT) as response:  # noqa: S310
            response.read()
