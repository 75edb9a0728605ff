"""Several applications share a database: by a schema, by a prefix of the tables, or by both."""

import pytest
from celery import Celery
from sqlalchemy import create_engine, inspect, make_url, text

from celery_dynbeat import ConfigurationError, Dynbeat
from celery_dynbeat.common.errors import SchemaError
from celery_dynbeat.db import MAX_IDENTIFIER, PREFIX, TableNames
from celery_dynbeat.db.indexes import METADATA
from celery_dynbeat.db.models import use_names
from tests.support.applications import application
from tests.support.databases import new_schema
from tests.support.named_tables import exercise
from tests.support.suites import each_database

pytestmark = pytest.mark.empty_database

SHOP = {"dynbeat_alembic_version", *METADATA.tables}
BILLING = {name.replace(PREFIX, "billing_") for name in SHOP}


@pytest.fixture
def connection(database_url):
    engine = create_engine(database_url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def tables(connection, schema=None):
    return set(inspect(connection).get_table_names(schema))


def rows(connection, table):
    return connection.scalar(text(f"SELECT count(*) FROM {table}"))


@each_database
def test_applications_with_other_names_share_a_database(connection, database_url):
    shop = exercise(database_url, "shop", {})
    billing = exercise(database_url, "billing", {"table_prefix": "billing_"})

    assert billing == shop
    assert tables(connection) == SHOP | BILLING
    shop_runs = rows(connection, "dynbeat_run")
    assert rows(connection, "billing_run") == shop_runs > 0
    connection.rollback()
    if connection.dialect.name == "sqlite":
        return

    with new_schema(connection, f"billing-{make_url(database_url).database[-8:]}") as schema:
        both = {"schema": schema, "table_prefix": "billing_"}
        assert exercise(database_url, "billing", both) == shop
        assert tables(connection, schema) == BILLING
        connection.rollback()
    assert rows(connection, "dynbeat_run") == rows(connection, "billing_run") == shop_runs


@pytest.mark.parametrize(
    ("backend", "renamed"),
    [
        ("postgresql", "CREATE INDEX ix_b_run_worker ON b_run (worker)"),
        ("mysql", "CREATE INDEX ix_dynbeat_run_worker ON b_run (worker)"),
    ],
    ids=["postgresql", "mysql"],
)
def test_mysql_keeps_the_names_of_indexes_that_hints_name(backend, renamed):
    sql = "CREATE INDEX ix_dynbeat_run_worker ON dynbeat_run (worker)"

    assert TableNames(prefix="b_").rename(sql, backend=backend) == renamed


def test_a_schema_is_not_renamed():
    names = TableNames(schema="dynbeat_x", prefix="b_")
    sql = "UPDATE dynbeat_x.b_alembic_version SET version_num='2'; DROP TABLE dynbeat_x"

    renamed = names.rename(sql, backend="postgresql")

    assert renamed == "UPDATE dynbeat_x.b_alembic_version SET version_num='2'; DROP TABLE b_x"


@each_database
def test_a_schema_that_is_missing_is_named(other_names, database_url):
    if database_url.startswith("sqlite"):
        rule, error = "SQLite has no schemas; set dynbeat_table_prefix", ConfigurationError
    else:
        rule, error = "dynbeat_schema = 'nowhere' does not exist", SchemaError
    other_names(schema="nowhere")

    with (
        application(database_url, schema="nowhere") as dynbeat,
        pytest.raises(error, match=rule),
    ):
        dynbeat.context.prepare()


def test_one_process_uses_one_set_of_tables(sqlite_url):
    use_names(TableNames())
    app = Celery("billing", set_as_current=False)
    app.conf.update(dynbeat_database_url=sqlite_url, dynbeat_table_prefix="other_")

    with pytest.raises(ConfigurationError, match="'other_': this process uses None and 'dynbeat_'"):
        _ = Dynbeat(app).context.database


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("table_prefix", "Billing_", "up to 20 lower-case letters"),
        ("table_prefix", "dynbeat_b_", "not with 'dynbeat_'"),
        ("table_prefix", "b" * 21, "up to 20"),
        ("table_prefix", 'b"; DROP', "begin with a letter"),
        ("schema", 'b"; DROP', "the name of a schema"),
        ("schema", "", "the name of a schema"),
    ],
    ids=["upper-case", "default-prefix", "long", "injection", "schema-injection", "no-schema"],
)
def test_an_invalid_name_is_refused_with_its_rule(setting, value, rule):
    app = Celery("billing", set_as_current=False)
    app.conf[f"dynbeat_{setting}"] = value

    with pytest.raises(ConfigurationError, match=rule):
        _ = Dynbeat(app).context.settings


def test_no_identifier_exceeds_the_limit_with_the_longest_prefix():
    identifiers = [
        str(name)
        for table in METADATA.tables.values()
        for name in (
            table.name,
            *(index.name for index in table.indexes),
            *(constraint.name for constraint in table.constraints),
        )
    ]

    longest = max(identifiers, key=len).replace(PREFIX, "b" * 20)

    assert len(longest) <= MAX_IDENTIFIER


def test_other_tables_have_another_channel():
    channels = {
        TableNames(schema, prefix).channel
        for schema in (None, "billing", "s" * 63)
        for prefix in (PREFIX, "billing_")
    }

    assert len(channels) == 6
    assert TableNames().channel == "dynbeat_change"
    assert max(map(len, channels)) <= MAX_IDENTIFIER


def test_an_error_of_missing_tables_names_their_prefix(other_names, sqlite_url):
    other_names(prefix="billing_")
    app = Celery("billing", set_as_current=False)
    app.conf.dynbeat_database_url = sqlite_url
    app.conf.update(dynbeat_table_prefix="billing_", dynbeat_create_tables=False)
    dynbeat = Dynbeat(app)

    with pytest.raises(SchemaError, match="with dynbeat_table_prefix = 'billing_': run"):
        dynbeat.schedules.list()
    dynbeat.context.database.dispose()
