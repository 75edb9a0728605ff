"""Check Prometheus files with promtool, and find out which alerts fire for given series."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import yaml

from tests.support.servers.machine import find_program

#: Each sample of a series, None where it is missing.
Samples = Sequence[float | None]


class PromtoolError(AssertionError):
    """promtool refused a file; the message is what it printed."""


def promtool(*arguments: str | Path, folder: Path) -> str:
    """Return what promtool prints. Raises PromtoolError if it exits with an error."""
    program = find_program("promtool", package="prometheus")
    ended = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    if ended.returncode:
        raise PromtoolError(f"{ended.stdout}\n{ended.stderr}")
    return ended.stdout


def check_firing(
    rules: Path,
    series: Mapping[str, Samples],
    expected: Mapping[timedelta, Iterable[str]],
    *,
    interval: timedelta,
    folder: Path,
) -> None:
    """Raise PromtoolError unless exactly the ``expected`` alerts fire at each time.

    ``series`` has the samples of each series, one for each ``interval`` from time 0 on.
    """
    tests = [
        {
            "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": _duration(at),
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(set(names))
            ],
        }
        for at, names in expected.items()
    ]
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": _duration(interval),
        "tests": [
            {
                "interval": _duration(interval),
                "input_series": [
                    {"series": name, "values": " ".join(map(_sample, samples))}
                    for name, samples in series.items()
                ],
                "promql_expr_test": tests,
            }
        ],
    }
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(document, width=10_000_000))
    promtool("test", "rules", file.name, folder=folder)


def _duration(duration: timedelta) -> str:
    return f"{round(duration.total_seconds() * 1000)}ms"


def _sample(value: float | None) -> str:
    # The mark that Prometheus itself sets: a series without it keeps its value for five minutes.
    return "stale" if value is None else f"{value:.12g}"
