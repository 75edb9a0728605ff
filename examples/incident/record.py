"""Run the incident of docs/how-to/troubleshooting.md, and write the outputs into the page.

    python examples/incident/record.py            # write the page
    python examples/incident/record.py --check    # fail if the page is stale

It takes about five minutes, needs no server, and uses real processes. The check compares the words
of the page. The page is the script:

- ``$ ...`` in a console block is run on a terminal of 100 columns. Its output replaces the
  lines up to the next command.
- ``<!-- worker NAME QUEUE -->`` starts a worker, and ``<!-- crm up -->`` repairs the CRM.
"""

import os
import pty
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from programs import Program, exit_on_sigterm  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "how-to" / "troubleshooting.md"
#: "dumb": without colours and progress bars.
TERMINAL = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100", "LINES": "50"}
#: Until each schedule has its trouble: the second fire time of ``load`` is skipped.
TROUBLE_SECONDS = 75.0
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
DIRECTIVE = re.compile(r"<!-- (worker|crm) (.*) -->")


class Incident:
    """The processes of the incident, in a new folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        (folder / "tasks.py").write_text((HERE / "tasks.py").read_text())

    def begin(self) -> None:
        """Create the schedules, damage one, hold one, and start a beat and a worker."""
        from tasks import CRM_IS_DOWN, dynbeat  # noqa: PLC0415 - after the change of the folder

        from celery_dynbeat import Every  # noqa: PLC0415

        CRM_IS_DOWN.touch()
        mine = dynbeat.schedules.for_owner("user:42")
        often = Every(timedelta(seconds=30))
        with dynbeat.acting(actor="app"):
            for name in ("report", "sync", "clean"):
                mine.create(name, task=f"tasks.{name}", trigger=often)
            mine.create("load", task="tasks.load", trigger=often, overlap="skip")
            other = dynbeat.schedules.for_owner("user:7")
            other.create("digest", task="tasks.digest", trigger=often)
        with dynbeat.acting(actor="bob"):
            other.hold(reason="ticket 12: wrong recipients")
        with sqlite3.connect("dynbeat.sqlite3") as connection:
            connection.execute(
                "UPDATE dynbeat_schedule SET trigger_spec = 'P' WHERE name = 'clean'"
            )
        self.start("beat", "beat", "-l", "INFO")
        self.worker("worker1", "celery")

    def worker(self, name: str, queue: str) -> None:
        """Start a worker, and return when it is ready."""
        node = ("-n", f"{name}@host1", "-Q", queue, "-c", "2", "-l", "INFO")
        quick = ("--without-gossip", "--without-mingle")
        self.start(name, "worker", *node, *quick).wait_for("ready.")

    def start(self, name: str, *arguments: str) -> Program:
        """Start a celery command; ``close`` of the stack stops it."""
        program = Program(name, *arguments, folder=self.folder, logs=self.folder)
        self._stack.callback(program.stop)
        return program

    def obey(self, directive: str, value: str) -> None:
        """Carry out a directive of the page."""
        if directive == "worker":
            self.worker(*value.split())
        else:
            (self.folder / "crm-is-down").unlink()

    def run(self, command: str) -> str:
        """Return what a command prints on a terminal."""
        command = command.replace("dynbeat ", "celery -A tasks dynbeat ", 1)
        return on_terminal(command, folder=self.folder, environment={**os.environ, **TERMINAL})


def on_terminal(command: str, *, folder: Path, environment: dict[str, str]) -> str:
    """Return what a shell command prints on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["/bin/sh", "-c", command], cwd=folder, env=environment, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        text = b"".join(iter(lambda: _read(ours), b"")).decode()
        os.close(ours)
        process.wait()
    return text.replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux raises EIO at the end.
        return b""


def recorded(lines: list[str], incident: Incident) -> Iterator[str]:
    """Yield the lines of the page, with the outputs of this incident."""
    is_output = False
    for line in lines:
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            print(f"$ {command}", flush=True)
            yield f"$ {command}"
            yield from (each.rstrip() for each in incident.run(command).strip("\n").splitlines())
            is_output = True
            continue
        if line.startswith("```"):
            is_output = False
        if not is_output:
            if match := DIRECTIVE.fullmatch(line):
                incident.obey(*match.groups())
            yield line


def words(text: str) -> set[str]:
    """Return the words, with ``0`` for ids and numbers.

    Not the lines: the width of a number decides whether a column fits the terminal. An age of less
    than a second is "just now".
    """
    text = text.replace("just now", "0 s ago")
    number = r"\d[\d.:,-]*(T[\d.:]+)?(\+00:00)?( (ms|s|min|h|d)\b)?"
    return set(re.sub(number, "0", RUN_ID.sub("0", text)).split())


def main() -> None:
    """Run the incident, and write the page or check it."""
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        os.environ["DYNBEAT_ACTOR"] = "alice"
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.chdir(name)
        sys.path.insert(0, name)
        incident = Incident(Path(name), stack)
        incident.begin()
        time.sleep(TROUBLE_SECONDS)
        page = PAGE.read_text()
        text = "\n".join(recorded(page.splitlines(), incident))
        if "--check" not in sys.argv:
            PAGE.write_text(f"{text}\n")
        elif differing := words(page) ^ words(text):
            sys.exit(f"{PAGE.name} is stale: record it again. It differs in {sorted(differing)}")


if __name__ == "__main__":
    main()
