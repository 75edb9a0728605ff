"""A Galera cluster: MariaDB servers that replicate each commit to each other before its reply."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

import pymysql
from pymysql.cursors import Cursor

from tests.support.servers.machine import find_program, free_port, unprivileged_user
from tests.support.servers.mariadb import MariaDBServer
from tests.support.waiting import wait_until

SERVERS = 3
JOINED_WITHIN = 30.0
PROVIDER_FOLDERS = (Path("/usr/lib/galera"), Path("/usr/lib64/galera-4"))


class GaleraServer(MariaDBServer):
    """A server of a cluster. It answers while it belongs to the majority and has all commits.

    A server that starts joins the running ``others``, and copies their data if it has none or was
    killed. Without running others it starts a new cluster.
    """

    name: ClassVar[str] = "galera"
    #: The copy and the start of a server take several seconds each.
    starts_within: ClassVar[float] = 60
    others: Sequence["GaleraServer"] = ()
    #: Unique in the cluster.
    server_name: str = "node1"

    def find_programs(self) -> None:
        """Find MariaDB, the Galera library, and rsync, which copies the data to a new server."""
        super().find_programs()
        # The file is not executable, so find_program() does not find it.
        library = (folder / "libgalera_smm.so" for folder in PROVIDER_FOLDERS)
        self._provider = next((file for file in library if file.exists()), None)
        if self._provider is None:
            find_program("libgalera_smm.so", package="galera-4")
        find_program("rsync", package="rsync")

    def choose_user(self) -> str | None:
        """Rsync copies no data for root."""
        return unprivileged_user("mysql")

    def choose_ports(self) -> None:
        """Choose the ports for clients, for replication, and for both ways to get missing data."""
        super().choose_ports()
        self.group_port, self._ist_port, self._sst_port = (free_port() for _ in range(3))

    def prepare(self) -> None:
        """Create the system tables, if this server starts the cluster."""
        # As the user of the server.
        self.run(["mkdir", self._temporary, self._data])
        if not self._running_others():
            self._create_system_tables()

    def command(self) -> Sequence[str | Path]:
        """Return mariadbd in the foreground, with the options of the cluster."""
        peers = ",".join(f"127.0.0.1:{server.group_port}" for server in self._running_others())
        provider_options: dict[str, str | int] = {
            "base_host": "127.0.0.1",
            "base_port": self.group_port,
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self._ist_port}",
        }
        return [
            *super().command(),
            "--wsrep-on=ON",
            f"--wsrep-provider={self._provider}",
            f"--wsrep-provider-options={_joined(provider_options)}",
            # An empty address starts a new cluster.
            f"--wsrep-cluster-address=gcomm://{peers}",
            "--wsrep-cluster-name=dynbeat",
            f"--wsrep-node-name={self.server_name}",
            f"--wsrep-node-address=127.0.0.1:{self.group_port}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{self._sst_port}",
            # Not the server in use: it accepts no writes while it is copied. Any, if this is down.
            f"--wsrep-sst-donor=node{SERVERS},",
            "--wsrep-slave-threads=4",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ]

    def answers(self) -> bool:
        """Return whether the server belongs to the majority and has all commits."""
        try:
            return self.status("wsrep_ready") == "ON" and self.status("wsrep_local_state") == "4"
        except pymysql.err.MySQLError:
            return False

    def status(self, name: str) -> str | None:
        """Return a status variable of the server, such as ``wsrep_cluster_size``."""
        with self._cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE %s", (name,))
            row = cursor.fetchone()
        return None if row is None else str(row[1])

    def isolate(self, isolated: bool) -> None:  # noqa: FBT001
        """Cut the server off from the others, or end that. Clients still reach it."""
        with self._cursor() as cursor:
            option = f"gmcast.isolate={int(isolated)}"
            cursor.execute("SET GLOBAL wsrep_provider_options = %s", (option,))

    @contextmanager
    def _cursor(self) -> Iterator[Cursor]:
        # Not through SQLAlchemy: its first queries fail while the server is not ready.
        with (
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", connect_timeout=2, read_timeout=10
            ) as connection,
            connection.cursor() as cursor,
        ):
            yield cursor

    def _as_root(self) -> Sequence[str]:
        return []

    def _running_others(self) -> Sequence["GaleraServer"]:
        return [server for server in self.others if server.running]


@contextmanager
def galera_cluster() -> Iterator[Sequence[GaleraServer]]:
    """Yield the running servers of a new cluster. Raises ServerMissingError."""
    servers = [GaleraServer() for _ in range(SERVERS)]
    with ExitStack() as stack:
        for number, server in enumerate(servers, start=1):
            server.server_name = f"node{number}"
            server.others = [other for other in servers if other is not server]
            stack.enter_context(server)
        wait_until(lambda: all(_sees_all(server) for server in servers), within=JOINED_WITHIN)
        yield servers


def _sees_all(server: GaleraServer) -> bool:
    return server.status("wsrep_cluster_size") == str(SERVERS)


def _joined(options: dict[str, str | int]) -> str:
    return ";".join(f"{name}={value}" for name, value in options.items())
