"""An application's own ``alembic revision --autogenerate`` ignores the package's tables."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Table, create_engine

from celery_dynbeat.alembic import excluding, include_name
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database
from tests.support.suites import each_database

pytestmark = pytest.mark.empty_database


def proposed(url, **options):
    """Return the changes that Alembic proposes for an application with one missing table."""
    metadata = MetaData()
    Table("author", metadata, Column("id", Integer, primary_key=True))
    database = Database(url)
    schema.upgrade(database)
    database.engine.dispose()
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        changes = compare_metadata(context, metadata)
    engine.dispose()
    return {(change[0], change[1].name) for change in changes}


def test_without_the_filter_alembic_drops_the_packages_tables(sqlite_url):
    assert ("remove_table", "dynbeat_schedule") in proposed(sqlite_url)


@each_database
def test_with_the_filter_only_the_applications_own_tables_are_compared(database_url):
    assert proposed(database_url, include_name=include_name) == {("add_table", "author")}


def test_the_filter_for_another_prefix_excludes_only_tables_with_it():
    include_billing = excluding("billing_")

    assert not include_billing("billing_run", "table", {"schema_name": None})
    assert include_billing("dynbeat_run", "table", {"schema_name": None})
    assert include_billing("billing_run", "schema", {})
    assert include_billing(None, "schema", {})
