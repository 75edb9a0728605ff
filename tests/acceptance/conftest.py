"""Installations on different combinations of database and broker."""

import warnings

import kombu
import pytest
from sqlalchemy.exc import SADeprecationWarning

from tests.support.databases import new_postgresql_database
from tests.support.sites import site

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
    url = f"sqla+sqlite:///{tmp_path / 'broker.sqlite3'}"
    # Two processes that create kombu's tables at the same time fail.
    with kombu.Connection(url) as connection, warnings.catch_warnings():
        warnings.simplefilter("ignore", SADeprecationWarning)  # kombu's models, not ours
        connection.default_channel.queue_declare("celery")
        connection.default_channel.session.get_bind().dispose()
    return url


@pytest.fixture(params=COMBINATIONS)
def any_site(request, site_folder):
    """Return an installation on each combination in turn."""
    database, broker = COMBINATIONS[request.param]
    database_url, broker_url = map(request.getfixturevalue, (database, broker))
    with site(site_folder, database_url=database_url, broker_url=broker_url) as made:
        yield made


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
def running(pool, postgresql_server, redis_server, tmp_path_factory):
    """Return an installation whose beat and worker run for all tests of a module."""
    # Not the Redis database that other tests empty.
    broker_url = f"{redis_server.url.rpartition('/')[0]}/1"
    folder = tmp_path_factory.mktemp(pool)
    with (
        new_postgresql_database(postgresql_server.url) as url,
        site(folder, database_url=url, broker_url=broker_url) as made,
    ):
        made.beat().wait_for_log("beat started")
        made.worker(pool=pool).wait_for_log("ready.")
        yield made
