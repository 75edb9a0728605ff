"""The measured processes: real ``celery`` commands, their CPU time and memory."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from tests.support.processes import REPOSITORY, CeleryProcess

#: benchmarks.proj reads it. Not imported from there: its import needs the variable.
VARIABLE = "DYNBEAT_BENCHMARK"
#: The folder of the sitecustomize.py that hides command-line plugins of other packages.
ALONE = REPOSITORY / "benchmarks" / "alone"
OURS = "celery-dynbeat"
BEAT_STARTED = "beat started"


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU time and memory of a process and its children.

    Shared memory counts for each of them. A beat has no children.
    """

    cpu_seconds: float
    rss_bytes: int


class Process(CeleryProcess):
    """A ``celery`` command on benchmarks.proj. ``started`` is in seconds of perf_counter().

    It loads only Celery and this project; with "plain" in ``config`` it does not load this project.
    """

    def __init__(self, *arguments: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.started = time.perf_counter()
        super().__init__(
            arguments,
            folder=folder / "process",
            environment={
                VARIABLE: json.dumps(config),
                "PYTHONPATH": os.pathsep.join(map(str, (ALONE, REPOSITORY))),
                "DYNBEAT_BENCHMARK_PLUGINS": "" if config.get("plain") else OURS,
            },
            app="benchmarks.proj",
        )

    def usage(self) -> Usage:
        """Return CPU time and memory. Raises AssertionError with the log if it has ended."""
        assert self.exit_status is None, self.report()
        process = psutil.Process(self.pid)
        family = [process, *process.children(recursive=True)]
        return Usage(
            cpu_seconds=sum(cpu_seconds(member.pid) for member in family),
            rss_bytes=sum(member.memory_info().rss for member in family),
        )


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process. Threads that have ended may be missing."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        # In nanoseconds. psutil counts in ticks, and an idle beat uses less than one.
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system


@contextmanager
def command(*arguments: str, config: Mapping[str, Any]) -> Iterator[Process]:
    """Yield a running ``celery`` command; stop it afterwards, or kill it after a timeout."""
    with (
        TemporaryDirectory(prefix="dynbeat-benchmark-") as folder,
        Process(*arguments, folder=Path(folder), config=config) as process,
    ):
        yield process


@contextmanager
def beat(config: Mapping[str, Any], *, log_level: str = "INFO") -> Iterator[Process]:
    """Yield a beat that was just started. It logs BEAT_STARTED when it is ready."""
    with command("beat", "-S", "dynbeat", "-l", log_level, config=config) as process:
        yield process


@contextmanager
def worker(
    config: Mapping[str, Any], *, concurrency: int = 2, log_level: str = "WARNING"
) -> Iterator[Process]:
    """Yield a worker that was just started, with prefork; "plain" in ``config``: without Dynbeat.

    It logs warnings only: at INFO it logs each task twice.
    """
    size = ("-P", "prefork", "-c", str(concurrency))
    # Mingle at the start takes a second.
    quick = ("--without-gossip", "--without-mingle")
    with command("worker", *size, "-l", log_level, *quick, config=config) as process:
        yield process
