"""A PostgreSQL server for tests."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import psycopg

from tests.support.servers.base import Server
from tests.support.servers.machine import find_program, unprivileged_user


class PostgreSQLServer(Server):
    """A cluster with the superuser ``postgres`` and no passwords.

    fsync is off: commits survive ``kill``, because the operating system has them, but not a power
    cut. ``durable`` turns it on, as in production.
    """

    name: ClassVar[str] = "postgresql"
    # A "fast" shutdown, as in the services of distributions. SIGTERM waits for all clients.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the maintenance database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def find_programs(self) -> None:
        """Find initdb and postgres of the newest version installed."""
        folders = sorted(
            Path("/usr/lib/postgresql").glob("*/bin"),
            key=lambda folder: float(folder.parent.name),
            reverse=True,
        )
        self._initdb = find_program("initdb", package="postgresql", folders=folders)
        self._postgres = find_program("postgres", package="postgresql", folders=folders)

    def choose_user(self) -> str | None:
        """PostgreSQL refuses to run as root."""
        return unprivileged_user("postgres")

    def prepare(self) -> None:
        """Create the cluster."""
        self.run(
            [
                self._initdb,
                f"--pgdata={self._data}",
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
        )

    def command(self) -> Sequence[str | Path]:
        """Return postgres in the foreground, with its socket in the folder."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "port": str(self.port),
            **({} if self.durable else {"fsync": "off", "full_page_writes": "off"}),
            "max_connections": "200",
            # synchronous_commit stays on: without it a kill loses the last commits.
        }
        options = [part for pair in settings.items() for part in ("-c", "=".join(pair))]
        return [self._postgres, "-D", self._data, *options]

    def answers(self) -> bool:
        """Return whether a client can log in."""
        address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        try:
            psycopg.connect(address, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def _data(self) -> Path:
        return self.folder / "data"
