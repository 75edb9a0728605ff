"""Installations on different combinations of database and broker.

A beat and a worker take two seconds to start. Tests that need only a usual beat and worker share
those of ``running`` or ``each_running``: each test makes its schedules, and deletes those that
would fire again.
"""

import warnings
from contextlib import ExitStack

import kombu
import pytest
from sqlalchemy.exc import SADeprecationWarning

from tests.support.databases import (
    new_mariadb_database,
    new_postgresql_database,
    new_sqlite_database,
)
from tests.support.fixtures import redis_database, virtual_host
from tests.support.sites import site

#: Not the Redis database that other tests empty.
REDIS_DATABASE = 1
COMBINATIONS = {
    "sqlite-sqlalchemy": ("sqlite_url", "broker_file_url"),
    "postgresql-redis": ("postgresql_url", "redis_url"),
    "postgresql-rabbitmq": ("postgresql_url", "amqp_url"),
    "mariadb-redis": ("mariadb_url", "redis_url"),
}


@pytest.fixture
def site_folder(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def broker_file_url(tmp_path):
    return new_broker_file(tmp_path)


def new_broker_file(folder):
    """Return the kombu URL of a file with kombu's tables."""
    url = f"sqla+sqlite:///{folder / 'broker.sqlite3'}"
    # Two processes that create kombu's tables at the same time fail.
    with kombu.Connection(url) as connection, warnings.catch_warnings():
        warnings.simplefilter("ignore", SADeprecationWarning)  # kombu's models, not ours
        connection.default_channel.queue_declare("celery")
        session = connection.default_channel.session
        # kombu leaves a transaction open. Its connection is closed only if the pool has it.
        session.close()
        session.get_bind().dispose()
    return url


@pytest.fixture
def redis_site(site_folder, postgresql_url, redis_url):
    """Return an installation on PostgreSQL and Redis; change its ``config`` before use."""
    with site(site_folder, database_url=postgresql_url, broker_url=redis_url) as made:
        yield made


@pytest.fixture
def rabbitmq_site(site_folder, postgresql_url, amqp_url):
    """Return an installation on PostgreSQL and RabbitMQ."""
    with site(site_folder, database_url=postgresql_url, broker_url=amqp_url) as made:
        yield made


@pytest.fixture
def file_site(site_folder, sqlite_url, broker_file_url):
    """Return an installation on two files, without a server."""
    with site(site_folder, database_url=sqlite_url, broker_url=broker_file_url) as made:
        yield made


@pytest.fixture(scope="module")
def pool():
    """Return the pool of the worker of ``running``. A module can override this fixture."""
    return "prefork"


@pytest.fixture(scope="module")
def running(pool, new_urls, tmp_path_factory):
    """Return an installation whose beat and worker run for all tests of a module."""
    urls = new_urls("postgresql", "redis")
    with site(tmp_path_factory.mktemp(pool), **urls) as made:
        made.beat().wait_for_log("beat started")
        made.worker(pool=pool).wait_for_log("ready.")
        yield made


@pytest.fixture(scope="module", params=COMBINATIONS)
def each_running(request, new_urls, tmp_path_factory):
    """Return an installation on each combination, whose beat and worker run for a module."""
    urls = new_urls(*request.param.split("-"))
    with site(tmp_path_factory.mktemp(request.param), **urls) as made:
        made.beat().wait_for_log("beat started")
        made.worker().wait_for_log("ready.")
        yield made


@pytest.fixture(scope="module")
def new_urls(request, tmp_path_factory):
    """Make databases and brokers for a module: ``new_urls("postgresql", "redis")``.

    The databases have no tables. A module may use one Redis database at a time.
    """

    def database(kind, folder):
        if kind == "sqlite":
            return new_sqlite_database(folder)
        create = new_postgresql_database if kind == "postgresql" else new_mariadb_database
        return create(request.getfixturevalue(f"{kind}_server").url)

    def broker(kind, folder, stack):
        if kind == "sqlalchemy":
            return new_broker_file(folder)
        server = request.getfixturevalue(f"{kind}_server")
        if kind == "redis":
            return redis_database(server, REDIS_DATABASE)
        return stack.enter_context(virtual_host(server))

    with ExitStack() as stack:

        def make(database_kind, broker_kind):
            folder = tmp_path_factory.mktemp("databases")
            return {
                "database_url": stack.enter_context(database(database_kind, folder)),
                "broker_url": broker(broker_kind, folder, stack),
            }

        yield make
