"""LISTEN connects to the server of the engine, with the parameters of the engine."""

import threading

import pytest
from sqlalchemy import create_engine, event, func, make_url, select

from celery_dynbeat import db
from celery_dynbeat.db import TableNames
from celery_dynbeat.db.dialects.postgresql import notify
from celery_dynbeat.db.engine import Database
from celery_dynbeat.notify import PollingNotifier
from celery_dynbeat.notify.postgresql import PostgresNotifier
from tests.support.servers.machine import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.empty_database


class Wakes:
    """Count the calls of ``wake`` by a listener on ``database``."""

    def __init__(self, database):
        self.count = 0
        self._notifier = PostgresNotifier(database, PollingNotifier)
        self.listener = self._notifier.listener(self._wake)
        self._lock = threading.Lock()

    def _wake(self):
        with self._lock:
            self.count += 1

    def __enter__(self):
        self.listener.start()
        return self

    def __exit__(self, *_):
        self.listener.stop()


def receives_a_change(database):
    with Wakes(database) as wakes:
        # The first call is for changes before the LISTEN.
        wait_until(lambda: wakes.count == 1, within=15)
        database.run(lambda session: session.execute(select(notify())))
        wait_until(lambda: wakes.count == 2, within=5)
        assert wakes.listener.transport == "postgresql"
    database.engine.dispose()
    return True


def multi_host(url):
    """Return the URL with an unreachable host before its own host."""
    at = make_url(url)
    hosts = (f"127.0.0.1:{free_port()}", f"{at.host}:{at.port}")
    query = {"host": hosts, "target_session_attrs": "read-write"}
    return at.set(host=None, port=None, query=query).render_as_string(hide_password=False)


def test_with_one_host(postgresql_url):
    assert receives_a_change(Database(postgresql_url))


def test_on_the_channel_of_tables_with_other_names(postgresql_url, monkeypatch):
    monkeypatch.setattr(db, "_chosen", TableNames(schema='billing-"1', prefix="b_"))
    default = select(func.pg_notify("dynbeat_change", ""))
    database = Database(postgresql_url)
    with Wakes(database) as wakes:
        wait_until(lambda: wakes.count == 1, within=15)
        database.run(lambda session: session.execute(default))
        database.run(lambda session: session.execute(select(notify())))
        wait_until(lambda: wakes.count == 2, within=5)
    assert wakes.count == 2
    database.engine.dispose()


def test_with_several_hosts_and_the_first_unreachable(postgresql_url):
    assert receives_a_change(Database(multi_host(postgresql_url)))


def test_with_a_password_from_do_connect(postgresql_url):
    at = make_url(postgresql_url)
    engine = create_engine(at.set(username="nobody"))

    @event.listens_for(engine, "do_connect")
    def _add_account(_dialect, _record, _positional, named):
        named["user"] = at.username

    assert receives_a_change(Database(engine=engine))


def test_the_listener_uses_no_connection_of_the_pool(postgresql_url):
    engine = create_engine(postgresql_url, pool_size=1, max_overflow=0, pool_timeout=5)
    database = Database(engine=engine)
    with Wakes(database) as wakes:
        wait_until(lambda: wakes.count == 1, within=15)
        with engine.connect() as connection:
            assert connection.scalar(select(1)) == 1
    engine.dispose()


def test_with_an_engine_on_another_driver(postgresql_url):
    url = make_url(multi_host(postgresql_url)).set(drivername="postgresql+psycopg2")
    assert receives_a_change(Database(engine=create_engine(url)))


def test_with_the_host_in_connect_args(postgresql_url):
    at = make_url(postgresql_url)
    where = {"host": at.host, "port": at.port}
    engine = create_engine(at.set(host="nowhere.invalid", port=1), connect_args=where)
    assert receives_a_change(Database(engine=engine))
