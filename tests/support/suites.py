"""The tests that `make test` runs. `make test-all` runs the others as well, which are marked full.

A contributor waits for `make test`: the unit tests, the contracts on SQLite, those of beat, worker
and store on PostgreSQL, and a few tests with real processes and a browser, which are marked quick.
"""

from pathlib import PurePath

import pytest

#: Folders below tests/ whose tests run in `make test`, with the servers that they may use there.
QUICK_FOLDERS: dict[str, frozenset[str]] = {
    "unit": frozenset({"postgresql", "mariadb", "redis", "rabbitmq", "own"}),
    "contract/alerts": frozenset(),
    "contract/beat": frozenset({"postgresql"}),
    "contract/cli": frozenset(),
    "contract/api": frozenset(),
    "contract/db": frozenset({"postgresql"}),
    "contract/flower": frozenset(),
    "contract/insights": frozenset(),
    "contract/notify": frozenset({"postgresql", "redis"}),
    "contract/process": frozenset(),
    "contract/signals": frozenset(),
    "contract/store": frozenset({"postgresql"}),
    "contract/worker": frozenset({"postgresql"}),
    "migrations": frozenset(),
    "security": frozenset(),
}
#: A test uses a server if it has one of the fixtures, or a parameter names the server or a fixture.
SERVERS = {
    "postgresql": {"postgresql_url", "postgresql_server"},
    "mariadb": {"mariadb_url", "mariadb_server"},
    "redis": {"redis_url", "redis_server"},
    "rabbitmq": {"amqp_url", "rabbitmq_server"},
    "own": {"own_server"},
}
TESTS = PurePath(__file__).parents[1]
UNIT = TESTS / "unit"

#: For a test of statements, locks, isolation, types of columns or encodings.
#: No database affects what the other tests assert: they run on SQLite alone.
each_database = pytest.mark.parametrize(
    "database_url", ["sqlite", "postgresql", "mariadb"], indirect=True
)


def mark(item: pytest.Item) -> None:
    """Mark a test ``full`` if `make test` does not run it, and ``mysql`` if it runs on MariaDB.

    Raises pytest.UsageError for a unit test: `make test-rest` does not collect its folder.
    """
    if not is_quick(item):
        if item.path.is_relative_to(UNIT):
            message = f"{item.nodeid}: `make test` runs each unit test; move a slow one to contract"
            raise pytest.UsageError(message)
        item.add_marker("full")
    if "mariadb" in servers_of(item):
        item.add_marker("mysql")


def is_quick(item: pytest.Item) -> bool:
    """Return whether `make test` runs the test."""
    if marker := item.get_closest_marker("quick"):
        return not marker.args or item.name.partition("[")[2].rstrip("]") in marker.args
    if item.get_closest_marker("slow"):
        return False
    file = item.path.relative_to(TESTS).as_posix()
    servers = servers_of(item)
    return any(
        file.startswith(f"{folder}/") and servers <= usable
        for folder, usable in QUICK_FOLDERS.items()
    )


def servers_of(item: pytest.Item) -> set[str]:
    """Return the names of the servers that the test uses."""
    parameters = item.name.partition("[")[2].rstrip("]").split("-")
    named = {*parameters, *getattr(item, "fixturenames", ())}
    return {
        server for server, fixtures in SERVERS.items() if not named.isdisjoint({server, *fixtures})
    }
