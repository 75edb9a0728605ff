"""Counters and histograms of a worker with several processes, in files that they share.

    pool process -> its own files, mapped into memory
    main process -> reads all files at a scrape

The files have the format of prometheus_client's multiprocess mode. Its own switch, the environment
variable PROMETHEUS_MULTIPROC_DIR, would also move the metrics of the application into files, and
it makes one file for each process id: a worker with worker_max_tasks_per_child would fill the disk.
Here a process takes the first number whose file no living process has locked. So

- there are as many files as processes that live at the same time,
- the successor of a process that ended or was killed continues its file: no counter goes back,
- the kernel frees the lock of a process that is killed.
"""

import fcntl
import itertools
import os
import struct
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from io import FileIO
from pathlib import Path

from prometheus_client import Metric as Family
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.utils import INF, floatToGoString

from celery_dynbeat.metrics.definitions import Kind, Metric

PREFIX = "dynbeat"
#: Bytes. The series of one metric and its labels fit into half of it.
_FIRST_SIZE = 65_536


class PoolCounts:
    """The counts of all processes that were forked after it was created, or that unpickled it.

    ``folder`` exists. ``name`` is part of the names of the files.
    """

    def __init__(self, folder: Path, *, name: str) -> None:
        self._folder, self._name = folder, f"{PREFIX}-{name}"
        self._files = _Files(pid=0)
        # A dropped file is closed, and a process of Celery's may have closed it: its number can
        # belong to another file. A child therefore keeps the files of its parent.
        self._inherited: list[_Files] = []

    def __reduce__(self) -> tuple[Callable[..., "PoolCounts"], tuple[Path]]:
        """Return the folder and the name. The new process opens its own files."""
        return partial(PoolCounts, name=self._name.removeprefix(f"{PREFIX}-")), (self._folder,)

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Add ``amount`` to a counter."""
        files = self._own_files()
        with files.lock:
            files.add(metric, labels, metric.name, amount)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add one value to a histogram."""
        files = self._own_files()
        with files.lock:
            files.add(metric, labels, f"{metric.name}_sum", value)
            files.add(metric, labels, f"{metric.name}_bucket", 1, _bound(metric, value))

    def _own_files(self) -> "_Files":
        if self._files.pid != os.getpid():
            # This is not the lock of the parent, which another thread may have held during the
            # fork.
            files = _Files(pid=os.getpid())
            try:
                files.open(self._folder, self._name)
            except OSError:
                # The disk is full. The next event tries again.
                files.close()
                raise
            self._inherited.append(self._files)
            self._files = files
        return self._files

    def collect(self) -> Iterable[Family]:
        """Return the sums of all processes."""
        paths = self._folder.glob(f"*_{self._name}-*.db")
        # A process that was killed while it created a file leaves an empty file.
        files = [str(path) for path in paths if path.stat().st_size]
        families: Iterable[Family] = MultiProcessCollector.merge(files)
        return families

    def close(self) -> None:
        """Close the files of this process. Nothing may be added any more."""
        if self._files.pid == os.getpid():
            self._files.close()


class _Files:
    """The files of process ``pid``."""

    def __init__(self, *, pid: int) -> None:
        self.pid, self.lock = pid, threading.Lock()
        self._lock_file: FileIO | None = None
        self._by_kind: dict[Kind, MmapedDict] = {}
        self._paths: dict[Kind, Path] = {}
        self._keys: dict[tuple[str, tuple[str, ...], str | None], str] = {}

    def open(self, folder: Path, name: str) -> None:
        for number in itertools.count():
            self._lock_file = _locked(folder / f"{name}-{number}.lock")
            if self._lock_file is not None:
                break
        for kind in (Kind.COUNTER, Kind.HISTOGRAM):
            path = folder / f"{kind}_{name}-{number}.db"
            _allocate(path)
            self._paths[kind], self._by_kind[kind] = path, MmapedDict(str(path))

    def close(self) -> None:
        with self.lock:
            for file in self._by_kind.values():
                file.close()
            if self._lock_file is not None:
                self._lock_file.close()

    def add(
        self,
        metric: Metric,
        labels: tuple[str, ...],
        series: str,
        amount: float,
        bound: str | None = None,
    ) -> None:
        key = self._key(metric, labels, series, bound)
        file = self._by_kind[metric.kind]
        value, _ = file.read_value(key)
        file.write_value(key, value + amount, 0.0)

    def _key(self, metric: Metric, labels: tuple[str, ...], series: str, bound: str | None) -> str:
        """Return the key of a series in its file. It is built once: that takes 10 µs."""
        identity = (series, labels, bound)
        if identity not in self._keys:
            _allocate(self._paths[metric.kind])
            self._keys[identity] = _new_key(metric, labels, series, bound)
            if bound is not None:
                # A bucket without a value must also exist.
                for each in _bounds(metric.buckets):
                    self._by_kind[metric.kind].read_value(_new_key(metric, labels, series, each))
        return self._keys[identity]


def _new_key(metric: Metric, labels: tuple[str, ...], series: str, bound: str | None) -> str:
    names = metric.labels if bound is None else (*metric.labels, "le")
    values = labels if bound is None else (*labels, bound)
    name = metric.name.removesuffix("_total")
    return mmap_key(name, series, list(names), list(values), metric.help)


def _bound(metric: Metric, value: float) -> str:
    """Return the upper bound of the bucket of a value."""
    number = bisect_left(metric.buckets, value)
    return _bounds(metric.buckets)[number]


@cache
def _bounds(buckets: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(map(floatToGoString, (*buckets, INF)))


def _allocate(path: Path) -> None:
    """Give a file the blocks for its next series. Raises OSError if the disk is full.

    MmapedDict makes a file longer without blocks. A write to such memory on a full disk would end
    the process with SIGBUS, and its task with it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        (used,) = struct.unpack("i", os.pread(descriptor, 4, 0)) if size else (0,)
        if not size or 2 * used > size:
            # MmapedDict also doubles the length.
            os.posix_fallocate(descriptor, 0, max(2 * size, _FIRST_SIZE))
    finally:
        os.close(descriptor)


def _locked(path: Path) -> FileIO | None:
    """Return the open file with the lock of this process, or None if another process has it."""
    file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb")
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    file.close()
    return None
