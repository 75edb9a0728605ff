"""Start the servers of a benchmark, and create a new database for each site."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from celery import Celery
from sqlalchemy import make_url, text

from celery_dynbeat import Dynbeat
from tests.support.databases import administration, new_name
from tests.support.servers import (
    PostgreSQLServer,
    RabbitMQServer,
    RedisServer,
    Server,
    mariadb_or_mysql,
)

#: The first is the reference.
COMBINATIONS = (
    ("postgresql", "redis"),
    ("postgresql", "rabbitmq"),
    ("mariadb", "redis"),
    ("sqlite", "redis"),
)


@dataclass(frozen=True, slots=True)
class Site:
    """An empty database and an empty broker, with the settings of an application on them."""

    database_url: str
    broker_url: str

    def config(self, **settings: Any) -> dict[str, Any]:
        """Return the Celery configuration; ``settings`` override the defaults."""
        return {
            "broker_url": self.broker_url,
            "dynbeat_database_url": self.database_url,
            "dynbeat_create_tables": True,
            "broker_connection_retry_on_startup": True,
            **settings,
        }

    @contextmanager
    def application(self, **settings: Any) -> Iterator[Dynbeat]:
        """Yield the Dynbeat of an application with its tables; close its connections afterwards."""
        app = Celery("benchmark", set_as_current=False)
        app.conf.update(self.config(**settings))
        dynbeat = Dynbeat(app)
        dynbeat.context.prepare()
        try:
            yield dynbeat
        finally:
            dynbeat.context.database.dispose()
            app.close()


class MeasuredPostgreSQL(PostgreSQLServer):
    """PostgreSQL that can count statements, if pg_stat_statements is installed.

    Counting is off by default: ``benchmarks.statement_counts`` turns it on for one database.
    """

    def command(self) -> Sequence[str | Path]:
        """Return the command of the server; load pg_stat_statements if it is installed."""
        libraries = self._postgres.parents[1].glob("lib*/**/pg_stat_statements.*")
        if not any(libraries):
            return super().command()
        name = "pg_stat_statements"
        settings = (f"shared_preload_libraries={name}", f"{name}.track=none")
        return [*super().command(), *(part for each in settings for part in ("-c", each))]


class Services:
    """The servers of one combination; each starts at its first use.

    ``durable``: the database server waits for the disk in each commit, as in production.
    """

    def __init__(self, database: str, broker: str, *, durable: bool = True) -> None:
        self.database = database
        self.broker = broker
        self._durable = durable
        self._stack = ExitStack()
        self._servers: dict[type[Server], Server] = {}

    def __str__(self) -> str:
        return f"{self.database}-{self.broker}"

    def close(self) -> None:
        """Stop the servers."""
        self._stack.close()

    @contextmanager
    def site(self) -> Iterator[Site]:
        """Yield a new database and an empty broker; delete both afterwards."""
        with self._database() as database_url, self._broker() as broker_url:
            yield Site(database_url, broker_url)

    def _server(self, kind: type[Server]) -> Server:
        if kind not in self._servers:
            server = kind()
            server.durable = self._durable
            self._servers[kind] = self._stack.enter_context(server)
        return self._servers[kind]

    @contextmanager
    def _database(self) -> Iterator[str]:
        if self.database == "sqlite":
            with TemporaryDirectory(prefix="dynbeat-benchmark-") as folder:
                yield f"sqlite:///{Path(folder, 'benchmark.sqlite3')}"
            return
        server = self._server(_DATABASES[self.database])
        name = new_name()
        statements = (
            _postgresql_statements(name)
            if self.database == "postgresql"
            else _mariadb_statements(name)
        )
        with administration(server.url) as connection:
            connection.execute(text(statements[0]))
        try:
            url = make_url(server.url).set(database=name)
            yield url.render_as_string(hide_password=False)
        finally:
            with administration(server.url) as connection:
                connection.execute(text(statements[1]))

    @contextmanager
    def _broker(self) -> Iterator[str]:
        if self.broker == "redis":
            server = self._server(RedisServer)
            with redis.Redis.from_url(server.url) as client:
                client.flushall()
            yield server.url
            return
        rabbitmq = self._server(RabbitMQServer)
        assert isinstance(rabbitmq, RabbitMQServer)
        vhost = new_name()
        rabbitmq.create_vhost(vhost)
        try:
            yield rabbitmq.vhost_url(vhost)
        finally:
            rabbitmq.delete_vhost(vhost)


_DATABASES: Mapping[str, type[Server]] = {
    "postgresql": MeasuredPostgreSQL,
    "mariadb": mariadb_or_mysql(),
}


def _postgresql_statements(name: str) -> Sequence[str]:
    return f"CREATE DATABASE {name}", f"DROP DATABASE {name} WITH (FORCE)"


def _mariadb_statements(name: str) -> Sequence[str]:
    return f"CREATE DATABASE {name} CHARACTER SET utf8mb4", f"DROP DATABASE {name}"
