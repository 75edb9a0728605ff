"""Clusters of database servers, and installations whose processes use different servers."""

from contextlib import ExitStack

import pytest
from sqlalchemy import make_url, text

from tests.faults.conftest import QUICK, QUICK_CONSTANTS
from tests.support.databases import administration, new_name
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.fixtures import service_is_missing, started
from tests.support.servers import RedisServer, ServerMissingError
from tests.support.servers.galera import galera_cluster
from tests.support.servers.haproxy import HAProxyServer
from tests.support.sites import site
from tests.support.workload import Workload


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "hosts":
            item.add_marker(pytest.mark.hosts)


@pytest.fixture(scope="session")
def galera():
    """Yield the servers of a cluster. A test may kill them: the next test has them again."""
    with ExitStack() as stack:
        try:
            servers = stack.enter_context(galera_cluster())
        except ServerMissingError as error:
            service_is_missing(str(error))
        yield servers


@pytest.fixture
def servers(galera):
    """Return the running servers of the cluster."""
    for server in galera:
        server.thaw()
        server.start()
    return galera


@pytest.fixture
def database(servers):
    """Yield the name of a new database in the cluster, and of the account that owns it."""
    name = new_name()
    with administration(servers[-1].url) as connection:
        connection.execute(text(f"CREATE DATABASE {name} CHARACTER SET utf8mb4"))
        connection.execute(text(f"CREATE USER {name}@'127.0.0.1'"))
        connection.execute(text(f"GRANT ALL ON {name}.* TO {name}@'127.0.0.1'"))
    yield name
    with administration(servers[-1].url) as connection:
        connection.execute(text(f"DROP DATABASE {name}"))
        connection.execute(text(f"DROP USER {name}@'127.0.0.1'"))


@pytest.fixture
def url_of(database):
    """Return a function: the URL of the test's database on a server or through a proxy."""

    def url_of(server):
        url = make_url(server.url).set(username=database, database=database)
        return url.set(query={"charset": "utf8mb4"}).render_as_string(hide_password=False)

    return url_of


@pytest.fixture
def proxy(servers):
    """Yield a proxy that sends all clients to the first server, or after its end to the next."""
    try:
        haproxy = HAProxyServer()
    except ServerMissingError as error:
        service_is_missing(str(error))
    haproxy.servers = servers
    with haproxy:
        yield haproxy


@pytest.fixture
def redis_broker():
    """Yield the URL of a new Redis server."""
    with ExitStack() as stack:
        yield started(stack, RedisServer).url


@pytest.fixture
def site_on(redis_broker, tmp_path):
    """Return a function that makes an installation whose application uses the given database."""
    with ExitStack() as stack:

        def site_on(database_url, **settings):
            folder = tmp_path / "site"
            folder.mkdir()
            urls = {"database_url": database_url, "broker_url": redis_broker}
            made = stack.enter_context(site(folder, **urls, **{**QUICK, **settings}))
            made.constants.update(QUICK_CONSTANTS)
            return made

        yield site_on


@pytest.fixture
def workload_of(record_property):
    """Return a function that makes the workload of an installation."""
    return lambda made: Workload(
        made,
        label="galera-redis",
        publish=lambda line: record_property(SUMMARY_PROPERTY, line),
    )
