"""Render the figures as a Markdown page, with one table for each combination of services."""

from collections.abc import Sequence

from benchmarks.figures import Figure, format_number

HEAD = """# Benchmark results

`make bench` writes this page. [results.json](results.json) holds the same figures and the points of
the plots. Measuring one part replaces only the figures of that part.

- *Baseline*: the result of the same machine in the same run with only the unavoidable work.
- *Compared*: the ratio to the baseline, or the value itself if the bound is a time or a rate.
- *Must* and *aim*: the required bound and the target of *compared*.
- *Steal*: the share of processor time that the host of the virtual machine gave to its other
  guests during the measurement.
- Of the pages of Flower, this page lists only those that miss their bound.

[Measurements](../explanation/measurements.md) explains the figures.
"""
COLUMNS = """| what | value | baseline | compared | must | aim | steal | note |
|---|---|---|---|---|---|---|---|
"""


def render_page(figures: Sequence[Figure]) -> str:
    """Return the page as Markdown."""
    services = dict.fromkeys(figure.services for figure in figures)
    return HEAD + "".join(
        _section(on, [each for each in figures if each.services == on and _is_listed(each)])
        for on in services
    )


def _section(services: str, figures: Sequence[Figure]) -> str:
    machines = sorted({_measured_on(figure) for figure in figures if figure.day})
    head = f"\n## {services}\n\nMeasured on: {'; '.join(machines)}.\n\n"
    return head + COLUMNS + "".join(map(_row, figures))


def _is_listed(figure: Figure) -> bool:
    return figure.part != "flower" or figure.verdict == "missed"


def _measured_on(figure: Figure) -> str:
    size = "" if figure.scale == 1 else f", at {figure.scale:g} of the size"
    return f"{figure.day}, {figure.machine}{size}"


def _row(figure: Figure) -> str:
    compared = "" if figure.compared is None else f"{figure.compared:,.2f}"
    missed = " (missed)" if figure.verdict == "missed" else ""
    cells = (
        f"{figure.part}: {figure.what}",
        f"{format_number(figure.value)} {figure.unit}",
        ""
        if figure.baseline is None
        else f"{format_number(figure.baseline)} ({figure.baseline_name})",
        f"{compared}{missed}",
        _bound(figure.must),
        _bound(figure.aim),
        "" if figure.steal is None else f"{figure.steal:.0%}",
        figure.note,
    )
    return f"| {' | '.join(str(cell).strip() for cell in cells)} |\n"


def _bound(bound: object) -> str:
    return "" if bound is None else str(bound).replace(">=", "≥").replace("<=", "≤")
