"""Start, stop, kill, freeze and restart a test server of any kind."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil

from tests.support.servers.machine import ServerMissingError, free_port
from tests.support.servers.processes import OwnedProcess
from tests.support.waiting import wait_until

__all__ = ["Server", "ServerFailedError", "ServerMissingError"]

LOG_TAIL_LINES = 25
#: How many ports a new server tries while other processes take them.
PORTS_TRIED = 5
#: Log messages of servers whose port is in use by another process.
PORT_TAKEN = ("address already in use", "eaddrinuse", "in use by another erlang node")


class ServerFailedError(Exception):
    """A server did not start. The message ends with the last lines of its log."""


class Server(ABC):
    """A server on one port of 127.0.0.1, with its data in a temporary folder.

    ``start``, ``stop``, ``kill``, ``restart``, ``freeze`` and ``thaw`` may be called in any order:
    the port and the data stay until ``close``. The context manager starts and closes the server.
    Only the first start may choose another port, because no client uses it yet.
    """

    name: ClassVar[str]
    starts_within: ClassVar[float] = 30
    stops_within: ClassVar[float] = 15
    #: The signal for a shutdown that does not wait for clients.
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    #: Whether a database server waits for the disk in each commit, as in production. Set it before
    #: the start.
    durable: bool = False

    def __init__(self) -> None:
        """Find the programs and create the folder. Raises ServerMissingError."""
        self.find_programs()
        self.user = self.choose_user()
        self.choose_ports()
        self.folder = Path(tempfile.mkdtemp(prefix=f"dynbeat-{self.name}-"))
        self.log = self.folder / "server.log"
        self._process: OwnedProcess | None = None
        self._prepared = False
        self._has_answered = False
        self._hand_over_folder()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the server for SQLAlchemy or kombu."""

    @abstractmethod
    def find_programs(self) -> None:
        """Find the programs of the server, or raise ServerMissingError."""

    def choose_user(self) -> str | None:
        """Return the user to run as; None means the current user."""
        return None

    def choose_ports(self) -> None:
        """Choose free ports. Another process may take one of them before the server listens."""
        self.port = free_port()

    def prepare(self) -> None:  # noqa: B027 - many need nothing
        """Create the data folder, once, before the first start."""

    def configure(self) -> None:  # noqa: B027 - most get their port on the command line
        """Write the files that name the ports, before each start."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return the command that runs the server in the foreground."""

    def environment(self) -> Mapping[str, str]:
        """Return additional environment variables of the server."""
        return {}

    @abstractmethod
    def answers(self) -> bool:
        """Return whether a client gets an answer now; an error of the client means no."""

    @property
    def pid(self) -> int:
        """The id of the server's main process, while it runs."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the server has been started and has not ended."""
        return self._process is not None and self._process.exit_status is None

    def start(self) -> None:
        """Start the server and return when it answers. Raises ServerFailedError with its log."""
        if self.running:
            return
        tries = 1 if self._has_answered else PORTS_TRIED
        while True:
            try:
                self._start()
            except ServerFailedError:
                tries -= 1
                if not tries or not self._lost_its_port():
                    raise
                self.choose_ports()
            else:
                self._has_answered = True
                return

    def stop(self) -> None:
        """Shut the server down; the data stay."""
        if self._process:
            self._process.terminate(within=self.stops_within, by=self.stop_signal)

    def kill(self) -> None:
        """Kill every process of the server by SIGKILL, and wait until they have ended."""
        if self._process:
            self._process.kill()

    def freeze(self) -> None:
        """Suspend every process of the server by SIGSTOP: connections stay open without answers."""
        if self._process:
            self._process.send_to_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the processes of the server."""
        if self._process:
            self._process.send_to_all(signal.SIGCONT)

    def restart(self) -> None:
        """Stop the server if it runs, and start it with the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill the server and delete its folder. The data are not needed any more."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, command: Sequence[str | Path]) -> None:
        """Run a program of this server until it exits. Raises ServerFailedError with its output."""
        status = self.launch(command, environment={}).wait(within=self.starts_within)
        if status:
            message = f"{command[0]} ended with status {status}:\n{self.log_tail()}"
            raise ServerFailedError(message)

    def launch(
        self, command: Sequence[str | Path], *, environment: Mapping[str, str]
    ) -> OwnedProcess:
        """Start a process of this server, which ends with the current process."""
        return OwnedProcess(
            command,
            folder=self.folder,
            log=self.log,
            environment=environment,
            user=self.user,
        )

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        with contextlib.suppress(FileNotFoundError):
            lines = self.log.read_text(errors="replace").splitlines()
            return "\n".join(lines[-LOG_TAIL_LINES:])
        return "(no log)"

    def listens(self) -> bool:
        """Return whether a process of this server listens on its port."""
        main = psutil.Process(self._running().pid)
        return self._accepts() and any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == self.port
            for process in (main, *main.children(recursive=True))
            for connection in process.net_connections("tcp")
        )

    def _start(self) -> None:
        # A server that crashed may have left children and its watchdog.
        self.kill()
        if not self._prepared:
            self.prepare()
            self._prepared = True
        self.configure()
        # So that the log contains only this start.
        self.log.unlink(missing_ok=True)
        self._process = self.launch(self.command(), environment=self.environment())
        self._wait_for_answer()

    def _lost_its_port(self) -> bool:
        log = self.log.read_text(errors="replace").lower()
        return any(sign in log for sign in PORT_TAKEN)

    def _is_up(self) -> bool:
        # Check listens() first: another process on the port may answer, or hang.
        with contextlib.suppress(psutil.Error, RuntimeError):
            return self.listens() and self.answers()
        return False

    def _accepts(self) -> bool:
        # A refused connection costs 0.1 ms. The search of the processes costs 20 ms of processor
        # time, which the server needs for its start.
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
        except OSError:
            return False
        return True

    def _running(self) -> OwnedProcess:
        if self._process is None or not self.running:
            message = f"{self.name} is not running"
            raise RuntimeError(message)
        return self._process

    def _wait_for_answer(self) -> None:
        started = time.monotonic()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.running or self._is_up(), within=self.starts_within)
            if self.running:
                return
        self._fail(after=time.monotonic() - started)

    def _fail(self, *, after: float) -> None:
        process = self._process
        status = process.exit_status if process else None
        self.kill()
        reason = "did not answer" if status is None else f"ended with status {status}"
        message = (
            f"{self.name} on port {self.port} {reason} after {after:.1f} s:\n{self.log_tail()}"
        )
        raise ServerFailedError(message)

    def _hand_over_folder(self) -> None:
        if self.user:
            account = pwd.getpwnam(self.user)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
