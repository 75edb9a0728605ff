"""The processes that are measured: real ``celery`` commands, their processor time and memory."""

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

#: What benchmarks.proj reads. Not imported from there: that module wants it set already.
VARIABLE = "DYNBEAT_BENCHMARK"
#: Holds the sitecustomize.py that leaves out the command-line plugins of others.
ALONE = REPOSITORY / "benchmarks" / "alone"
OURS = "celery-dynbeat"
BEAT_STARTED = "beat started"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its children have used so far, and hold now.

    Memory that they share counts for each of them; a beat has no children.
    """

    cpu_seconds: float
    rss_bytes: int


class Process(CeleryProcess):
    """A ``celery`` command on benchmarks.proj. ``started`` is in seconds of perf_counter().

    Nothing but Celery and this project is loaded into it; "plain" in ``config``: not even this one.
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
        """Return what it has used. Raises AssertionError with its log when it has ended."""
        assert self.exit_status is None, self.report()
        process = psutil.Process(self.pid)
        family = [process, *process.children(recursive=True)]
        return Usage(
            cpu_seconds=sum(cpu_seconds(member.pid) for member in family),
            rss_bytes=sum(member.memory_info().rss for member in family),
        )


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used; threads that ended may not count."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        # To a nanosecond. What psutil reads counts in ticks, and beat is idle for less than one.
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system


@contextmanager
def command(*arguments: str, config: Mapping[str, Any]) -> Iterator[Process]:
    """Yield a running ``celery`` command; it ends in good order, else it is killed."""
    with (
        TemporaryDirectory(prefix="dynbeat-benchmark-") as folder,
        Process(*arguments, folder=Path(folder), config=config) as process,
    ):
        yield process


@contextmanager
def beat(config: Mapping[str, Any], *, log_level: str = "INFO") -> Iterator[Process]:
    """Yield a beat of ours that was just started. Its log says BEAT_STARTED when it is up."""
    with command("beat", "-S", "dynbeat", "-l", log_level, config=config) as process:
        yield process


@contextmanager
def worker(
    config: Mapping[str, Any], *, concurrency: int = 2, log_level: str = "WARNING"
) -> Iterator[Process]:
    """Yield a worker that was just started, with prefork; "plain" in ``config``: without Dynbeat.

    It logs WARNING only: at INFO each task is written to the log twice.
    """
    size = ("-P", "prefork", "-c", str(concurrency))
    # Neighbours are asked after at the start, which takes a second.
    quick = ("--without-gossip", "--without-mingle")
    with command("worker", *size, "-l", log_level, *quick, config=config) as process:
        yield process
