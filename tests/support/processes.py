"""Real Celery processes for tests. A test starts a command line and watches its log."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import celery_dynbeat
from tests.support.servers.processes import OwnedProcess
from tests.support.waiting import wait_until

LOG_TAIL_LINES = 40
REPOSITORY = Path(__file__).parents[2]
PACKAGE = str(Path(celery_dynbeat.__file__).parent)
STARTS_WITHIN = 30.0
ENDS_WITHIN = 15.0


class CeleryProcess:
    """A running ``celery`` command. The context manager terminates it, and kills it if needed."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        app: str = "tests.support.proj",
    ) -> None:
        folder.mkdir()
        self.arguments = list(arguments)
        self.log = folder / "log"
        self._process = OwnedProcess(
            [sys.executable, "-m", "celery", "-A", app, *arguments],
            folder=folder,
            log=self.log,
            environment={
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONUNBUFFERED": "1",
                # CI runs as root, and a worker refuses to run as root without this.
                "C_FORCE_ROOT": "1",
                **environment,
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and error is not None:
            error.add_note(self.report())
        self.terminate()

    @property
    def pid(self) -> int:
        """The id of the main process."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, or None while the process runs."""
        return self._process.exit_status

    @property
    def crashed_in_celery(self) -> bool:
        """Whether an error ended the process, and no code of this package raised it."""
        if self.exit_status is None:
            return False
        # Log lines of the pool may follow the traceback.
        error = self.text.partition("Unrecoverable error")[2].partition("\n[")[0]
        return bool(error) and PACKAGE not in error

    @property
    def text(self) -> str:
        """The log of the process so far."""
        return self.log.read_text(errors="replace")

    def wait_for_log(self, text: str, *, within: float = STARTS_WITHIN, times: int = 1) -> Self:
        """Return when ``text`` is in the log ``times`` times.

        Raises AssertionError with the end of the log.
        """

        def seen() -> bool:
            if self.text.count(text) >= times:
                return True
            assert self.exit_status is None, f"ended before {text!r}\n{self.report()}"
            return False

        try:
            wait_until(seen, within=within, message=f"{text!r} is not in the log")
        except AssertionError as error:
            error.add_note(self.report())
            raise
        return self

    def wait(self, *, within: float = ENDS_WITHIN) -> int:
        """Wait until the process exits, without terminating it, and return its exit status."""
        wait_until(lambda: self.exit_status is not None, within=within, message=self.report())
        return self._process.wait(within=within)

    def send_sigterm(self) -> None:
        """Send SIGTERM to the main process only; it then ends its pool itself."""
        if self.exit_status is None:
            os.kill(self.pid, 15)

    def terminate(self, *, within: float = ENDS_WITHIN) -> int | None:
        """Terminate the process, kill what remains, and return the exit status."""
        self._process.terminate(within=within)
        return self.exit_status

    def kill(self) -> None:
        """Kill the process and its children by SIGKILL."""
        self._process.kill()

    def report(self) -> str:
        """Return the end of the log, for an error message."""
        tail = "\n".join(self.text.splitlines()[-LOG_TAIL_LINES:])
        return f"--- celery {' '.join(self.arguments)} (status {self.exit_status}) ---\n{tail}"


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that the main thread of a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
