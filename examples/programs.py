"""Real Celery programs for the examples: started as on a server, watched by their logs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TAIL_LINES = 25
STARTS_WITHIN = 20.0
ENDS_WITHIN = 10.0


class ProgramError(RuntimeError):
    """A program ended too early or said nothing; the end of its log is in the message."""


class Program:
    """One ``celery -A tasks ...`` command, run in the folder where ``tasks.py`` is."""

    def __init__(self, name: str, *arguments: str, folder: Path, logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tasks", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the example, which then ends its programs in good order.
                start_new_session=True,
            )

    def wait_for(self, text: str) -> None:
        """Return when ``text`` stands in the log. Raises ProgramError."""
        deadline = time.monotonic() + STARTS_WITHIN
        while text not in self.log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ProgramError(f"{self.name} did not say {text!r}\n{self.tail()}")
            time.sleep(0.05)

    def wait(self) -> None:
        """Return when the program ended well. Raises ProgramError."""
        if self._process.wait(STARTS_WITHIN):
            raise ProgramError(f"{self.name} failed\n{self.tail()}")

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the main process only: a worker's pool must outlive the order."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Ask the program to stop and wait for it; kill it when it does not."""
        self.ask_to_stop()
        try:
            self._process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def tail(self) -> str:
        """Return the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([f"--- the end of {self.log.name} ---", *lines])


def exit_on_sigterm() -> None:
    """Make SIGTERM end this program like Ctrl-C does: with its cleaning up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
