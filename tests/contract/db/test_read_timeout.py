"""A connection of the package times out when its server is silent; that of a migration does not."""

import contextlib
import time

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from celery_dynbeat.db import connections
from celery_dynbeat.db.engine import Database

SLEEP = {"postgresql": "SELECT pg_sleep({0})", "mariadb": "SELECT sleep({0})"}


@pytest.fixture(params=SLEEP)
def server(request):
    """Return the URL of a new database, and a statement that takes some seconds."""
    return request.getfixturevalue(f"{request.param}_url"), SLEEP[request.param]


@contextlib.contextmanager
def database(url, **options):
    made = Database(url, engine_options=options)
    try:
        yield made
    finally:
        made.dispose()


def with_read_timeout(url, **more):
    return database(url, connect_args={"read_timeout": 1, **more})


def test_a_statement_without_an_answer_in_time_raises_an_error(server):
    url, sleep = server
    with with_read_timeout(url) as made, made.engine.connect() as connection:
        began = time.monotonic()

        with pytest.raises(DBAPIError) as info:
            connection.execute(text(sleep.format(3)))

        assert time.monotonic() - began < 2.5
        assert info.value.connection_invalidated


def test_the_next_connection_works(server):
    url, sleep = server
    with with_read_timeout(url) as made:
        with made.engine.connect() as connection, contextlib.suppress(DBAPIError):
            connection.execute(text(sleep.format(3)))

        with made.engine.connect() as connection:
            assert connection.execute(text("SELECT 1")).scalar_one() == 1


def test_a_read_timeout_in_the_url_applies(server):
    url, sleep = server
    limited = make_url(url).update_query_dict({"read_timeout": "1"})
    with (
        database(limited.render_as_string(hide_password=False)) as made,
        made.engine.connect() as connection,
        pytest.raises(DBAPIError),
    ):
        connection.execute(text(sleep.format(3)))


def test_the_connection_of_a_migration_has_no_read_timeout(server):
    url, sleep = server
    with with_read_timeout(url) as made, made.connection_without_timeouts() as connection:
        connection.execute(text(sleep.format(2)))


@pytest.mark.parametrize("driver", connections._DEFAULTS)
def test_every_known_driver_has_a_connect_timeout_and_a_read_timeout(driver):
    url = make_url("mysql://h/d").set(drivername=f"any+{driver}")

    arguments = connections.connect_args(url, {})

    assert arguments["connect_timeout"] == 10
    assert {"read_timeout", "tcp_user_timeout"} & arguments.keys()


def test_given_arguments_take_precedence_over_defaults():
    url = make_url("postgresql+psycopg://h/d?connect_timeout=3")

    arguments = connections.connect_args(url, {"read_timeout": None})

    assert "connect_timeout" not in arguments
    assert arguments["read_timeout"] is None
