"""Fixtures of a real Flower, and of a real browser that looks at it.

The installation and its Flower processes are shared by the tests of a module. Each test has its own
browser.
"""

from contextlib import ExitStack

import pytest

from tests.support.browsers import chromium
from tests.support.databases import new_postgresql_database
from tests.support.fixtures import redis_database, service_is_missing
from tests.support.flower_server import FlowerServer
from tests.support.pinned_packages import PackageMissingError
from tests.support.servers import ServerMissingError
from tests.support.sites import site

# Not a Redis database that other tests use.
REDIS_DATABASE = 2


@pytest.fixture(scope="module")
def redis_database_url(redis_server):
    return redis_database(redis_server, REDIS_DATABASE)


@pytest.fixture(scope="module")
def page_site(postgresql_server, redis_database_url, postgresql_template, tmp_path_factory):
    """Return an installation with a beat and a worker, for all tests of a module."""
    template = f"TEMPLATE {postgresql_template}"
    with (
        new_postgresql_database(postgresql_server.url, template) as url,
        site(
            tmp_path_factory.mktemp("site"), database_url=url, broker_url=redis_database_url
        ) as made,
    ):
        beat, worker = made.beat(), made.worker("-E", pool="threads")
        beat.wait_for_log("beat started")
        worker.wait_for_log("ready.")
        yield made


@pytest.fixture(scope="module")
def flower_with(page_site):
    """Start Flower with options, as in ``flower_with(basic_auth="alice:secret")``.

    The same options return the same Flower.
    """
    with ExitStack() as stack:
        started = {}

        def start(*arguments, **options):
            key = (arguments, tuple(sorted(options.items())))
            if key not in started:
                started[key] = stack.enter_context(new_flower(page_site, *arguments, **options))
            return started[key]

        yield start


def new_flower(made, *arguments, **options):
    try:
        return FlowerServer(made, *arguments, **options)
    except PackageMissingError as error:
        service_is_missing(str(error))


@pytest.fixture(scope="module")
def flower(flower_with):
    """Return a Flower without authentication."""
    return flower_with()


@pytest.fixture
def browser(tmp_path):
    """Return a browser with an empty profile. A page that logs an error fails the test."""
    try:
        with chromium(tmp_path) as made:
            yield made
            assert made.console_errors() == []
    except (ServerMissingError, PackageMissingError) as error:
        service_is_missing(str(error))
