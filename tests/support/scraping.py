"""Scrape the metrics of processes, once or regularly, and keep what they reported."""

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.processes import CeleryProcess

#: Longer than the time limit of a reading of the database.
ANSWERS_WITHIN = 10.0


def port_of(process: CeleryProcess) -> int:
    """Return the port of the metrics of a process, as soon as it has logged it."""
    process.wait_for_log("metrics exported on")
    found = re.search(r"metrics exported on http://[\d.]+:(\d+)/metrics", process.text)
    assert found, process.report()
    return int(found[1])


def scrape(port: int) -> list[Sample]:
    """Return the samples that the endpoint on a port exports now. Raises OSError."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWERS_WITHIN)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
    return [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("dynbeat_")
    ]


def total(samples: Sequence[Sample], name: str, **labels: str) -> float:
    """Return the sum of the series of a name with these labels."""
    return sum(
        sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


class Recording:
    """Scrapes processes regularly, and remembers the last answer of those that have ended."""

    def __init__(self, *, interval: float) -> None:
        self.interval = interval
        self.marks: dict[str, int] = {}
        self._ports: dict[str, int] = {}
        self._latest: dict[str, list[Sample]] = {}
        self._history: dict[str, dict[int, float]] = {}
        self._ticks = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def watch(self, instance: str, process: CeleryProcess) -> None:
        """Scrape a process from now on."""
        port = port_of(process)
        with self._lock:
            self._ports[instance] = port

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all processes, after a scrape."""
        self._scrape()
        with self._lock:
            samples = list(self._latest.values())
        return sum(total(each, name, **labels) for each in samples)

    def mark(self, name: str) -> None:
        """Name the moment of the last scrape."""
        self.marks[name] = self._ticks - 1

    @contextmanager
    def running(self) -> Iterator["Recording"]:
        """Scrape each ``interval`` seconds in a thread."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            thread.join()

    def write(self, path: Path, *, names: frozenset[str]) -> None:
        """Write the series of these metrics, with null where a scrape failed, and the marks."""
        series = {
            name: [values.get(tick) for tick in range(self._ticks)]
            for name, values in sorted(self._history.items())
            if name.partition("{")[0] in names
        }
        document: dict[str, Any] = {"interval": self.interval, "marks": self.marks}
        lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in series.items()]
        head = json.dumps(document)[:-1]
        path.write_text(f'{head}, "series": {{\n' + ",\n".join(lines) + "\n}}\n")

    def _run(self) -> None:
        started = time.monotonic()
        while not self._stopped.is_set():
            samples = self._scrape()
            with self._lock:
                for name, value in samples.items():
                    self._history.setdefault(name, {})[self._ticks] = value
                self._ticks += 1
            self._stopped.wait(max(0, started + self._ticks * self.interval - time.monotonic()))

    def _scrape(self) -> dict[str, float]:
        with self._lock:
            ports = dict(self._ports)
        found: dict[str, float] = {}
        for instance, port in ports.items():
            try:
                samples = scrape(port)
            except OSError:
                continue
            with self._lock:
                self._latest[instance] = samples
            found |= {_series(sample, instance): sample.value for sample in samples}
        return found


def _series(sample: Sample, instance: str) -> str:
    labels = {**sample.labels, "instance": instance}
    shown = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))
    return f"{sample.name}{{{shown}}}"
