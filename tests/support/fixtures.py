"""The fixtures of servers, and of databases and brokers that belong to one test.

A server is started when the first test asks for it, once for each process of pytest-xdist. When its
variable is set, the server that it names is used instead. Shared servers are never killed; a fault
test takes its own from ``own_server``.

A new database has the tables of this version, unless its test is marked ``empty_database``.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import kombu
import pytest
import redis

from tests.support import templates
from tests.support.databases import (
    new_mariadb_database,
    new_name,
    new_postgresql_database,
    new_sqlite_database,
)
from tests.support.servers import (
    MariaDBServer,
    PostgreSQLServer,
    RabbitMQServer,
    RedisServer,
    Server,
    ServerMissingError,
)
from tests.support.templates import MariaDBTemplate

S = TypeVar("S", bound=Server)


@dataclass(frozen=True, slots=True)
class GivenServer:
    """A server that the environment names, and that is not ours to start or end."""

    url: str


def service_is_missing(reason: str) -> NoReturn:
    """Skip the test on a desk; fail it under ``CI``, where a skip would hide that nothing ran."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def started(stack: ExitStack, kind: type[S]) -> S:
    """Start a server that ends with ``stack``, or skip or fail the test when there is none."""
    try:
        server = kind()
    except ServerMissingError as error:
        service_is_missing(str(error))
    stack.enter_context(server)
    return server


def given_or_started(variable: str, kind: type[S]) -> Iterator[GivenServer | S]:
    """Yield the server that the variable names, or else one of our own."""
    if url := os.environ.get(variable):
        yield GivenServer(url)
        return
    with ExitStack() as stack:
        yield started(stack, kind)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[GivenServer | PostgreSQLServer]:
    """Yield the shared PostgreSQL server; the account of its URL may create databases."""
    yield from given_or_started("DYNBEAT_TEST_POSTGRESQL_URL", PostgreSQLServer)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[GivenServer | MariaDBServer]:
    """Yield the shared MariaDB server; the one that the environment names may be MySQL."""
    yield from given_or_started("DYNBEAT_TEST_MYSQL_URL", MariaDBServer)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[GivenServer | RedisServer]:
    """Yield the shared Redis server."""
    yield from given_or_started("DYNBEAT_TEST_REDIS_URL", RedisServer)


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[GivenServer | RabbitMQServer]:
    """Yield the shared RabbitMQ broker."""
    yield from given_or_started("DYNBEAT_TEST_AMQP_URL", RabbitMQServer)


@pytest.fixture
def own_server() -> Iterator[Callable[[type[S]], S]]:
    """Start servers for this test alone: ``own_server(PostgreSQLServer).kill()`` hurts nobody."""
    with ExitStack() as stack:
        yield lambda kind: started(stack, kind)


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: GivenServer | PostgreSQLServer) -> Iterator[str]:
    """Yield the name of a PostgreSQL database that has the tables."""
    with templates.postgresql_template(postgresql_server.url) as name:
        yield name


@pytest.fixture(scope="session")
def mariadb_template(mariadb_server: GivenServer | MariaDBServer) -> Iterator[MariaDBTemplate]:
    """Yield a MariaDB database that has the tables."""
    with templates.mariadb_template(mariadb_server.url) as template:
        yield template


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a SQLite file that has the tables."""
    with templates.sqlite_template(tmp_path_factory.mktemp("template")) as file:
        yield file


@pytest.fixture
def postgresql_url(
    request: pytest.FixtureRequest, postgresql_server: GivenServer | PostgreSQLServer
) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a new PostgreSQL database."""
    template = template_for(request, "postgresql")
    options = f"TEMPLATE {template}" if template else ""
    with new_postgresql_database(postgresql_server.url, options) as url:
        yield url


@pytest.fixture
def mariadb_url(
    request: pytest.FixtureRequest, mariadb_server: GivenServer | MariaDBServer
) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a new MariaDB database."""
    template = template_for(request, "mariadb")
    fill = template.fill if template else None
    with new_mariadb_database(mariadb_server.url, fill) as url:
        yield url


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a SQLite file; one without tables does not exist yet."""
    with new_sqlite_database(tmp_path, template_for(request, "sqlite")) as url:
        yield url


def template_for(request: pytest.FixtureRequest, kind: str) -> Any:
    """Return the template of the database; None for a test that is marked ``empty_database``."""
    if request.node.get_closest_marker("empty_database"):
        return None
    return request.getfixturevalue(f"{kind}_template")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Give the SQLAlchemy URL of a new database, on each kind of database in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def redis_url(redis_server: GivenServer | RedisServer) -> str:
    """Give the kombu URL of an empty Redis database; one that the environment names is emptied."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushdb()
    client.close()
    return redis_server.url


@pytest.fixture
def amqp_url(rabbitmq_server: GivenServer | RabbitMQServer) -> Iterator[str]:
    """Yield the kombu URL of a new virtual host.

    A broker that the environment names gives us the one virtual host of its URL; there only the
    default queue is removed, and a test has to choose unused names for others.
    """
    if isinstance(rabbitmq_server, RabbitMQServer):
        vhost = new_name()
        rabbitmq_server.create_vhost(vhost)
        yield rabbitmq_server.vhost_url(vhost)
        rabbitmq_server.delete_vhost(vhost)
    else:
        with kombu.Connection(rabbitmq_server.url) as connection:
            connection.default_channel.queue_delete("celery")
        yield rabbitmq_server.url
