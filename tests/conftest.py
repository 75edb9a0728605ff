"""Configuration of all tests. The fixtures are in ``tests.support.fixtures``."""

import os
import signal

import pytest
from celery.contrib.pytest import celery_worker as in_process_worker  # noqa: F401 - a fixture
from hypothesis import HealthCheck, settings

from tests.support.servers.mysql import MYSQLD_VARIABLE
from tests.support.suites import mark

# PyMySQL loads the certificates of the machine for each connection, which takes 40 ms, and offers
# TLS. No server of the tests accepts it.
os.environ["SSL_CERT_FILE"] = os.devnull

# A shell ignores SIGINT in a background command, and the programs of the tests would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.support.fixtures",
    "tests.support.fault_summary",
    "tests.support.next_migration",
]

# No deadline: tests run in parallel, so the time of one example depends on the others.
settings.register_profile(
    "dynbeat",
    settings.get_profile("ci" if os.environ.get("CI") else "default"),
    deadline=None,
    # Both limits measure time, and fail on a busy machine.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dynbeat")


def pytest_report_header() -> str | None:
    """Say that MySQL is in place of MariaDB: the names of the tests keep ``mariadb``."""
    mysqld = os.environ.get(MYSQLD_VARIABLE)
    return f"mariadb: MySQL, {mysqld}" if mysqld else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test` does not run, and let the longest tests run first.

    The longest have the longest time limits of their own. At the end no process of pytest-xdist
    waits for another's.
    """
    for item in items:
        mark(item)
    items.sort(key=_shortness)


def _shortness(item: pytest.Item) -> tuple[int, bool]:
    limit = item.get_closest_marker("timeout")
    return -int(limit.args[0]) if limit else 0, item.get_closest_marker("slow") is None
