"""Print the events of the demo, with a live table of the schedules below them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from statistics import median_low
from typing import Any
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from celery_dynbeat import FireTime, RunInfo, ScheduleInfo

COLOURS = {"succeeded": "green", "failed": "red", "revoked": "yellow", "skipped": "yellow"}
PLAIN_WIDTH = 130


class Screen:
    """Print colours and a live table to a terminal, and plain lines to other outputs."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = PLAIN_WIDTH
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    @property
    def is_live(self) -> bool:
        """Whether the live table is shown."""
        return self._live.is_started

    def live(self) -> AbstractContextManager[Any]:
        """Return a context that shows the live table below the lines."""
        return self._live if self._console.is_terminal else nullcontext()

    def print_step(self, text: str) -> None:
        """Print a step of the demo."""
        self._console.print(Text(f"* {text}", style="bold cyan"))

    def print_error(self, text: str) -> None:
        """Print the error ``text``."""
        self._console.print(Text(text, style="bold red"))

    def show_run(self, run: RunInfo) -> None:
        """Print one run of the history."""
        self._console.print(
            Text.assemble(
                f"  {run.fire_at:%H:%M:%S}  {run.owner + '/' + run.name:<24}",
                (f"{run.status:<10}", COLOURS.get(run.status, "")),
                f"lag {_milliseconds(run.lag)}  {run.worker or '-'}",
                (f"  {run.error.splitlines()[0]}" if run.error else "", "red"),
                ("  (run_now)" if run.origin == "manual" else "", "cyan"),
            ),
            soft_wrap=True,
        )

    def show_schedules(self, upcoming: Sequence[tuple[ScheduleInfo, Sequence[FireTime]]]) -> None:
        """Show the next fire times of each schedule: in the live table, or printed once."""
        table = Table("owner", "schedule", "trigger", "next fire times, in its own zone")
        for schedule, fire_times in upcoming:
            trigger = schedule.trigger.describe() if schedule.trigger else "?"
            table.add_row(schedule.owner, schedule.name, trigger, _when(schedule, fire_times))
        if self.is_live:
            self._live.update(table, refresh=True)
        else:
            self._console.print(table)

    def show_summary(self, runs: Sequence[RunInfo], checks: Mapping[str, bool]) -> None:
        """Print the number of runs by status, the median lag, and the checks."""
        table = Table("what", "result", title="Summary")
        for status, count in sorted(Counter(run.status for run in runs).items()):
            table.add_row(f"runs {status}", Text(str(count), style=COLOURS.get(status, "")))
        table.add_row("median lag (sent - scheduled for)", _milliseconds(_median_lag(runs)))
        for check, holds in checks.items():
            result = Text("yes", style="green") if holds else Text("NO", style="bold red")
            table.add_row(check, result)
        self._console.print(table)


def _when(schedule: ScheduleInfo, fire_times: Sequence[FireTime]) -> str:
    if not schedule.enabled:
        return f"paused: {schedule.paused_reason}"
    if not fire_times:
        return "finished"
    zone = ZoneInfo(schedule.timezone)
    return ", ".join(f"{each.fire_at.astimezone(zone):%a %H:%M:%S}" for each in fire_times)


def _median_lag(runs: Iterable[RunInfo]) -> timedelta | None:
    lags = [run.lag for run in runs if run.lag is not None]
    return median_low(lags) if lags else None


def _milliseconds(lag: timedelta | None) -> str:
    return "      -" if lag is None else f"{lag / timedelta(milliseconds=1):4.0f} ms"
