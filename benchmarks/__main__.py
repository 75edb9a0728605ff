"""Measure this project and, in the same run, its baselines.

python -m benchmarks                      all parts except long_run, on PostgreSQL and Redis
python -m benchmarks burst lag            only these parts
python -m benchmarks --on mariadb-redis   on other services; "all": on every combination
python -m benchmarks --no-fsync           on database servers that do not wait for the disk
python -m benchmarks --scale 0.01         a hundredth of the size, to test that it runs
"""

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from benchmarks.bench import Bench, Part
from benchmarks.figures import Figure, Results, results_table
from benchmarks.parts import NAMES, ON_ALL_SERVICES, select_parts
from benchmarks.services import COMBINATIONS, Services

RESULTS = Path("docs/benchmarks")
TABLE_WIDTH = 180


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the selected parts and print their figures; with ``--out`` write JSON and plots."""
    options = _arguments(arguments)
    console = Console()
    if not console.is_terminal:
        # Rich wraps the table at 80 columns when the output is a file.
        console.width = TABLE_WIDTH
    figures: list[Figure] = []
    failed: list[str] = []
    for database, broker in _combinations(options.on):
        with closing(Services(database, broker, durable=not options.no_fsync)) as services:
            for name, part in select_parts(tuple(options.parts)).items():
                results = Results()
                bench = Bench(services, scale=options.scale, results=results, console=console)
                if not bench.is_reference and name not in ON_ALL_SERVICES:
                    continue
                console.rule(f"{name} on {services}")
                if _run_part(part, bench, console):
                    _write_results(results, options.out)
                else:
                    failed.append(f"{name} on {services}")
                figures += results.figures
    console.print(results_table(figures, title="figures of one run, on one machine"))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _run_part(part: Part, bench: Bench, console: Console) -> bool:
    """Run ``part`` and return whether it succeeded.

    An error is printed and not raised, so that the other parts still run.
    """
    try:
        part(bench)
    except Exception:  # noqa: BLE001 - a part may raise any error
        console.print_exception()
        return False
    return True


def _write_results(measured: Results, out: Path | None) -> None:
    """Merge the results into those in ``out`` and write them; None: write nothing."""
    if out is None:
        return
    file = out / "results.json"
    results = measured.merged_into(Results.read(file), parts=NAMES)
    results.write(file)
    # Matplotlib takes a second to import, and only this extra needs it.
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
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument(
        "--out", type=Path, help=f"folder for page, JSON and plots, such as {RESULTS}"
    )
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
