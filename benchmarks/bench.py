"""The interface of a benchmark part: services, sizes, a progress bar, and reporting."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from benchmarks.figures import Figure, Results, Stolen, machine
from benchmarks.services import Services, Site

T = TypeVar("T")


class Bench:
    """The run as one part sees it. The bounds apply to ``scale`` 1."""

    def __init__(
        self, services: Services, *, scale: float, results: Results, console: Console
    ) -> None:
        self.services = services
        self.scale = scale
        self.console = console
        self._results = results
        self._stolen = Stolen()

    @property
    def is_reference(self) -> bool:
        """Whether the bounds apply to these services."""
        return str(self.services) == "postgresql-redis"

    def size(self, full: int, *, least: int = 1) -> int:
        """Return a size or a number of seconds at the scale of this run."""
        return max(least, round(full * self.scale))

    @contextmanager
    def site(self) -> Iterator[Site]:
        """Yield a new database and an empty broker."""
        with self.services.site() as site:
            yield site

    def track(self, items: Iterable[T], title: str, *, total: float | None = None) -> Iterable[T]:
        """Return ``items``, with a progress bar."""
        return track(items, description=title, total=total, console=self.console)

    def report(self, part: str, what: str, **fields: Any) -> None:
        """Report a figure. Its bounds apply on the reference services only."""
        bounds = {"must", "aim"}
        if not self.is_reference:
            fields = {key: value for key, value in fields.items() if key not in bounds}
        measured = {
            "day": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": machine(),
            "scale": self.scale,
            "stolen": self._stolen.share(),
        }
        on = {"services": str(self.services), **measured}
        self._results.figures.append(Figure(part=part, what=what, **on, **fields))

    def series(self, name: str, points: Any) -> None:
        """Store points for a plot. They must be JSON values."""
        self._results.series[f"{self.services}/{name}"] = points


Part = Callable[[Bench], None]
