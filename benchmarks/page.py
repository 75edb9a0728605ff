"""The figures as a page: a table in Markdown for each combination of services."""

from collections.abc import Sequence

from benchmarks.figures import Figure, shown

HEAD = """# What was measured last

Written by `make bench`; [results.json](results.json) holds the same with the points of the plots.
A part that is measured alone replaces its own figures and no others. *Compared* is what the bounds
are about: the ratio to the floor of the same run, or the figure itself where the bound is a time or
a rate. *Others took* is the share of the processors' time that the host of a virtual machine gave
to its other guests meanwhile. What the figures mean:
[cost and scale](../explanation/cost-and-scale.md).
"""
COLUMNS = """| what | ours | floor | compared | must | aim | others took | note |
|---|---|---|---|---|---|---|---|
"""


def page(figures: Sequence[Figure]) -> str:
    """Return the page."""
    services = dict.fromkeys(figure.services for figure in figures)
    return HEAD + "".join(
        _section(on, [figure for figure in figures if figure.services == on]) for on in services
    )


def _section(services: str, figures: Sequence[Figure]) -> str:
    machines = sorted({_measured(figure) for figure in figures if figure.day})
    head = f"\n## {services}\n\nMeasured on: {'; '.join(machines)}.\n\n"
    return head + COLUMNS + "".join(map(_row, figures))


def _measured(figure: Figure) -> str:
    size = "" if figure.scale == 1 else f", at {figure.scale:g} of the size"
    return f"{figure.day}, {figure.machine}{size}"


def _row(figure: Figure) -> str:
    compared = "" if figure.compared is None else f"{figure.compared:,.2f}"
    missed = " (missed)" if figure.verdict == "missed" else ""
    cells = (
        f"{figure.part}: {figure.what}",
        f"{shown(figure.ours)} {figure.unit}",
        "" if figure.floor is None else f"{shown(figure.floor)} ({figure.against})",
        f"{compared}{missed}",
        _bound(figure.must),
        _bound(figure.aim),
        "" if figure.stolen is None else f"{figure.stolen:.0%}",
        figure.note,
    )
    return f"| {' | '.join(str(cell).strip() for cell in cells)} |\n"


def _bound(bound: object) -> str:
    return "" if bound is None else str(bound).replace(">=", "≥").replace("<=", "≤")
