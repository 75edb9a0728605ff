"""Run the benchmarks. Each run also measures the floor: the same work without this project.

python -m benchmarks                      all parts but the half hour, on PostgreSQL and Redis
python -m benchmarks burst lag            these parts
python -m benchmarks --on mariadb-redis   on other services; "all": on each combination
python -m benchmarks --scale 0.01         a hundredth of the size: does it still run?
"""

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from benchmarks.bench import Bench, Part
from benchmarks.figures import Figure, Results, table
from benchmarks.page import page
from benchmarks.parts import EVERYWHERE, NAMES, chosen
from benchmarks.services import COMBINATIONS, Services

RESULTS = Path("docs/benchmarks")
TABLE_WIDTH = 180


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the given parts, print their table, and write the page, the JSON file and the plots."""
    options = _arguments(arguments)
    console = Console()
    if not console.is_terminal:
        # Do not wrap the table in a file.
        console.width = TABLE_WIDTH
    figures: list[Figure] = []
    failed: list[str] = []
    for database, broker in _combinations(options.on):
        with closing(Services(database, broker)) as services:
            for name, part in chosen(tuple(options.parts)).items():
                results = Results()
                bench = Bench(services, scale=options.scale, results=results, console=console)
                if not bench.is_reference and name not in EVERYWHERE:
                    continue
                console.rule(f"{name} on {services}")
                if _measure(part, bench, console):
                    _store(results, options.out)
                else:
                    failed.append(f"{name} on {services}")
                figures += results.figures
    console.print(table(figures, title="figures of one run, on one machine"))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _measure(part: Part, bench: Bench, console: Console) -> bool:
    """Return whether the part succeeded. The parts that follow run in any case."""
    try:
        part(bench)
    except Exception:  # noqa: BLE001 - of any type
        console.print_exception()
        return False
    return True


def _store(measured: Results, out: Path | None) -> None:
    """Replace the stored results of the measured parts. Other parts keep their results."""
    if out is None:
        return
    file = out / "results.json"
    results = measured.over(Results.read(file), parts=NAMES)
    results.write(file)
    (out / "README.md").write_text(page(results.figures))
    # Matplotlib takes a second to import, and a run without plots does not need it.
    from benchmarks.plots import draw  # noqa: PLC0415

    draw(results, out)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", choices=[[], *NAMES], metavar="part")
    parser.add_argument("--on", default="postgresql-redis")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path, help=f"for page, JSON and plots, such as {RESULTS}")
    return parser.parse_args(arguments)


def _combinations(on: str) -> Sequence[tuple[str, str]]:
    if on == "all":
        return COMBINATIONS
    by_name = {"-".join(pair): pair for pair in COMBINATIONS}
    if on not in by_name:
        raise SystemExit(f"--on {on}: choose one of {', '.join(by_name)}, or all")
    return [by_name[on]]


if __name__ == "__main__":
    main()
