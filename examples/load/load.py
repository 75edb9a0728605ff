"""Run the schedules of many users, and print throughput, lag, backlog and statuses.

    python examples/load/load.py                                (SQLite, 500 users, no servers)
    DYNBEAT_DEMO_DATABASE_URL=postgresql+psycopg://... DYNBEAT_DEMO_BROKER_URL=redis://... \
        python examples/load/load.py --users 10000 --seconds 60 --beats 2 --workers 1

Each user has five schedules. All schedules and runs are deleted at the end.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from celery_dynbeat import Cron, Dynbeat, Every, Once
from celery_dynbeat.api import NewSchedule

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from figures import OWNER_PREFIX, Figures, erase  # noqa: E402
from programs import Program, ProgramError, exit_on_sigterm  # noqa: E402

ZONES = ("UTC", "Asia/Seoul", "Europe/Berlin", "America/New_York", "America/Sao_Paulo")
PER_USER = 5
CREATE_BATCH_SIZE = 2_500
#: Stop waiting for the workers when no run has ended for this many seconds.
STALL_TIMEOUT = 30.0


def schedules_of(number: int, *, base: datetime, seconds: int) -> Iterator[NewSchedule]:
    """Yield the five schedules of one user. None of them fires before ``base``."""
    # Multiples of primes distribute the users evenly and reproducibly.
    offset = number * 7919 % (seconds * 1000) / 1000
    zone, minute = ZONES[number % len(ZONES)], number * 31 % 60
    triggers = {
        "weekdays-at-9": Cron("0 9 * * mon-fri", timezone=zone),
        "hourly": Cron(f"{minute} * * * *", timezone=zone),
        "quarter-hourly": Cron(f"{minute % 15}/15 * * * *", timezone=zone),
        "every-2-minutes": Every(
            timedelta(minutes=2), anchor=base + timedelta(seconds=number * 104_729 % 120_000 / 1000)
        ),
        "once": Once(base + timedelta(seconds=offset)),
    }
    owner = f"{OWNER_PREFIX}{number}"
    for name, trigger in triggers.items():
        yield {
            "owner": owner,
            "name": name,
            "task": "tasks.touch",
            "args": [owner],
            "trigger": trigger,
            "start_at": base,
        }


def create(dynbeat: Dynbeat, bar: Progress, options: argparse.Namespace, base: datetime) -> None:
    """Create the schedules of all users, ``CREATE_BATCH_SIZE`` in each call."""
    schedules = (
        schedule
        for number in range(options.users)
        for schedule in schedules_of(number, base=base, seconds=options.seconds)
    )
    task = bar.add_task("creating", total=options.users * PER_USER, figures="")
    while batch := list(islice(schedules, CREATE_BATCH_SIZE)):
        bar.advance(task, len(dynbeat.schedules.create_many(batch)))


def start(stack: ExitStack, options: argparse.Namespace, logs: Path) -> Sequence[Program]:
    """Start workers and beats, and return the beats when all are ready."""
    program = partial(Program, folder=HERE, logs=logs)
    quick = ("-l", "WARNING", "--without-gossip", "--without-mingle", "-c", str(options.processes))
    workers = [
        program(f"worker-{n}", "worker", "-n", f"load-{n}@%h", *quick)
        for n in range(options.workers)
    ]
    stop_together(stack, workers)
    beats = [program(f"beat-{n}", "beat", "-l", "INFO", "--pidfile=") for n in range(options.beats)]
    stop_together(stack, beats)
    for beat in beats:
        beat.wait_for("beat started")
    return beats


def stop_together(stack: ExitStack, programs: Sequence[Program]) -> None:
    """Stop the programs at the end: terminate all of them, then wait for each."""
    for program in programs:
        stack.callback(program.stop)
    for program in programs:
        stack.callback(program.terminate)


def watch(bar: Progress, figures: Figures, *, base: datetime, seconds: int) -> None:
    """Show the figures once a second for ``seconds``."""
    task = bar.add_task("running", total=seconds, figures="")
    elapsed = 0.0
    while elapsed < seconds:
        time.sleep(1)
        elapsed = max((datetime.now(UTC) - base).total_seconds(), 0)
        figures.read()
        line = format_figures(figures, elapsed)
        bar.update(task, completed=min(elapsed, seconds), figures=line)
        if bar.disable and elapsed and int(elapsed) % 10 == 0:
            bar.console.print(f"{elapsed:4.0f} s  {line}", soft_wrap=True)


def format_figures(figures: Figures, elapsed: float) -> str:
    """Return the figures as one line."""
    statuses = "  ".join(f"{status} {count}" for status, count in sorted(figures.statuses.items()))
    rate = figures.dispatched / elapsed if elapsed else 0
    return (
        f"{rate:.0f}/s  lag p50 {figures.lag(0.5):.0f} p99 {figures.lag(0.99):.0f} ms"
        f"  due {figures.due}  {statuses}"
    )


def finish(bar: Progress, figures: Figures) -> float:
    """Wait for the sent runs to end, and return the seconds that this took."""
    began = progressed = time.monotonic()
    task = bar.add_task("finishing", total=figures.dispatched, figures="")
    figures.read()
    while figures.unfinished and time.monotonic() - progressed < STALL_TIMEOUT:
        left = figures.unfinished
        bar.update(task, completed=figures.succeeded, total=figures.dispatched)
        time.sleep(0.5)
        figures.read()
        if figures.unfinished < left:
            progressed = time.monotonic()
    seconds = time.monotonic() - began
    # ``Figures.read`` leaves out the last second.
    time.sleep(1.1)
    figures.read()
    bar.update(task, completed=figures.succeeded, total=figures.dispatched)
    return seconds


def summary(
    options: argparse.Namespace, figures: Figures, *, created: float, tail: float, backlog: int
) -> Table:
    """Return the table of results."""
    table = Table("what", "result", title="Summary")
    schedules = options.users * PER_USER
    table.add_row("schedules", f"{schedules} ({schedules / created:.0f} created a second)")
    table.add_row(
        "beats, workers x processes", f"{options.beats}, {options.workers} x {options.processes}"
    )
    table.add_row("runs dispatched", str(figures.dispatched))
    table.add_row("runs a second", f"{figures.dispatched / options.seconds:.0f}")
    for name, quantile in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        table.add_row(f"lag {name}", f"{figures.lag(quantile):.0f} ms")
    table.add_row("due and not yet dispatched at the end", str(backlog))
    table.add_row("seconds until the workers were done", f"{tail:.1f}")
    for status, count in sorted(figures.statuses.items()):
        table.add_row(f"runs {status}", str(count))
    return table


def perform(console: Console, stack: ExitStack, options: argparse.Namespace) -> int:
    """Create the schedules, run them, wait for the runs, print the summary, clean up."""
    logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynbeat-load-")))
    os.environ.setdefault("DYNBEAT_DEMO_DATABASE_URL", f"sqlite:///{logs}/schedules.sqlite3")
    os.environ.setdefault("DYNBEAT_DEMO_BROKER_URL", f"sqla+sqlite:///{logs}/broker.sqlite3")
    from tasks import app, dynbeat  # noqa: PLC0415 - it reads the environment

    Program("schema", "dynbeat", "schema", "upgrade", folder=HERE, logs=logs).wait()
    stack.callback(dynbeat.context.database.dispose)
    erase(dynbeat)
    stack.callback(erase, dynbeat)
    # This also creates the tables of the SQLite broker. Two processes must not do that at once.
    app.control.purge()
    stack.callback(app.control.purge)
    base = datetime.now(UTC) + timedelta(seconds=options.lead or 10 + options.users / 200)
    with progress(console) as bar:
        began = time.monotonic()
        create(dynbeat, bar, options, base)
        created = time.monotonic() - began
        beats = start(stack, options, logs)
        figures = Figures(dynbeat, since=base)
        watch(bar, figures, base=base, seconds=options.seconds)
        backlog = figures.due
        for beat in beats:
            beat.terminate()
        for beat in beats:
            beat.stop()
        tail = finish(bar, figures)
    console.print(summary(options, figures, created=created, tail=tail, backlog=backlog))
    return 1 if figures.unfinished or not figures.succeeded else 0


def progress(console: Console) -> Progress:
    """Return the progress bars, each with a line of figures."""
    columns = (TextColumn("{task.description:<9}"), BarColumn(), TimeRemainingColumn())
    return Progress(
        *columns,
        TextColumn("{task.fields[figures]}"),
        console=console,
        disable=not console.is_terminal,
    )


def parse() -> argparse.Namespace:
    """Return the options. The default number of users is larger with a server."""
    on_server = "DYNBEAT_DEMO_DATABASE_URL" in os.environ
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--users", type=int, default=10_000 if on_server else 500)
    parser.add_argument("--seconds", type=int, default=60, help="duration of the run")
    parser.add_argument("--beats", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="pool processes of each worker")
    parser.add_argument("--lead", type=float, help="seconds from the start to the first fire time")
    return parser.parse_args()


def main() -> int:
    """Execute the load run and return the exit status."""
    exit_on_sigterm()
    options, console = parse(), Console(highlight=False)
    try:
        with ExitStack() as stack:
            return perform(console, stack, options)
    except ProgramError as error:
        console.print(str(error), style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; all schedules and runs are deleted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
