"""Transactions of the package are READ COMMITTED with any default of the server."""

from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, make_url, text

from celery_dynbeat.db.engine import Database
from tests.support.databases import administration
from tests.support.servers.mysql import is_mysql

pytestmark = pytest.mark.empty_database

SHOWN = {
    "postgresql": "SELECT current_setting('transaction_isolation')",
    "mariadb": "SELECT @@tx_isolation",
    "mysql": "SELECT @@transaction_isolation",
}
DEFAULT = "ALTER DATABASE {} SET default_transaction_isolation = '{}'"


def level(session):
    # The connection's: the dialect knows MariaDB after the first connection of its engine.
    dialect = session.connection().dialect
    kind = "mariadb" if dialect.name == "mysql" and not is_mysql(dialect) else dialect.name
    return session.scalar(text(SHOWN[kind])).lower().replace("-", " ")


@pytest.fixture
def serializable_url(postgresql_server, postgresql_url):
    """Return the URL of a database whose transactions are serializable by default."""
    with administration(postgresql_server.url) as connection:
        connection.execute(text(DEFAULT.format(make_url(postgresql_url).database, "serializable")))
    return postgresql_url


@pytest.mark.parametrize("whose", ["ours", "shared"])
@pytest.mark.parametrize("how", ["run", "run_autocommit", "read", "read_in_transaction"])
def test_transactions_are_read_committed_at_a_serializable_default(serializable_url, whose, how):
    shared = create_engine(serializable_url) if whose == "shared" else None
    database = Database(serializable_url, engine=shared)

    assert getattr(database, how)(level) == "read committed"

    if shared is not None:
        with shared.connect() as connection:
            assert level(connection_session(connection)) == "serializable"
        shared.dispose()
    database.dispose()


def connection_session(connection):
    return SimpleNamespace(scalar=connection.scalar, connection=lambda: connection)


@pytest.mark.parametrize("how", ["run", "run_autocommit", "read", "read_in_transaction"])
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_transactions_are_read_committed_at_the_servers_default(request, kind, how):
    database = Database(request.getfixturevalue(f"{kind}_url"))

    assert getattr(database, how)(level) == "read committed"

    database.dispose()
