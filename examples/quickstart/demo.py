"""Show schedules of three users with a real beat and a real worker, in at most half a minute.

    python examples/quickstart/demo.py

It needs no server. DYNBEAT_DEMO_DATABASE_URL and DYNBEAT_DEMO_BROKER_URL select other servers.
The exit status is 0 if all checks of the summary pass.
"""

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from screen import Screen

from celery_dynbeat import Cron, Every, Once, RunInfo

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from programs import Program, ProgramError, exit_on_sigterm  # noqa: E402

if TYPE_CHECKING:
    from celery_dynbeat import Dynbeat

MINA, OMAR, LENA = OWNERS = "demo:mina", "demo:omar", "demo:lena"
ENDED = {"succeeded", "failed", "revoked", "expired", "lost", "skipped"}
#: Not at a fire time: a beat that is stopped while it sends leaves the run to another beat.
STEPS_SECONDS = 14.5
LAST_RUNS_TIMEOUT = 5.0


class Demo:
    """Three users create, change, cancel and pause schedules."""

    def __init__(self, dynbeat: "Dynbeat", screen: Screen) -> None:
        self.screen = screen
        self.all = dynbeat.schedules
        self.mina, self.omar, self.lena = map(self.all.for_owner, OWNERS)
        self.started_at = datetime.now(UTC)
        self.changed_at = self.paused_at = self.started_at
        self._shown: set[str] = set()

    def clear(self) -> None:
        """Delete the schedules of the three users, including schedules of an earlier demo."""
        for owner in OWNERS:
            self.all.delete_owner(owner)

    def create(self) -> None:
        """Create the seven schedules. The sixth field of a cron expression is the seconds."""
        digest, remind = "tasks.send_digest", "tasks.remind"
        mina, omar = {"user": MINA}, {"user": OMAR}
        seconds = timedelta(seconds=1)
        clock = Cron("* * * * * */5", timezone="Asia/Seoul")
        at_9 = Cron("0 9 * * mon-fri", timezone="Asia/Seoul")
        self.mina.create("pulse", task=digest, kwargs=mina, trigger=Every(3 * seconds))
        self.mina.create("seoul-clock", task=digest, kwargs=mina, trigger=clock)
        welcome, cool_down = Once.after(4 * seconds), Once.after(10 * seconds)
        self.omar.create("welcome", task=remind, args=[OMAR, "Welcome!"], trigger=welcome)
        self.omar.create("cool-down", task=remind, args=[OMAR, "Cold?"], trigger=cool_down)
        self.omar.create("weekdays-at-9", task=digest, kwargs=omar, trigger=at_9)
        self.lena.create("report", task=digest, args=[LENA], trigger=Every(2 * seconds))
        url = "https://feed.example"
        self.lena.create("feed", task="tasks.fetch_feed", args=[url], trigger=Every(4 * seconds))

    def shorten_interval(self) -> str:
        """Change an interval while beat runs. It is in force when the transaction commits."""
        self.mina.update("pulse", trigger=Every(timedelta(seconds=1)))
        self.changed_at = datetime.now(UTC)
        return "mina changes her pulse from every three seconds to every second"

    def cancel(self) -> str:
        """Delete a one-off before its fire time."""
        self.omar.delete("cool-down")
        return "omar deletes the cool-down, four seconds before its fire time"

    def run_now(self) -> str:
        """Create a manual run. The fire times of the schedule do not change."""
        self.omar.run_now("weekdays-at-9")
        return "omar runs weekdays-at-9 now: run_now"

    def pause(self) -> str:
        """Pause a schedule. Its unstarted runs are revoked."""
        self.lena.pause("report", reason="on holiday")
        self.paused_at = datetime.now(UTC)
        return "lena pauses her report"

    def run_steps(self) -> None:
        """Execute the steps at their times, and print each run when it ends."""
        steps: list[tuple[float, Callable[[], str]]] = [
            (5, self.shorten_interval),
            (6, self.cancel),
            (7, self.run_now),
            (9, self.pause),
        ]
        began = time.monotonic()
        with self.screen.live():
            for seconds, step in steps:
                self._watch_until(began + seconds)
                self.screen.print_step(step())
            self._watch_until(began + STEPS_SECONDS)

    def _watch_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self.screen.is_live:
                self.show_schedules()
            self.show_runs()
            time.sleep(0.25)

    def show_schedules(self) -> None:
        """Show each schedule with its next three fire times."""
        shown = [
            (schedule, mine.upcoming(schedule.name, count=3))
            for mine in map(self.all.for_owner, OWNERS)
            for schedule in mine.list()
        ]
        self.screen.show_schedules(shown)

    def runs(self) -> Sequence[RunInfo]:
        """Return the runs of this demo, oldest fire time first."""
        owners = (self.mina, self.omar, self.lena)
        runs = [run for mine in owners for run in mine.runs(since=self.started_at, limit=500)]
        return sorted(runs, key=lambda run: run.fire_at)

    def show_runs(self) -> None:
        """Print the runs that ended since the last call."""
        for run in self.runs():
            if run.status in ENDED and run.id not in self._shown:
                self._shown.add(run.id)
                self.screen.show_run(run)

    def wait_for_last_runs(self) -> None:
        """Wait until the worker has finished the runs that beat sent before it stopped."""
        deadline = time.monotonic() + LAST_RUNS_TIMEOUT
        while time.monotonic() < deadline and self.unfinished():
            time.sleep(0.25)
        self.show_runs()

    def unfinished(self) -> Sequence[RunInfo]:
        """Return the runs that have not ended."""
        return [run for run in self.runs() if run.status not in ENDED]

    def checks(self) -> dict[str, bool]:
        """Return each expected result, and whether it holds."""
        by_name: defaultdict[str, list[RunInfo]] = defaultdict(list)
        for run in self.runs():
            by_name[run.name].append(run)
        quick = [run for run in by_name["pulse"] if run.fire_at > self.changed_at]
        late = [run for run in by_name["report"] if run.fire_at > self.paused_at]
        ticks = [run.fire_at.second % 5 for run in by_name["seoul-clock"]]
        return {
            "the new interval took effect at once": len(quick) >= STEPS_SECONDS - 7,
            "seoul-clock ran every five seconds": ticks in ([0, 0], [0, 0, 0]),
            "the one-off ran once": _statuses(by_name["welcome"]) == ["succeeded"],
            "the cancelled one-off never ran": not any(
                run.started_at for run in by_name["cool-down"]
            ),
            "the paused report did not run": bool(by_name["report"]) and not late,
            "run_now ran at once": _statuses(by_name["weekdays-at-9"]) == ["succeeded"],
            "the error is in the history": "failed" in _statuses(by_name["feed"]),
            "unfinished runs: 0": not self.unfinished(),
        }


def _statuses(runs: Sequence[RunInfo]) -> list[str]:
    return [run.status for run in runs]


def main() -> int:
    """Run the demo and return the exit status."""
    exit_on_sigterm()
    screen = Screen()
    try:
        with ExitStack() as stack:
            return perform(screen, stack)
    except ProgramError as error:
        screen.print_error(str(error))
        return 1
    except KeyboardInterrupt:
        screen.print_step("stopped; all demo schedules are deleted")
        return 130


def perform(screen: Screen, stack: ExitStack) -> int:
    """Start beat and worker, execute the steps, stop both, and print the results."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynbeat-demo-")))
    os.environ.setdefault("DYNBEAT_DEMO_DATABASE_URL", f"sqlite:///{folder}/schedules.sqlite3")
    os.environ.setdefault("DYNBEAT_DEMO_BROKER_URL", f"sqla+sqlite:///{folder}/broker.sqlite3")
    from tasks import dynbeat  # noqa: PLC0415 - it reads the environment

    screen.print_step("creating the tables, starting a worker and a beat")
    Program("schema", "dynbeat", "schema", "upgrade", folder=HERE, logs=folder).wait()
    stack.callback(dynbeat.context.database.dispose)
    demo = Demo(dynbeat, screen)
    demo.clear()
    stack.callback(demo.clear)
    worker, beat = start(stack, folder)
    demo.create()
    screen.print_step("three users created seven schedules")
    demo.show_schedules()
    demo.run_steps()
    screen.print_step("stopping beat; the worker finishes the sent runs")
    beat.stop()
    demo.wait_for_last_runs()
    checks = demo.checks()
    screen.show_summary(demo.runs(), checks)
    if all(checks.values()):
        screen.print_step("`make demo-ui` shows such schedules in a browser, in Flower")
        return 0
    screen.print_error("\n".join(program.tail() for program in (beat, worker)))
    return 1


def start(stack: ExitStack, logs: Path) -> tuple[Program, Program]:
    """Start a worker and a beat, and return both when they are ready."""
    quick = ("--without-gossip", "--without-mingle")
    # Threads, because a prefork pool takes some seconds to stop with a broker that polls.
    worker = Program(
        "worker",
        "worker",
        "-P",
        "threads",
        "-c",
        "2",
        "-n",
        "demo@%h",
        "-l",
        "INFO",
        *quick,
        folder=HERE,
        logs=logs,
    )
    stack.callback(worker.stop)
    worker.wait_for("ready.")
    beat = Program("beat", "beat", "-l", "INFO", "--pidfile=", folder=HERE, logs=logs)
    stack.callback(beat.stop)
    beat.wait_for("beat started")
    return worker, beat


if __name__ == "__main__":
    sys.exit(main())
