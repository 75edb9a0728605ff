"""A MySQL server for tests, in place of MariaDB."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from sqlalchemy import Dialect

from tests.support.servers.machine import ServerMissingError
from tests.support.servers.mariadb import MariaDBServer

#: The path of a mysqld. If it is set, the tests of MariaDB run on MySQL.
MYSQLD_VARIABLE = "DYNBEAT_TEST_MYSQLD"


class MySQLServer(MariaDBServer):
    """A server with the account ``root`` without a password. It offers no TLS."""

    name: ClassVar[str] = "mysql"

    def find_programs(self) -> None:
        """Find the mysqld of the environment. In PATH, MariaDB has a program of the same name."""
        program = os.environ.get(MYSQLD_VARIABLE) or f"mysqld in {MYSQLD_VARIABLE}"
        found = shutil.which(program)
        if found is None:
            raise ServerMissingError(program=program, fix="nox -s mysql")
        self._mysqld = Path(found).absolute()

    def prepare(self) -> None:
        """Create the system tables."""
        self._temporary.mkdir()
        accounts = self.folder / "accounts.sql"
        # The server resolves no names, so that root@localhost cannot log in from 127.0.0.1.
        accounts.write_text(
            "CREATE USER root@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self.run([*self._common(), "--initialize-insecure", f"--init-file={accounts}"])

    def command(self) -> Sequence[str | Path]:
        """Return mysqld in the foreground, with its socket in the folder."""
        return [
            *self._common(),
            f"--socket={self.folder / 'mysql.sock'}",
            f"--pid-file={self.folder / 'mysql.pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            # Its second protocol listens on another port.
            "--mysqlx=OFF",
            "--skip-name-resolve",
            "--max-connections=500",
            # No TLS: the first handshake of each new connection takes 40 ms.
            "--tls-version=",
        ]

    def _common(self) -> Sequence[str | Path]:
        return [
            self._mysqld,
            # Must be the first argument.
            "--no-defaults",
            *self._as_root(),
            f"--datadir={self._data}",
            f"--tmpdir={self._temporary}",
            # Debian's default is a folder of its package.
            "--secure-file-priv=NULL",
            "--disable-log-bin",
            # 250 MB of memory per server.
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=64M",
            "--innodb-redo-log-capacity=32M",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-doublewrite=OFF",
            # A file for each table makes CREATE TABLE and DROP TABLE ten times as slow.
            "--innodb-file-per-table=OFF",
            # No fsync: the operating system's cache survives a kill.
            "--innodb-flush-method=nosync",
            *self.options,
        ]


def is_mysql(dialect: Dialect) -> bool:
    """Return whether a connection of the dialect is to MySQL, not to MariaDB."""
    return dialect.name == "mysql" and not getattr(dialect, "is_mariadb", False)


def mariadb_or_mysql() -> type[MariaDBServer]:
    """Return the kind of server on which the tests of MariaDB run."""
    return MySQLServer if MYSQLD_VARIABLE in os.environ else MariaDBServer
