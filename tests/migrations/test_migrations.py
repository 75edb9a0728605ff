"""The migrations create the schema of the models. They can run repeatedly and concurrently."""

import re
import threading
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import ClauseElement, inspect

from celery_dynbeat.common.errors import SchemaError
from celery_dynbeat.db import VERSION_TABLE, alembic_upgrade, schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.indexes import METADATA
from tests.support.next_migration import downgrade_to, upgrade_to
from tests.support.suites import each_database

pytestmark = pytest.mark.empty_database


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    yield database
    database.dispose()


def reflected(database):
    """Return the columns, keys, checks and indexes of the tables, with their names."""
    inspector = inspect(database.engine)
    return {table: described(inspector, table) for table in sorted(METADATA.tables)}


def described(inspector, table):
    def by_name(items):
        return sorted((plain(item) for item in items), key=lambda item: str(item["name"]))

    return {
        # Sorted by name: a later migration adds a column at the end of a table.
        "columns": by_name(inspector.get_columns(table)),
        "primary key": plain(inspector.get_pk_constraint(table)),
        "foreign keys": by_name(inspector.get_foreign_keys(table)),
        "unique": by_name(inspector.get_unique_constraints(table)),
        "checks": by_name(inspector.get_check_constraints(table)),
        "indexes": by_name(inspector.get_indexes(table)),
        "options": plain(inspector.get_table_options(table)),
    }


def plain(described):
    # Compare types and predicates by their text, not by identity.
    if isinstance(described, dict):
        return {key: plain(value) for key, value in described.items()}
    return str(described) if isinstance(described, ClauseElement) else repr(described)


@each_database
def test_models_and_migrations_create_the_same_schema(database):
    schema.upgrade(database)
    migrated = reflected(database)
    with database.engine.begin() as connection:
        METADATA.drop_all(connection)
        METADATA.create_all(connection)

    assert reflected(database) == migrated
    assert migrated["dynbeat_schedule"]["unique"]


@each_database
def test_an_upgrade_of_current_tables_changes_nothing(database):
    schema.upgrade(database)
    before = reflected(database)

    schema.upgrade(database)

    assert reflected(database) == before
    assert schema.check(database) == schema.head()


@each_database
def test_concurrent_upgrades_run_one_after_the_other(database_url):
    databases, failures = [Database(database_url) for _ in range(2)], []
    together = threading.Barrier(2)

    def upgrade(database):
        together.wait(10)
        try:
            schema.upgrade(database)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    threads = [threading.Thread(target=upgrade, args=(made,)) for made in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    assert schema.check(databases[0]) == schema.head()
    for made in databases:
        made.dispose()


@each_database
def test_the_error_for_missing_tables_names_the_fix(database):
    with pytest.raises(SchemaError, match="dynbeat schema upgrade"):
        schema.check(database)


@pytest.mark.parametrize("revision", ["0000", "9999"])
@each_database
def test_older_tables_raise_an_error_and_newer_tables_are_accepted(database, revision):
    schema.upgrade(database)
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'",
        )

    if revision == "0000":
        with pytest.raises(SchemaError, match="0000"):
            schema.check(database)
    else:
        schema.upgrade(database)
        assert schema.check(database) == revision


def test_the_needed_revision_is_that_of_the_newest_migration():
    script = ScriptDirectory.from_config(alembic_upgrade.configuration())

    assert schema.head() == script.get_current_head()


@pytest.mark.parametrize("page", ["tutorial", "how-to/health"])
def test_the_outputs_of_a_page_name_the_newest_migration(page):
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()

    shown = re.findall(r"(?:schema|at revision) (\d{4})\b", text)

    assert set(shown) == {schema.head()}


@each_database
def test_the_next_migration_keeps_the_rows(database, next_revision):
    upgrade_to(database, "0001")
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO dynbeat_schedule (id, name, task, trigger_kind, trigger_spec)"
            " VALUES (7, 'old', 't', 'every', 'PT1M')"
        )
        connection.exec_driver_sql(
            "INSERT INTO dynbeat_run (id, schedule_id, owner, name, task, fire_at, status)"
            " VALUES ('019e0000-0000-7000-8000-000000000001', 7, '', 'old', 't',"
            " '2026-11-21 09:00:00', 'sent')"
        )

    schema.upgrade(database)

    assert schema.check(database) == next_revision
    with database.engine.connect() as connection:
        query = "SELECT r.schedule_id, s.colour FROM dynbeat_run r, dynbeat_schedule s"
        assert connection.exec_driver_sql(query).all() == [(7, "100% red")]


@each_database
def test_a_downgrade_restores_the_earlier_schema_and_keeps_the_rows(database, next_revision):
    upgrade_to(database, "0001")
    tables, before = sorted(inspect(database.engine).get_table_names()), reflected(database)
    schema.upgrade(database)
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO dynbeat_schedule (name, task, trigger_kind, trigger_spec, colour)"
            " VALUES ('new', 't', 'every', 'PT1M', 'blue')"
        )

    downgrade_to(database, "0001")

    assert sorted(inspect(database.engine).get_table_names()) == tables
    assert reflected(database) == before
    with pytest.raises(SchemaError, match=f"at revision 0001, but .* needs {next_revision}"):
        schema.check(database)
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT name FROM dynbeat_schedule").all() == [("new",)]


@each_database
def test_a_downgrade_to_the_base_drops_all_tables_of_the_package(database):
    schema.upgrade(database)

    downgrade_to(database, "base")

    assert set(inspect(database.engine).get_table_names()) == {VERSION_TABLE}
    with pytest.raises(SchemaError):
        schema.check(database)


@each_database
def test_an_upgrade_keeps_the_tables_of_the_application(database):
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE theirs (id INTEGER)")

    schema.upgrade(database)

    assert "theirs" in inspect(database.engine).get_table_names()
