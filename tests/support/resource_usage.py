"""Measure resources of processes repeatedly, and check that they do not grow."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much larger the median of the last quarter may be than that of the second quarter.

    The limit is ``before * (1 + relative) + absolute``.
    """

    relative: float
    absolute: float

    def allows(self, before: float, after: float) -> bool:
        """Return whether ``after`` is within the limit for ``before``."""
        return after <= before * (1 + self.relative) + self.absolute


class ResourceSeries:
    """The measurements of one resource. ``read`` may raise if the process has exited."""

    def __init__(self, name: str, read: Callable[[], float], tolerance: Tolerance) -> None:
        self.name = name
        self.values: list[float] = []
        self._read = read
        self._tolerance = tolerance

    def sample(self) -> None:
        """Measure once."""
        self.values.append(self._read())

    def quarter_medians(self) -> tuple[float, float]:
        """Return the medians of the second and of the last quarter."""
        quarter = len(self.values) // 4
        second, last = self.values[quarter : 2 * quarter], self.values[-quarter:]
        return statistics.median(second), statistics.median(last)

    def assert_flat(self) -> None:
        """Raise AssertionError if the resource has grown."""
        before, after = self.quarter_medians()
        assert self._tolerance.allows(before, after), f"{self} grew; all: {self.values}"

    def __str__(self) -> str:
        before, after = self.quarter_medians()
        return f"{self.name} {before:.0f}->{after:.0f}"


#: Python's allocator does not return all memory, and the first minute fills bounded caches.
MEMORY = Tolerance(relative=0.05, absolute=8)
#: Passes open and close connections, and faults close them.
HANDLES = Tolerance(relative=0, absolute=4)
CONNECTIONS = Tolerance(relative=0.1, absolute=6)


def process_series(pids: Mapping[str, int]) -> Sequence[ResourceSeries]:
    """Return series of memory (MiB) and of file descriptors for each named process."""
    series: list[ResourceSeries] = []
    for name, pid in pids.items():
        process = psutil.Process(pid)
        series += [
            ResourceSeries(f"{name} RSS", lambda of=process: of.memory_info().rss / 2**20, MEMORY),  # type: ignore[misc]
            ResourceSeries(f"{name} fds", lambda of=process: of.num_fds(), HANDLES),  # type: ignore[misc]
        ]
    return series
