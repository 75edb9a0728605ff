"""Run real ``celery`` commands and read their processor time and memory."""

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
from sqlalchemy import Engine, text

from tests.support.processes import REPOSITORY, CeleryProcess

#: Read by benchmarks.proj, which cannot be imported here: it needs the variable at import.
VARIABLE = "DYNBEAT_BENCHMARK"
#: Contains the sitecustomize.py that hides the command-line plug-ins of other distributions.
ISOLATED_SITE = REPOSITORY / "benchmarks" / "isolated"
OWN_DISTRIBUTION = "celery-dynbeat"
BEAT_STARTED = "beat started"


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time and memory of a process and its children.

    Shared memory counts for each process. A beat has no children.
    """

    cpu_seconds: float
    rss_bytes: int


class Process(CeleryProcess):
    """A ``celery`` command on benchmarks.proj. ``started`` is in seconds of perf_counter().

    It loads only Celery and this project; with "plain" in ``config``, only Celery.
    """

    def __init__(self, *arguments: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.started = time.perf_counter()
        super().__init__(
            arguments,
            folder=folder / "process",
            environment={
                VARIABLE: json.dumps(config),
                "PYTHONPATH": os.pathsep.join(map(str, (ISOLATED_SITE, REPOSITORY))),
                "DYNBEAT_BENCHMARK_PLUGINS": "" if config.get("plain") else OWN_DISTRIBUTION,
            },
            app="benchmarks.proj",
        )

    def usage(self) -> Usage:
        """Return the usage so far. AssertionError with the log if the process has ended."""
        assert self.exit_status is None, self.report()
        process = psutil.Process(self.pid)
        family = [process, *process.children(recursive=True)]
        return Usage(
            cpu_seconds=sum(cpu_seconds(member.pid) for member in family),
            rss_bytes=sum(member.memory_info().rss for member in family),
        )


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and its threads, also of those that have ended."""
    try:
        # The clock that clock_getcpuclockid(3) returns on Linux. It counts nanoseconds. psutil
        # counts clock ticks; an idle beat uses less than one.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system


def database_cpu_seconds(engine: Engine) -> float:
    """Return the processor time of the present connections of the database. PostgreSQL only.

    The connection that ``engine`` uses for this query is not counted. Its pool may hold no other.
    """
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    with engine.connect() as connection:
        own = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        pids = [pid for pid in connection.scalars(text(query)) if pid != own]
    return sum(map(cpu_seconds, pids))


@contextmanager
def command(*arguments: str, config: Mapping[str, Any]) -> Iterator[Process]:
    """Yield a running ``celery`` command; stop it afterwards, by SIGKILL if needed."""
    with TemporaryDirectory(prefix="dynbeat-benchmark-") as name:
        folder = Path(name)
        with Process(*arguments, folder=folder, config=config) as process:
            yield process


@contextmanager
def beat(config: Mapping[str, Any], *, log_level: str = "INFO") -> Iterator[Process]:
    """Yield a beat of this project that was just started; it logs BEAT_STARTED when it is ready."""
    with command("beat", "-S", "dynbeat", "-l", log_level, config=config) as process:
        yield process


@contextmanager
def worker(
    config: Mapping[str, Any],
    *,
    concurrency: int = 2,
    log_level: str = "WARNING",
    queue: str | None = None,
) -> Iterator[Process]:
    """Yield a prefork worker that was just started; with "plain" in ``config``, without Dynbeat.

    It consumes ``queue``; None: Celery's default queue. The log level is WARNING, because at INFO a
    worker logs each task twice.
    """
    pool = ("-P", "prefork", "-c", str(concurrency))
    # At start, gossip and mingle look for other workers, which takes a second.
    no_discovery = ("--without-gossip", "--without-mingle")
    queues = () if queue is None else ("-Q", queue)
    arguments = ("worker", *pool, *queues, "-l", log_level, *no_discovery)
    with command(*arguments, config=config) as process:
        yield process
