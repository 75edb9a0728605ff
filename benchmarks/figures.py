"""The results of a benchmark: figures with their floors, and the points of its plots."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import psutil
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of a ratio: at least or at most ``value``."""

    kind: Literal["at least", "at most"]
    value: float

    def holds(self, ratio: float) -> bool:
        """Return whether ``ratio`` is within the bound."""
        return ratio >= self.value if self.kind == "at least" else ratio <= self.value

    def __str__(self) -> str:
        return f"{'>=' if self.kind == 'at least' else '<='} {self.value:g}"


def at_least(value: float) -> Bound:
    """Return the bound for a value that should be high."""
    return Bound("at least", value)


def at_most(value: float) -> Bound:
    """Return the bound for a value that should be low."""
    return Bound("at most", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement. The bounds apply to ``compared``; if it is None, there are none.

    If there is a ``floor``, ``compared`` is the ratio to it. The floor is measured in the same run
    on the same services. ``against`` describes it.
    """

    part: str
    what: str
    ours: float
    unit: str
    floor: float | None = None
    against: str = ""
    compared: float | None = None
    must: Bound | None = None
    aim: Bound | None = None
    services: str = ""
    note: str = ""
    #: The day and the machine of the measurement.
    day: str = ""
    machine: str = ""
    scale: float = 1
    #: The share of CPU time that the host gave to other guests while the part ran.
    stolen: float | None = None

    @property
    def verdict(self) -> str:
        """The bound that is reached: "aim", "must", or "missed"; "" if there is no bound."""
        if self.compared is None or self.must is None:
            return ""
        if not self.must.holds(self.compared):
            return "missed"
        return "aim" if self.aim is None or self.aim.holds(self.compared) else "must"


@dataclass(slots=True)
class Results:
    """Figures, and the series of points for the plots, by name.

    The name of a series is the name of its services, a slash, and its content.
    """

    figures: list[Figure] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the results in a file, or empty ones if there is no such file."""
        if not path.exists():
            return cls()
        content = json.loads(path.read_text())
        return cls([_figure(each) for each in content["figures"]], content["series"])

    def over(self, before: "Results", *, parts: Sequence[str]) -> "Results":
        """Return these results, and those of ``before`` that were not measured again.

        A part is always measured as a whole, on its services. ``parts`` are all parts, in order.
        """
        measured = {(figure.part, figure.services) for figure in self.figures}
        kept = [each for each in before.figures if (each.part, each.services) not in measured]
        figures = [*kept, *self.figures]
        services = list(dict.fromkeys(figure.services for figure in figures))
        order = [*parts, *(each.part for each in figures)]
        figures.sort(key=lambda each: (services.index(each.services), order.index(each.part)))
        return Results(figures, {**before.series, **self.series})

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        content = {
            "figures": [{**asdict(figure), "verdict": figure.verdict} for figure in self.figures]
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        # A series can have thousands of points: write each series on one line.
        lines = [f"  {json.dumps(name)}: {json.dumps(self.series[name])}" for name in self.series]
        series = ",\n".join(lines)
        head = json.dumps(content, indent=1).removesuffix("\n}")
        path.write_text(f'{head},\n "series": {{\n{series}\n }}\n}}\n')


def _figure(written: Mapping[str, Any]) -> Figure:
    given = {name: value for name, value in written.items() if name != "verdict"}
    bounds = {name: given[name] and Bound(**given[name]) for name in ("must", "aim")}
    return Figure(**{**given, **bounds})


class Stolen:
    """Measures the CPU time that the host gave to other guests: "steal" in proc_stat(5)."""

    def __init__(self) -> None:
        self._began = psutil.cpu_times()

    def share(self) -> float:
        """Return the share of all time, idle time included; 0 on bare metal."""
        pairs = zip(psutil.cpu_times(), self._began, strict=True)
        spent = dict(zip(self._began._fields, (now - then for now, then in pairs), strict=True))
        # "user" and "nice" include the time of guests of this machine.
        whole = sum(spent.values()) - spent.get("guest", 0.0) - spent.get("guest_nice", 0.0)
        return spent.get("steal", 0.0) / max(whole, 1e-9)


def machine() -> str:
    """Return a description of this machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def table(figures: Sequence[Figure], *, title: str) -> Table:
    """Return the figures as a table for a terminal."""
    made = Table(title=title)
    columns = ("part", "what", "ours", "floor", "compared", "must", "aim", "verdict", "on")
    for column in columns:
        made.add_column(column, justify="right" if column in {"ours", "floor"} else "left")
    for figure in figures:
        floor = "" if figure.floor is None else f"{shown(figure.floor)} ({figure.against})"
        made.add_row(
            figure.part,
            figure.what,
            f"{shown(figure.ours)} {figure.unit}",
            floor,
            "" if figure.compared is None else f"{figure.compared:.2f}",
            str(figure.must or ""),
            str(figure.aim or ""),
            figure.verdict,
            figure.services,
        )
    return made


def shown(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
