"""Start real Celery processes for the examples, and wait for lines in their logs."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

TAIL_LINES = 25
START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0
CHECK_SECONDS = 0.5


class ProgramError(RuntimeError):
    """A program ended early or did not log the expected text; the message has its last lines."""


class Program:
    """One ``celery -A application ...`` command, started in ``folder``.

    With another ``module`` it is ``python -m module ...``.
    """

    def __init__(
        self,
        name: str,
        *arguments: str,
        folder: Path,
        logs: Path,
        module: str = "celery",
        application: str = "tasks",
    ) -> None:
        self.name = name
        named = ["-A", application] if module == "celery" else []
        self.log = logs / f"{name}.log"
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *named, *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Keeps Ctrl-C from the program: the example gets it, and stops each program.
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        """Return the last group of ``pattern`` when the log contains a whole line that matches it.

        Raise ProgramError if it does not in time.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while not (found := re.search(f"{pattern}.*\n", self.log.read_text(errors="replace"))):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ProgramError(f"{self.name} did not log {pattern!r}\n{self.tail()}")
            time.sleep(0.05)
        return found[found.lastindex or 0]

    def wait(self) -> None:
        """Return when the program has ended with status 0. Raise ProgramError otherwise."""
        if self._process.wait(START_TIMEOUT):
            raise ProgramError(f"{self.name} failed\n{self.tail()}")

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended."""
        return self._process.poll() is not None

    def terminate(self) -> None:
        """Send SIGTERM to the main process only, so that a worker can still use its pool."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Terminate the program and wait for it. Kill it after ``STOP_TIMEOUT`` seconds."""
        self.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def tail(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([f"--- the end of {self.log.name} ---", *lines])


def exit_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that this program cleans up as after Ctrl-C."""

    def leave(*_: object) -> None:
        # `timeout` and make send the signal again: a second one would end the cleanup.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)


def run_until_interrupted(start: Callable[[ExitStack], Sequence[Program]]) -> int:
    """Start programs, wait for Ctrl-C or until one of them ends, and return the exit status."""
    exit_on_sigterm()
    try:
        with ExitStack() as stack:
            _watch(start(stack))
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped")
    return 0


def _watch(programs: Sequence[Program]) -> None:
    """Return never: raise ProgramError when a program ends, KeyboardInterrupt at Ctrl-C."""
    while True:
        for program in programs:
            if program.has_ended:
                raise ProgramError(f"{program.name} ended\n{program.tail()}")
        time.sleep(CHECK_SECONDS)
