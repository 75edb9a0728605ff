"""Show a user's schedules at work: a real beat and a real worker, for half a minute at most.

    python examples/quickstart/demo.py

Nothing has to be installed or started before. With DYNBEAT_DEMO_DATABASE_URL and
DYNBEAT_DEMO_BROKER_URL it plays on servers of yours. Exit status 0: everything came true.
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
STORY_LASTS = 14.0
LAST_RUNS_WITHIN = 5.0


class Demo:
    """The story: three users make schedules, change their minds, and get what they asked for."""

    def __init__(self, dynbeat: "Dynbeat", screen: Screen) -> None:
        self.screen = screen
        self.all = dynbeat.schedules
        self.mina, self.omar, self.lena = map(self.all.for_owner, OWNERS)
        self.started_at = datetime.now(UTC)
        self.changed_at = self.paused_at = self.started_at
        self._shown: set[str] = set()

    def clear(self) -> None:
        """Delete the three users, and what an earlier demo may have left."""
        for owner in OWNERS:
            self.all.delete_owner(owner)

    def create(self) -> None:
        """Make the schedules that users make; the sixth field of a cron rule is seconds."""
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

    def quicken(self) -> str:
        """Change an interval while beat runs: it counts from the commit on."""
        self.mina.update("pulse", trigger=Every(timedelta(seconds=1)))
        self.changed_at = datetime.now(UTC)
        return "mina wants her pulse every second instead of every three"

    def cancel(self) -> str:
        """Cancel a one-off before its time."""
        self.omar.delete("cool-down")
        return "omar cancels the cool-down, four seconds before its time"

    def run_now(self) -> str:
        """Run out of turn; the schedule's own times stay as they are."""
        self.omar.run_now("weekdays-at-9")
        return "omar does not wait for nine o'clock: run_now"

    def pause(self) -> str:
        """Pause: what has not started never starts."""
        self.lena.pause("report", reason="on holiday")
        self.paused_at = datetime.now(UTC)
        return "lena pauses her report: on holiday"

    def play(self) -> None:
        """Play the story, showing each run as it ends."""
        story: list[tuple[float, Callable[[], str]]] = [
            (5, self.quicken),
            (6, self.cancel),
            (7, self.run_now),
            (9, self.pause),
        ]
        began = time.monotonic()
        with self.screen.live():
            for seconds, step in story:
                self._watch_until(began + seconds)
                self.screen.say(step())
            self._watch_until(began + STORY_LASTS)

    def _watch_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self.screen.is_live:
                self.show_schedules()
            self.show_runs()
            time.sleep(0.25)

    def show_schedules(self) -> None:
        """Show each schedule with its next fire times."""
        shown = [
            (schedule, self.all.for_owner(owner).upcoming(schedule.name, count=3))
            for owner in OWNERS
            for schedule in self.all.list(owner=owner)
        ]
        self.screen.show_schedules(shown)

    def runs(self) -> Sequence[RunInfo]:
        """Return the runs of this demo, the oldest first."""
        owners = (self.mina, self.omar, self.lena)
        found = [run for mine in owners for run in mine.runs(since=self.started_at, limit=500)]
        return sorted(found, key=lambda run: run.scheduled_for)

    def show_runs(self) -> None:
        """Print the runs that ended since the last look."""
        for run in self.runs():
            if run.status in ENDED and run.id not in self._shown:
                self._shown.add(run.id)
                self.screen.show_run(run)

    def wait_for_last_runs(self) -> None:
        """Let the worker finish what the stopped beat has sent."""
        deadline = time.monotonic() + LAST_RUNS_WITHIN
        while time.monotonic() < deadline and self.leftovers():
            time.sleep(0.25)
        self.show_runs()

    def leftovers(self) -> Sequence[RunInfo]:
        """Return the runs that have not ended."""
        return [run for run in self.runs() if run.status not in ENDED]

    def checks(self) -> dict[str, bool]:
        """Return each promise, and whether it came true."""
        by_name: defaultdict[str, list[RunInfo]] = defaultdict(list)
        for run in self.runs():
            by_name[run.name].append(run)
        quick = [run for run in by_name["pulse"] if run.scheduled_for > self.changed_at]
        late = [run for run in by_name["report"] if run.scheduled_for > self.paused_at]
        ticks = [run.scheduled_for.second % 5 for run in by_name["seoul-clock"]]
        return {
            "the pulse quickened at once": len(quick) >= STORY_LASTS - 7,
            "the clock struck every five seconds": ticks in ([0, 0], [0, 0, 0]),
            "the one-off ran once": _statuses(by_name["welcome"]) == ["succeeded"],
            "the cancelled one-off never ran": not any(
                run.started_at for run in by_name["cool-down"]
            ),
            "the paused report stayed silent": bool(by_name["report"]) and not late,
            "run_now ran at once": _statuses(by_name["weekdays-at-9"]) == ["succeeded"],
            "the error is in the history": "failed" in _statuses(by_name["feed"]),
            "leftovers 0": not self.leftovers(),
        }


def _statuses(runs: Sequence[RunInfo]) -> list[str]:
    return [run.status for run in runs]


def main() -> int:
    """Play the demo and return the exit status."""
    exit_on_sigterm()
    screen = Screen()
    try:
        with ExitStack() as stack:
            return perform(screen, stack)
    except ProgramError as error:
        screen.fail(str(error))
        return 1
    except KeyboardInterrupt:
        screen.say("stopped; nothing is left behind")
        return 130


def perform(screen: Screen, stack: ExitStack) -> int:
    """Start the programs, play, stop them, and judge."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynbeat-demo-")))
    os.environ.setdefault("DYNBEAT_DEMO_DATABASE_URL", f"sqlite:///{folder}/schedules.sqlite3")
    os.environ.setdefault("DYNBEAT_DEMO_BROKER_URL", f"sqla+sqlite:///{folder}/broker.sqlite3")
    from tasks import dynbeat  # noqa: PLC0415 - it reads the environment

    screen.say("making the tables, starting a worker and a beat")
    Program("schema", "dynbeat", "schema", "upgrade", folder=HERE, logs=folder).wait()
    stack.callback(dynbeat.context.database.dispose)
    demo = Demo(dynbeat, screen)
    demo.clear()
    stack.callback(demo.clear)
    worker, beat = start(stack, folder)
    demo.create()
    screen.say("three users made seven schedules")
    demo.show_schedules()
    demo.play()
    screen.say("stopping beat; the worker finishes what was sent")
    beat.stop()
    demo.wait_for_last_runs()
    checks = demo.checks()
    screen.show_summary(demo.runs(), checks)
    if all(checks.values()):
        return 0
    screen.fail("\n".join(program.tail() for program in (beat, worker)))
    return 1


def start(stack: ExitStack, logs: Path) -> tuple[Program, Program]:
    """Start a worker and a beat, and return them when both are up."""
    quick = ("--without-gossip", "--without-mingle")
    # Threads: a pool of processes takes some seconds to end where the broker is polled.
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
