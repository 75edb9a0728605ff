"""PgBouncer in front of a PostgreSQL test server."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import psycopg

from tests.support.servers.base import Server
from tests.support.servers.machine import find_program, unprivileged_user

CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {pool_mode}
default_pool_size = {pool_size}
ignore_startup_parameters = extra_float_digits
"""


class PgBouncerServer(Server):
    """A pooler without prepared statements, in front of the server on ``server_port``."""

    name: ClassVar[str] = "pgbouncer"
    server_port: int
    pool_mode: str = "transaction"
    pool_size: int = 2

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the maintenance database, through the pooler."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def find_programs(self) -> None:
        """Find pgbouncer."""
        self._pgbouncer = find_program("pgbouncer", package="pgbouncer")

    def choose_user(self) -> str | None:
        """PgBouncer refuses to run as root."""
        return unprivileged_user("postgres")

    def configure(self) -> None:
        """Write the ports."""
        (self.folder / "pgbouncer.ini").write_text(
            CONFIGURATION.format(
                port=self.port,
                server_port=self.server_port,
                pool_mode=self.pool_mode,
                pool_size=self.pool_size,
            )
        )

    def command(self) -> Sequence[str | Path]:
        """Return pgbouncer in the foreground."""
        return [self._pgbouncer, self.folder / "pgbouncer.ini"]

    def answers(self) -> bool:
        """Return whether a client gets an answer from the server behind PgBouncer."""
        address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        try:
            psycopg.connect(address, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
