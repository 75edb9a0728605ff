"""Start a process that ends with the current process, and end it with all its children."""

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.waiting import wait_until

# Reads until its pipe closes. A line means that the owner has ended the process. An end of the pipe
# without a line means that the owner has died, so the watchdog kills the process and cleans up.
WATCHDOG = 'read -r line || { kill -9 "-$1"; sleep 1; rm -rf -- "$2"; }'


class OwnedProcess:
    """A process in its own session. A watchdog kills it when the current process dies.

    Not PR_SET_PDEATHSIG: that signal comes when the *thread* that started the process ends.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str],
        user: str | None = None,
    ) -> None:
        account = pwd.getpwnam(user) if user else None
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )
        # psutil remembers the start time, so a later process with the same id is never signalled.
        self._handle = psutil.Process(self.pid)
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(self.pid), str(folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The id of the started process, which may be a shell around the server."""
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, or None while the process runs."""
        return self._popen.poll()

    def wait(self, *, within: float) -> int:
        """Wait for the process to exit, kill it after ``within`` seconds; return its status."""
        try:
            return self._popen.wait(within)
        finally:
            self.kill()

    def terminate(self, *, within: float, by: signal.Signals = signal.SIGTERM) -> None:
        """Send the process a signal to end; kill it after ``within`` seconds."""
        family = self._family()
        self._popen.send_signal(by)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(within)
        self._kill_all(family)

    def kill(self) -> None:
        """Kill the process and its descendants by SIGKILL, and wait until they have ended."""
        self._kill_all(self._family())

    def send_to_all(self, number: int) -> None:
        """Send a signal to the process and its descendants, to parents first."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._handle, *self._handle.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _kill_all(self, family: Sequence[psutil.Process]) -> None:
        # Parents first, so that none of them starts another child.
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.wait()
        wait_until(
            lambda: not any(map(is_alive, family)),
            within=10,
            message=f"processes survived SIGKILL: {family}",
        )
        self._dismiss_watchdog()

    def _dismiss_watchdog(self) -> None:
        # The watchdog has ended if terminate() or kill() is called a second time.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._watchdog.communicate(b"ended properly\n")


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process runs. A zombie, as in a container without init, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
