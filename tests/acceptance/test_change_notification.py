"""How fast a real beat is notified of a change, with each notifier alone."""

import socket
from datetime import timedelta

import pytest
import redis
from sqlalchemy import text
from sqlalchemy.orm import Session

from celery_dynbeat import Once, notify
from tests.support.sites import site
from tests.support.waiting import wait_until

#: The poll interval in seconds, longer than any test waits.
NEVER = 600.0
#: The notifier and the kind of broker.
WAYS = {
    "postgresql": ("postgresql", "sqlalchemy"),
    "redis": ("broker", "redis"),
    "amqp": ("broker", "rabbitmq"),
}
SENT_WITHIN = 4.0


@pytest.fixture(scope="module", params=WAYS)
def notified(request, new_urls, tmp_path_factory):
    """Return an installation with an idle beat and one notifier, for all tests of the module.

    A test leaves no schedule that fires again: a pass of beat would hide a missing notification.
    """
    notifier, broker = WAYS[request.param]
    with site(
        tmp_path_factory.mktemp(request.param),
        **new_urls("postgresql", broker),
        dynbeat_notifier=notifier,
        dynbeat_poll_interval=NEVER,
    ) as made:
        # Beat still returns from a tick every 20 s, which would hide a missing notification.
        made.beat("-l", "DEBUG").wait_for_log("beat started")
        wait_until_connected(made)
        yield made


def wait_until_connected(made):
    """Return when the listener is connected: beat sent a first schedule."""
    made.mine.create("hello", task="probe.record", trigger=Once.after(timedelta(seconds=0.3)))
    made.wait_for_run("hello", "sent")


def soon():
    return Once.after(timedelta(seconds=1))


def test_a_new_schedule_is_sent_long_before_the_poll(notified):
    notified.mine.create("new", task="probe.record", trigger=soon())

    notified.wait_for_run("new", "sent", within=SENT_WITHIN)


class NotificationCounter:
    """Counts the notifications of a listener in this process."""

    def __init__(self, made):
        self.count = 0
        self.listener = made.dynbeat.context.notifier.listener(self.wake)
        self.listener.start()
        # The first call means that the listener is connected.
        wait_until(lambda: self.count, within=10)
        self.count = 0

    def wake(self):
        self.count += 1


@pytest.fixture(params=WAYS)
def counted(request, site_folder, postgresql_url):
    notifier, broker = WAYS[request.param]
    fixtures = {"sqlalchemy": "broker_file_url", "redis": "redis_url", "rabbitmq": "amqp_url"}
    broker_url = request.getfixturevalue(fixtures[broker])
    settings = {"dynbeat_notifier": notifier, "dynbeat_poll_interval": NEVER}
    with site(site_folder, database_url=postgresql_url, broker_url=broker_url, **settings) as made:
        made.dynbeat.context.prepare()
        counter = NotificationCounter(made)
        yield made, counter
        counter.listener.stop()


def test_a_released_savepoint_sends_no_notification_before_the_commit(counted):
    made, counter = counted
    with Session(made.dynbeat.context.database.engine) as session:
        with session.begin_nested():
            made.mine.bound(session=session).create("inner", task="probe.record", trigger=soon())
        # A notification of the savepoint would arrive before that of this commit.
        made.mine.create("witness", task="probe.record", trigger=soon())
        wait_until(lambda: counter.count, within=5)
        assert counter.count == 1
        session.commit()

    wait_until(lambda: counter.count == 2, within=5)


def test_a_rollback_sends_no_notification(counted):
    made, counter = counted
    with Session(made.dynbeat.context.database.engine) as session:
        made.mine.bound(session=session).create("undone", task="probe.record", trigger=soon())
        session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()

    made.mine.create("witness", task="probe.record", trigger=soon())

    wait_until(lambda: counter.count, within=5)
    assert counter.count == 1


def terminate_listeners(made):
    statement = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database()"
        # The heartbeat after each notification is a separate query.
        " AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')"
    )
    with made.dynbeat.context.database.engine.begin() as connection:
        return connection.execute(text(statement)).all()


def test_the_postgresql_listener_reconnects_after_a_lost_connection(
    site_folder, postgresql_url, broker_file_url
):
    with site(
        site_folder,
        database_url=postgresql_url,
        broker_url=broker_file_url,
        dynbeat_notifier="postgresql",
        dynbeat_poll_interval=NEVER,
    ) as made:
        beat = made.beat().wait_for_log("beat started")
        wait_until_connected(made)
        wait_until(lambda: terminate_listeners(made), within=10)
        beat.wait_for_log("listener lost its connection", within=15)

        made.mine.create("again", task="probe.record", trigger=Once.after(timedelta(seconds=2)))

        made.wait_for_run("again", "sent", within=6)


def test_polling_alone_finds_a_change_within_the_interval(site_folder, sqlite_url, broker_file_url):
    with site(
        site_folder,
        database_url=sqlite_url,
        broker_url=broker_file_url,
        dynbeat_notifier="polling",
        dynbeat_poll_interval=1,
    ) as made:
        made.beat().wait_for_log("PollingNotifier (polls every 1s)")

        made.mine.create("found", task="probe.record", trigger=Once.after(timedelta(seconds=0.5)))

        made.wait_for_run("found", "sent", within=10)


@pytest.fixture
def hanging_url():
    """Return the URL of a Redis that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def test_a_broker_that_hangs_delays_no_call(
    site_folder, sqlite_url, hanging_url, monkeypatch, caplog
):
    monkeypatch.setattr(notify, "PUBLISH_TIMEOUT", 0.2)
    with site(
        site_folder, database_url=sqlite_url, broker_url=hanging_url, dynbeat_notifier="broker"
    ) as made:
        made.mine.create("new", task="probe.record", trigger=soon())

        assert made.mine.get("new").version == 1
    assert "change notification failed" in caplog.text


@pytest.fixture
def no_subscribe_url(redis_url):
    """Return the URL of a Redis account without the right to subscribe."""
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command(
            *("ACL", "SETUSER", "limited", "on", ">limited", "~*", "resetchannels", "+@all")
        )
        yield redis_url.replace("//", "//limited:limited@")
        client.acl_deluser("limited")


def test_a_listener_without_the_right_to_subscribe_retries_less_and_less_often(
    site_folder, sqlite_url, no_subscribe_url, caplog
):
    with site(
        site_folder, database_url=sqlite_url, broker_url=no_subscribe_url, dynbeat_notifier="broker"
    ) as made:
        listener = made.dynbeat.context.notifier.listener(lambda: None)
        vars(listener)["_back_off"] = notify.reconnect_back_off(first=0.01)
        listener.start()

        wait_until(lambda: len(caplog.records) == 4, within=10)
        listener.stop()

    assert "NoPermissionError" in caplog.text
    pauses = [record.args[1] for record in caplog.records]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 0.05
