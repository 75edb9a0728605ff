"""Schemas whose names must be quoted: reserved words, upper-case letters, other characters."""

import re

import pytest
from sqlalchemy import NullPool, create_engine, inspect, make_url, text

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.errors import SchemaError
from celery_dynbeat.db import MAX_IDENTIFIER, PREFIX, TableNames, schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.indexes import METADATA
from celery_dynbeat.health.checks import DatabaseStatus, HealthReport, evaluate
from tests.support.applications import application
from tests.support.database_clients import execute_in_client, offline_url
from tests.support.databases import new_schema
from tests.support.named_run import make_a_run
from tests.support.next_migration import upgrade_to
from tests.support.servers import mariadb_or_mysql

pytestmark = pytest.mark.empty_database

NAMES = {
    "reserved": {"schema": "order"},
    "upper-case": {"schema": "Billing"},
    "characters": {"schema": "dynbeat_a-$b", "prefix": "dynbeats_"},
    "longest": {"schema": "S" * MAX_IDENTIFIER, "prefix": "b" * 20},
}


@pytest.fixture(params=["postgresql", "mariadb"])
def server_url(request):
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def chosen(request, server_url, other_names):
    """Yield names of the tables of this process, in a new schema."""
    with administrator(server_url) as connection, new_schema(connection, request.param["schema"]):
        other_names(**request.param)
        yield TableNames(**request.param)


def administrator(url):
    return create_engine(url, poolclass=NullPool).connect()


def with_names(url, names):
    return application(url, schema=names.schema, table_prefix=names.prefix)


def upgrade(url):
    database = Database(url)
    schema.upgrade(database)
    database.dispose()


def tables(url, schema=None):
    with administrator(url) as connection:
        return set(inspect(connection).get_table_names(schema))


def expected_tables(names):
    default = {TableNames().version_table, *METADATA.tables}
    return {names.of(name.removeprefix(PREFIX)) for name in default}


@pytest.mark.parametrize("name", ["order", "Billing"])
def test_beat_dispatches_from_a_schema_whose_name_is_quoted(server_url, name):
    with administrator(server_url) as connection, new_schema(connection, name):
        make_a_run(server_url, TableNames(name))

        assert tables(server_url, name) == expected_tables(TableNames())
        assert tables(server_url) == set()


def test_an_upgrade_makes_the_tables_in_a_schema_of_any_valid_name(server_url, chosen):
    upgrade(server_url)

    assert tables(server_url, chosen.schema) == expected_tables(chosen)
    assert tables(server_url) == set()


def test_the_next_migration_changes_the_tables_of_these_names(server_url, chosen, next_revision):
    database = Database(server_url)
    upgrade_to(database, "0001")

    assert schema.upgrade(database)

    assert schema.check(database) == next_revision
    added = {chosen.of("colour")}
    assert tables(server_url, chosen.schema) == expected_tables(chosen) | added
    assert tables(server_url) == set()
    database.dispose()


def test_a_client_executes_the_printed_statements(server_url, chosen):
    database = Database(offline_url(server_url))
    printed = schema.upgrade_sql(database, start="base")

    # PostgreSQL truncates a longer name with a NOTICE.
    assert "truncated" not in execute_in_client(database.engine.url, printed)
    assert schema.check(database) == schema.head()
    assert tables(server_url, chosen.schema) == expected_tables(chosen)
    assert tables(server_url) == set()
    database.dispose()


@pytest.mark.parametrize("name", ["order", "Billing", "a-b"])
def test_the_command_for_a_missing_schema_can_be_executed(server_url, other_names, name):
    other_names(schema=name)
    names = TableNames(schema=name)
    with with_names(server_url, names) as dynbeat, pytest.raises(SchemaError) as error:
        dynbeat.context.prepare()

    command = re.search(r"CREATE SCHEMA \S+", str(error.value))[0]
    with administrator(server_url) as connection:
        connection.execute(text(command))
        connection.commit()
        try:
            upgrade(server_url)
            assert tables(server_url, name) == expected_tables(names)
        finally:
            connection.execute(text(command.replace("CREATE", "DROP") + cascade(connection)))
            connection.commit()


def cascade(connection):
    return " CASCADE" if connection.dialect.name == "postgresql" else ""


def test_a_schema_that_postgresql_reserves_is_refused(postgresql_url, other_names):
    other_names(schema="pg_billing")

    with (
        with_names(postgresql_url, TableNames("pg_billing")) as dynbeat,
        pytest.raises(ConfigurationError, match="PostgreSQL reserves"),
    ):
        dynbeat.context.prepare()


def test_the_url_of_mariadb_needs_no_database(mariadb_url, other_names):
    url = make_url(mariadb_url).set(database="").render_as_string(hide_password=False)
    names = TableNames("test_billing")
    other_names(schema=names.schema)

    with administrator(mariadb_url) as connection, new_schema(connection, names.schema):
        upgrade(url)

        assert tables(mariadb_url, names.schema) == expected_tables(names)


class CaseInsensitiveServer(mariadb_or_mysql()):
    """A server that stores names in lower case, as on Windows."""

    options = ("--lower-case-table-names=1",)


def test_mariadb_may_store_names_in_lower_case(own_server):
    url = make_url(own_server(CaseInsensitiveServer).url).set(database="test")
    shown = url.render_as_string(hide_password=False)
    with administrator(url.set(database="mysql")) as connection:
        connection.execute(text("CREATE DATABASE test"))
        with new_schema(connection, "Billing"):
            make_a_run(shown, TableNames("Billing"))

            assert tables(shown, "billing") == expected_tables(TableNames())


def test_mariadb_tells_upper_case_from_lower_case(mariadb_url, other_names):
    other_names(schema="Billing")

    with (
        administrator(mariadb_url) as connection,
        new_schema(connection, "billing"),
        with_names(mariadb_url, TableNames("Billing")) as dynbeat,
        pytest.raises(SchemaError, match="'Billing' does not exist"),
    ):
        dynbeat.context.prepare()


def test_tables_outside_the_search_path_are_found_and_named(postgresql_url):
    upgrade(postgresql_url)
    moved = "options=-c%20search_path%3Dpg_temp"
    database = Database(f"{postgresql_url}{'&' if '?' in postgresql_url else '?'}{moved}")

    with pytest.raises(SchemaError) as raised:
        schema.check(database)
    database.dispose()
    for words in ("search path pg_temp", "schema 'public' has them: set dynbeat_schema = 'public'"):
        assert words in str(raised.value)
    [problem] = evaluate(
        HealthReport(database=DatabaseStatus(url="u", schema_error=str(raised.value)))
    ).problems[:1]
    assert problem.hint.startswith("set dynbeat_schema = 'public'")
