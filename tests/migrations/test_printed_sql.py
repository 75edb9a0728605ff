"""A client of the database can execute the printed SQL of an upgrade."""

import pytest

from celery_dynbeat.common.errors import SchemaError
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database
from tests.migrations.test_migrations import reflected
from tests.support.database_clients import execute_in_client, offline_url
from tests.support.next_migration import downgrade_to, upgrade_to

pytestmark = pytest.mark.empty_database


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request):
    url = request.getfixturevalue(f"{request.param}_url")
    database = Database(offline_url(url))
    yield database
    database.dispose()


def migrated_by_client(database, sql):
    """Execute ``sql`` as an administrator would, and return the resulting schema."""
    execute_in_client(database.engine.url, sql)
    assert schema.check(database) == schema.head()
    return reflected(database)


def migrated_by_upgrade(database):
    """Drop the tables, upgrade, and return the resulting schema."""
    downgrade_to(database, "base")
    schema.upgrade(database)
    return reflected(database)


@pytest.mark.parametrize("start", ["base", None], ids=["offline", "connected"])
def test_the_printed_statements_create_the_tables(database, start):
    by_client = migrated_by_client(database, schema.upgrade_sql(database, start=start))

    assert by_client == migrated_by_upgrade(database)


@pytest.mark.parametrize("start", ["0001", None], ids=["offline", "connected"])
@pytest.mark.usefixtures("next_revision")
def test_the_printed_statements_migrate_older_tables(database, start):
    upgrade_to(database, "0001")

    printed = schema.upgrade_sql(database, start=start)

    assert "CREATE TABLE dynbeat_schedule" not in printed
    assert migrated_by_client(database, printed) == migrated_by_upgrade(database)


@pytest.mark.usefixtures("next_revision")
def test_a_connection_tells_mariadb_from_mysql(mariadb_url):
    database = Database(mariadb_url)
    upgrade_to(database, "0001")

    migrated_by_client(database, schema.upgrade_sql(database))
    database.dispose()


def test_without_a_start_the_database_is_only_read(database):
    schema.upgrade_sql(database)

    with pytest.raises(SchemaError, match="has no tables"):
        schema.check(database)
