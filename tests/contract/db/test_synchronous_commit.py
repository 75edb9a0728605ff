"""A commit waits for the disk, whatever the default of the server or the role is."""

import pytest
from sqlalchemy import create_engine, text

from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from tests.support.applications import application


@pytest.fixture(params=["off", "remote_apply"])
def default(request, postgresql_url):
    engine = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(
            text(f'ALTER DATABASE "{name}" SET synchronous_commit = {request.param}')
        )
    engine.dispose()
    return request.param


def read(connection):
    return connection.scalar(text("SELECT current_setting('synchronous_commit')"))


def warnings_of(dynbeat):
    dynbeat.context.prepare()
    report = collect_health(dynbeat.context.app)
    return [warning.code for warning in evaluate(report).warnings]


def test_the_connections_of_the_package_turn_only_off_into_on(postgresql_url, default):
    with application(postgresql_url) as dynbeat:
        with dynbeat.context.database.engine.connect() as connection:
            assert read(connection) == ("on" if default == "off" else default)
            connection.rollback()
            assert read(connection) == ("on" if default == "off" else default)
        assert "commits_asynchronous" not in warnings_of(dynbeat)


def test_health_names_an_engine_of_the_application_that_loses_commits(postgresql_url, default):
    engine = create_engine(postgresql_url)
    with application(postgresql_url, engine=engine) as dynbeat:
        assert ("commits_asynchronous" in warnings_of(dynbeat)) is (default == "off")
    engine.dispose()
