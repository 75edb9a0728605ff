"""The properties of the test servers on which the fault tests depend."""

import queue
from contextlib import ExitStack
from pathlib import Path

import kombu
import psutil
import pytest
import redis
from sqlalchemy import NullPool, create_engine, text

from tests.support import databases
from tests.support.combinations import DATABASES
from tests.support.servers import PostgreSQLServer, RabbitMQServer, RedisServer, mariadb_or_mysql
from tests.support.suites import each_database


def execute(url, *statements):
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        return results[-1].scalar() if results[-1].returns_rows else None


@pytest.mark.parametrize("kind", [PostgreSQLServer, mariadb_or_mysql()], ids=DATABASES)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_database_server_restarts_with_all_committed_rows(own_server, kind, end):
    server = own_server(kind)
    execute(server.url, "CREATE TABLE kept (id INTEGER)", "INSERT INTO kept VALUES (7)")
    before = server.pid

    getattr(server, end)()
    assert not psutil.pid_exists(before)
    server.start()

    assert execute(server.url, "SELECT id FROM kept") == 7
    assert server.pid != before


def test_mariadb_servers_that_start_together_have_separate_temporary_tables(own_server):
    servers = [own_server(mariadb_or_mysql()) for _ in range(2)]

    folders = [Path(execute(server.url, "SELECT @@tmpdir")) for server in servers]

    assert [folder.parent for folder in folders] == [server.folder for server in servers]


def test_redis_restarts_empty(own_server):
    server = own_server(RedisServer)
    with redis.Redis.from_url(server.url) as client:
        client.set("lost", "1")

    server.kill()
    server.start()

    with redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 0


@pytest.mark.slow
def test_rabbitmq_restarts_with_its_durable_messages(own_server):
    server = own_server(RabbitMQServer)
    with kombu.Connection(server.url, transport_options={"confirm_publish": True}) as connection:
        connection.SimpleQueue("kept").put("here")

    server.kill()
    server.start()

    with kombu.Connection(server.url) as connection:
        assert connection.SimpleQueue("kept").get(timeout=10).payload == "here"


@each_database
def test_a_database_url_is_a_new_database_that_stores_every_script(database_url):
    execute(database_url, "CREATE TABLE fresh (word VARCHAR(20))")
    execute(database_url, "INSERT INTO fresh VALUES ('schön 🎉')")

    assert execute(database_url, "SELECT word FROM fresh") == "schön 🎉"


@pytest.mark.parametrize("fixture", ["redis_url", "amqp_url"])
@pytest.mark.parametrize("time", ["first", "second"])
def test_a_broker_url_has_no_messages_of_another_test(request, fixture, time):
    with kombu.Connection(request.getfixturevalue(fixture)) as connection:
        messages = connection.SimpleQueue("celery")

        with pytest.raises(queue.Empty):
            messages.get(block=False)

        messages.put(time)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_transaction_left_open_fails_the_test_that_left_it(request, monkeypatch, kind):
    monkeypatch.setattr(databases, "TRANSACTIONS_END_WITHIN", 0.1)
    server = request.getfixturevalue(f"{kind}_server")
    new_database = getattr(databases, f"new_{kind}_database")
    # The check of a previous test, immediately before.
    with databases.administration(server.url) as connection:
        find = getattr(databases, f"open_{kind}_transactions")
        assert find(connection, "of_no_database") == []

    def leave_one_open(leak):
        with new_database(server.url) as url:
            execute(url, "CREATE TABLE word (id INTEGER)")
            connection = leak.enter_context(create_engine(url, poolclass=NullPool).connect())
            # The server ends the session, so the client only drops the connection.
            leak.callback(connection.invalidate)
            connection.execute(text("INSERT INTO word VALUES (1)"))

    with ExitStack() as leak, pytest.raises(AssertionError, match="left in a transaction"):
        leave_one_open(leak)
