"""Give a part of the benchmarks its services, sizes, progress bar and results."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from benchmarks.figures import Figure, Results, StealTime, describe_machine
from benchmarks.services import Services, Site

T = TypeVar("T")


class Bench:
    """The context of one part. The bounds apply at ``scale`` 1."""

    def __init__(
        self, services: Services, *, scale: float, results: Results, console: Console
    ) -> None:
        self.services = services
        self.scale = scale
        self.console = console
        self._results = results
        self._steal_time = StealTime()

    @property
    def is_reference(self) -> bool:
        """Whether the bounds apply to these services."""
        return str(self.services) == "postgresql-redis"

    def size(self, full: int, *, minimum: int = 1) -> int:
        """Return ``full`` times the scale of this run, at least ``minimum``."""
        return max(minimum, round(full * self.scale))

    @contextmanager
    def site(self) -> Iterator[Site]:
        """Yield a new database and an empty broker."""
        with self.services.site() as site:
            yield site

    def track(self, items: Iterable[T], title: str, *, total: float | None = None) -> Iterable[T]:
        """Return ``items`` and show a progress bar while they are consumed."""
        return track(items, description=title, total=total, console=self.console)

    def report(self, part: str, what: str, **fields: Any) -> None:
        """Add a figure to the results.

        Drop its bounds unless the services are the reference and the size is the full one.
        """
        bounds = {"must", "aim"}
        if not self.is_reference or self.scale < 1:
            fields = {key: value for key, value in fields.items() if key not in bounds}
        measured: dict[str, Any] = {
            "day": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": describe_machine(),
            "scale": self.scale,
            "steal": self._steal_time.share(),
        }
        context = {"services": str(self.services), **measured}
        self._results.figures.append(Figure(part=part, what=what, **context, **fields))

    def series(self, name: str, points: Any) -> None:
        """Store the points of a plot; they must be JSON values."""
        self._results.series[f"{self.services}/{name}"] = points


Part = Callable[[Bench], None]
