"""A MariaDB server for tests."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pymysql

from tests.support.servers.base import Server
from tests.support.servers.machine import find_program


class MariaDBServer(Server):
    """A server with the account ``root`` without a password. The machine's my.cnf is not read."""

    name: ClassVar[str] = "mariadb"
    #: More options, which take precedence.
    options: ClassVar[Sequence[str]] = ()

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the server's system schema."""
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/mysql"

    def find_programs(self) -> None:
        """Find mariadbd and the script that creates its data folder."""
        package = "mariadb-server"
        self._install = find_program("mariadb-install-db", package=package)
        self._mariadbd = find_program("mariadbd", package=package)

    def prepare(self) -> None:
        """Create the system tables."""
        self._temporary.mkdir()
        self._create_system_tables()

    def _create_system_tables(self) -> None:
        self.run(
            [
                self._install,
                "--no-defaults",
                f"--datadir={self._data}",
                f"--tmpdir={self._temporary}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *self._as_root(),
            ],
        )

    def command(self) -> Sequence[str | Path]:
        """Return mariadbd in the foreground, with its socket in the folder."""
        return [
            self._mariadbd,
            # Must be the first argument.
            "--no-defaults",
            *self._as_root(),
            f"--datadir={self._data}",
            f"--tmpdir={self._temporary}",
            f"--socket={self.folder / 'mariadb.sock'}",
            f"--pid-file={self.folder / 'mariadb.pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--max-connections=500",
            "--innodb-buffer-pool-size=64M",
            # 2 writes the log to the operating system and survives a kill; 0 would lose a second.
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 2}",
            f"--innodb-doublewrite={'ON' if self.durable else 'OFF'}",
            # A file for each table makes CREATE TABLE and DROP TABLE twice as slow.
            "--loose-innodb-file-per-table=OFF",
            # No fsync: the operating system's cache survives a kill.
            *(() if self.durable else ("--loose-debug-no-sync",)),
            *self.options,
        ]

    def answers(self) -> bool:
        """Return whether a client can log in."""
        try:
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", connect_timeout=2
            ).close()
        except pymysql.err.OperationalError:
            return False
        return True

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _temporary(self) -> Path:
        # Not the folder of all: at its start, a server deletes the temporary tables in its folder.
        return self.folder / "tmp"

    def _as_root(self) -> Sequence[str]:
        # MariaDB runs as root only with this option.
        return ["--user=root"] if os.geteuid() == 0 else []
