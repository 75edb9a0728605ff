"""Fixtures of servers, and of the database and broker of one test.

A server starts when the first test needs it, once per process of pytest-xdist. If its environment
variable is set, that server is used instead. Shared servers are never killed: a fault test gets its
own from ``own_server``.

A database has the tables of this version and no rows, unless its test is marked
``empty_database``. Later tests use the databases of servers again.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import kombu
import pytest
import redis
from kombu.transport import memory

from tests.support import templates
from tests.support.database_pools import MariaDBPool, PostgreSQLPool
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
    mariadb_or_mysql,
)
from tests.support.templates import MariaDBTemplate

S = TypeVar("S", bound=Server)


@dataclass(frozen=True, slots=True)
class GivenServer:
    """A server of the environment, which the tests neither start nor stop."""

    url: str


def service_is_missing(reason: str) -> NoReturn:
    """Skip the test on a developer's machine; fail it with ``CI`` set, where a skip hides a gap."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def started(stack: ExitStack, kind: type[S]) -> S:
    """Start a server that ends with ``stack``. If it is not installed, skip or fail the test."""
    try:
        server = kind()
    except ServerMissingError as error:
        service_is_missing(str(error))
    stack.enter_context(server)
    return server


@pytest.fixture(autouse=True)
def empty_memory_broker() -> None:
    """Delete the messages of earlier tests: ``memory://`` is one broker for the whole process."""
    memory.Channel.queues.clear()


def given_or_started(variable: str, kind: type[S]) -> Iterator[GivenServer | S]:
    """Yield the server of the environment variable, or start one."""
    if url := os.environ.get(variable):
        yield GivenServer(url)
        return
    with ExitStack() as stack:
        yield started(stack, kind)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[GivenServer | PostgreSQLServer]:
    """Yield the shared PostgreSQL server. The account of its URL can create databases."""
    yield from given_or_started("DYNBEAT_TEST_POSTGRESQL_URL", PostgreSQLServer)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[GivenServer | MariaDBServer]:
    """Yield the shared server of MariaDB, or of MySQL if the environment selects it."""
    yield from given_or_started("DYNBEAT_TEST_MYSQL_URL", mariadb_or_mysql())


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
    """Start servers for this test only, as in ``own_server(PostgreSQLServer).kill()``."""
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


@pytest.fixture(scope="session")
def postgresql_pool(
    postgresql_server: GivenServer | PostgreSQLServer, postgresql_template: str
) -> Iterator[PostgreSQLPool]:
    """Yield PostgreSQL databases that have the tables."""
    pool = PostgreSQLPool(postgresql_server.url, postgresql_template)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def mariadb_pool(
    mariadb_server: GivenServer | MariaDBServer, mariadb_template: MariaDBTemplate
) -> Iterator[MariaDBPool]:
    """Yield MariaDB databases that have the tables."""
    pool = MariaDBPool(mariadb_server.url, mariadb_template)
    yield pool
    pool.close()


@pytest.fixture
def postgresql_url(
    request: pytest.FixtureRequest, postgresql_server: GivenServer | PostgreSQLServer
) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a PostgreSQL database without rows."""
    pool = with_tables(request, "postgresql_pool")
    with pool.database() if pool else new_postgresql_database(postgresql_server.url) as url:
        yield url


@pytest.fixture
def mariadb_url(
    request: pytest.FixtureRequest, mariadb_server: GivenServer | MariaDBServer
) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a MariaDB database without rows."""
    pool = with_tables(request, "mariadb_pool")
    with pool.database() if pool else new_mariadb_database(mariadb_server.url) as url:
        yield url


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a SQLite file; one without tables does not exist yet."""
    with new_sqlite_database(tmp_path, with_tables(request, "sqlite_template")) as url:
        yield url


def with_tables(request: pytest.FixtureRequest, fixture: str) -> Any:
    """Return the fixture; None for a test that is marked ``empty_database``."""
    if request.node.get_closest_marker("empty_database"):
        return None
    return request.getfixturevalue(fixture)


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Return the SQLAlchemy URL of a new database, on SQLite unless ``each_database`` is set."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def redis_url(redis_server: GivenServer | RedisServer) -> str:
    """Return the kombu URL of an empty Redis database. A database of the environment is flushed."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushdb()
    client.close()
    return redis_server.url


@pytest.fixture
def amqp_url(rabbitmq_server: GivenServer | RabbitMQServer) -> Iterator[str]:
    """Yield the kombu URL of a new virtual host."""
    with virtual_host(rabbitmq_server) as url:
        yield url


@contextmanager
def virtual_host(broker: GivenServer | RabbitMQServer) -> Iterator[str]:
    """Yield the kombu URL of a new virtual host.

    A broker of the environment offers only the virtual host of its URL. There the default queue is
    deleted only, so a test must choose unused names for other queues.
    """
    if isinstance(broker, RabbitMQServer):
        name = new_name()
        broker.create_vhost(name)
        yield broker.vhost_url(name)
        broker.delete_vhost(name)
    else:
        with kombu.Connection(broker.url) as connection:
            connection.default_channel.queue_delete("celery")
        yield broker.url


def redis_database(server: GivenServer | RedisServer, number: int) -> str:
    """Return the kombu URL of a numbered Redis database, which it empties.

    A fixture that several tests share needs a separate number: ``redis_url`` empties its database.
    """
    url = f"{server.url.rpartition('/')[0]}/{number}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url
