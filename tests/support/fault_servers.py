"""Servers that fault tests kill, freeze and restart. Each test gets them running and empty.

They are not the shared servers of ``tests.support.fixtures``. Beats and workers log in with an
account without privileges, as in production. Results with root's privileges would prove nothing.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import redis
from sqlalchemy import make_url, text

from tests.support.combinations import Combination
from tests.support.databases import administration, end_mariadb_sessions, new_name
from tests.support.fixtures import started
from tests.support.servers import (
    MariaDBServer,
    PostgreSQLServer,
    RabbitMQServer,
    RedisServer,
    Server,
    mariadb_or_mysql,
)

S = TypeVar("S", bound=Server)

DATABASE_SERVERS: dict[str, type[PostgreSQLServer | MariaDBServer]] = {
    "postgresql": PostgreSQLServer,
    "mariadb": mariadb_or_mysql(),
}


class FaultServers:
    """The servers of this process. Each starts when a test first needs it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._servers: dict[type[Server], Server] = {}

    def ready(self, kind: type[S]) -> S:
        """Return the server of a kind, started and thawed after the previous test."""
        if kind not in self._servers:
            self._servers[kind] = started(self._stack, kind)
        server = cast("S", self._servers[kind])
        server.thaw()
        server.start()
        return server


@dataclass(frozen=True, slots=True)
class Services:
    """The new database and the empty broker of one test, and their servers.

    ``database`` is also the name of the account that owns it.
    """

    combination: Combination
    database_server: PostgreSQLServer | MariaDBServer
    broker_server: RedisServer | RabbitMQServer
    database: str
    database_url: str
    broker_url: str


@contextmanager
def services(servers: FaultServers, combination: Combination) -> Iterator[Services]:
    """Yield a database and a broker for one test, both removed afterwards."""
    database_server = servers.ready(DATABASE_SERVERS[combination.database])
    database = new_name()
    make = _make_on_postgresql if combination.database == "postgresql" else _make_on_mariadb
    database_url = make(database_server, database)
    with _broker(servers, combination.broker) as (broker_server, broker_url):
        try:
            yield Services(
                combination=combination,
                database_server=database_server,
                broker_server=broker_server,
                database=database,
                database_url=database_url,
                broker_url=broker_url,
            )
        finally:
            _remove(servers.ready(type(database_server)), database)


def _make_on_postgresql(server: Server, name: str) -> str:
    with administration(server.url) as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN"))
        connection.execute(text(f"CREATE DATABASE {name} OWNER {name}"))
    return _url(server, name)


def _make_on_mariadb(server: Server, name: str) -> str:
    with administration(server.url) as connection:
        connection.execute(text(f"CREATE DATABASE {name} CHARACTER SET utf8mb4"))
        connection.execute(text(f"CREATE USER {name}@'127.0.0.1'"))
        connection.execute(text(f"GRANT ALL ON {name}.* TO {name}@'127.0.0.1'"))
    return f"{_url(server, name)}?charset=utf8mb4"


def _url(server: Server, name: str) -> str:
    url = make_url(server.url).set(username=name, database=name, query={})
    return url.render_as_string(hide_password=False)


def _remove(server: Server, name: str) -> None:
    with administration(server.url) as connection:
        if isinstance(server, PostgreSQLServer):
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
            connection.execute(text(f"DROP ROLE {name}"))
        else:
            end_mariadb_sessions(connection, name=name)
            connection.execute(text(f"DROP DATABASE {name}"))
            connection.execute(text(f"DROP USER {name}@'127.0.0.1'"))


@contextmanager
def _broker(servers: FaultServers, kind: str) -> Iterator[tuple[RedisServer | RabbitMQServer, str]]:
    if kind == "redis":
        server = servers.ready(RedisServer)
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        yield server, server.url
        return
    rabbitmq = servers.ready(RabbitMQServer)
    vhost = new_name()
    rabbitmq.create_vhost(vhost)
    try:
        yield rabbitmq, rabbitmq.vhost_url(vhost)
    finally:
        servers.ready(RabbitMQServer).delete_vhost(vhost)
