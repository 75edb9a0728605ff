"""Results of the benchmarks: figures with their baselines, and the points of the plots."""

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
    """A limit of a ratio: at least or at most ``value``."""

    kind: Literal["at least", "at most"]
    value: float

    def holds(self, ratio: float) -> bool:
        """Return whether ``ratio`` is within the limit."""
        return ratio >= self.value if self.kind == "at least" else ratio <= self.value

    def __str__(self) -> str:
        return f"{'>=' if self.kind == 'at least' else '<='} {self.value:g}"


def at_least(value: float) -> Bound:
    """Return a lower bound."""
    return Bound("at least", value)


def at_most(value: float) -> Bound:
    """Return an upper bound."""
    return Bound("at most", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement. ``compared`` is checked against the bounds; None: nothing is checked.

    With a ``baseline``, ``compared`` is usually the ratio to it. The baseline is measured in the
    same run on the same services; ``baseline_name`` says what it measures.
    """

    part: str
    what: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str = ""
    compared: float | None = None
    must: Bound | None = None
    aim: Bound | None = None
    services: str = ""
    note: str = ""
    #: The day and the machine of the measurement.
    day: str = ""
    machine: str = ""
    scale: float = 1
    #: The share of processor time that the host gave to other guests while the part ran.
    steal: float | None = None

    @property
    def verdict(self) -> str:
        """The best bound reached: "aim" or "must"; "missed" if none, "" without bounds."""
        if self.compared is None or self.must is None:
            return ""
        if not self.must.holds(self.compared):
            return "missed"
        return "aim" if self.aim is None or self.aim.holds(self.compared) else "must"


@dataclass(slots=True)
class Results:
    """Figures, and the series of points that the plots show.

    The key of a series is ``<services>/<name>``.
    """

    figures: list[Figure] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the results of a JSON file; empty results if the file does not exist."""
        if not path.exists():
            return cls()
        content = json.loads(path.read_text())
        return cls([_figure(each) for each in content["figures"]], content["series"])

    def merged_into(self, before: "Results", *, parts: Sequence[str]) -> "Results":
        """Return ``before`` with these results in place of older ones.

        These results replace all older figures of the same part and services. ``parts`` gives the
        order of the figures.
        """
        measured = {(figure.part, figure.services) for figure in self.figures}
        kept = [each for each in before.figures if (each.part, each.services) not in measured]
        figures = [*kept, *self.figures]
        services = list(dict.fromkeys(figure.services for figure in figures))
        order = [*parts, *(each.part for each in figures)]
        figures.sort(key=lambda each: (services.index(each.services), order.index(each.part)))
        return Results(figures, {**before.series, **self.series})

    def write(self, path: Path) -> None:
        """Write the results as JSON."""
        content = {
            "figures": [{**asdict(figure), "verdict": figure.verdict} for figure in self.figures]
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        # One line for each series, because some have thousands of points.
        lines = [f"  {json.dumps(name)}: {json.dumps(self.series[name])}" for name in self.series]
        series = ",\n".join(lines)
        head = json.dumps(content, indent=1).removesuffix("\n}")
        path.write_text(f'{head},\n "series": {{\n{series}\n }}\n}}\n')


def _figure(written: Mapping[str, Any]) -> Figure:
    given = {name: value for name, value in written.items() if name != "verdict"}
    bounds = {name: given[name] and Bound(**given[name]) for name in ("must", "aim")}
    return Figure(**{**given, **bounds})


class StealTime:
    """Measures steal time since its creation. Source: "steal" in proc_stat(5)."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def share(self) -> float:
        """Return steal time as a share of all time, idle time included; 0 on bare metal."""
        pairs = zip(psutil.cpu_times(), self._before, strict=True)
        spent = dict(
            zip(self._before._fields, (after - before for after, before in pairs), strict=True)
        )
        # "user" and "nice" already include the time of this machine's own guests.
        total = sum(spent.values()) - spent.get("guest", 0.0) - spent.get("guest_nice", 0.0)
        return spent.get("steal", 0.0) / max(total, 1e-9)


def describe_machine() -> str:
    """Return the cores, the architecture and the Python version of this machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def results_table(figures: Sequence[Figure], *, title: str) -> Table:
    """Return the figures as a table for a terminal."""
    rows = Table(title=title)
    columns = (
        "part",
        "what",
        "value",
        "baseline",
        "compared",
        "must",
        "aim",
        "verdict",
        "services",
    )
    for column in columns:
        rows.add_column(column, justify="right" if column in {"value", "baseline"} else "left")
    for figure in figures:
        baseline = (
            ""
            if figure.baseline is None
            else f"{format_number(figure.baseline)} ({figure.baseline_name})"
        )
        rows.add_row(
            figure.part,
            figure.what,
            f"{format_number(figure.value)} {figure.unit}",
            baseline,
            "" if figure.compared is None else f"{figure.compared:.2f}",
            str(figure.must or ""),
            str(figure.aim or ""),
            figure.verdict,
            figure.services,
        )
    return rows


def format_number(value: float) -> str:
    """Return ``value`` as text with three significant digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
