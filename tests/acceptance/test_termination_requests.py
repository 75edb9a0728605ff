"""Requests to terminate runs, on real brokers: the command, missing rights and timeouts.

The workers are only mailboxes. tests/faults/test_terminations.py has real workers.
"""

import contextlib
import time
from datetime import UTC, datetime

import pytest
import redis
from celery import Celery
from sqlalchemy import make_url

from celery_dynbeat.broker import connection, publisher_confirms
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.planning.plan import OutgoingRun
from tests.support.proxy import Proxy
from tests.support.servers import RabbitMQServer, RedisServer

RUN_ID = "019e0000-0000-7000-8000-000000000001"
#: Seconds, with a timeout of one second for each reply, on a busy machine.
GIVEN_UP_WITHIN = 15.0


@contextlib.contextmanager
def publisher(url):
    with Celery("beat", broker=url, set_as_current=False) as app:
        made = Publisher(app)
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def worker_mailbox(url):
    """Yield a function that returns the next command that a worker receives."""

    def next_command():
        while not heard:
            connection.drain_events(timeout=5)
        return heard.pop()

    heard = []
    with Celery("worker", broker=url, set_as_current=False) as app, app.connection() as connection:
        node = app.control.mailbox(connection).Node("w1@test", channel=connection.channel())
        consumer = node.listen(callback=lambda body, _message: heard.append(body))
        # On Redis, kombu subscribes when it first waits.
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        yield next_command
        consumer.cancel()


def run_to_send():
    return OutgoingRun(
        run_id=RUN_ID,
        schedule_id=1,
        owner="user:42",
        name="n",
        version=1,
        task="t",
        args=[],
        kwargs={},
        options={},
        fire_at=datetime(2026, 11, 22, 9, tzinfo=UTC),
    )


def refusal_of(made):
    with pytest.raises(DispatchError) as caught:
        made.terminate([RUN_ID])
    # The test is about one message, not the connection.
    assert made.publish([run_to_send()]).sent == [RUN_ID]
    return str(caught.value)


@pytest.mark.parametrize("broker", ["redis_url", "amqp_url"])
def test_workers_receive_the_command_that_celery_sends(request, broker):
    url = request.getfixturevalue(broker)
    with worker_mailbox(url) as next_command, publisher(url) as made:
        made.terminate([RUN_ID])
        ours = next_command()
        made._app.control.revoke([RUN_ID], terminate=True)
        celerys = next_command()

    assert ours["method"] == "revoke"
    assert ours == celerys


@pytest.fixture
def restricted_url(amqp_url, rabbitmq_server):
    """Return the URL of an account that may write to queues, not to Celery's own exchanges."""
    if not isinstance(rabbitmq_server, RabbitMQServer):
        pytest.skip("makes an account, which only a server of our own lets it")
    vhost = amqp_url.rpartition("/")[2]
    yield rabbitmq_server.create_user(f"{vhost}-user", vhost, write="^(celery|amq\\.default)$")
    rabbitmq_server.delete_user(f"{vhost}-user")


def test_a_missing_right_on_rabbitmq_is_named(amqp_url, restricted_url):
    with worker_mailbox(amqp_url), publisher(restricted_url) as made:
        refusal = refusal_of(made)

    assert "'celery.pidbox'" in refusal
    assert "write permission" in refusal


@pytest.fixture
def impatient(monkeypatch):
    """Set the timeout of a publisher for each reply to one second."""
    monkeypatch.setattr(connection, "RESPONSE_TIMEOUT", 1.0)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 1.0)
    monkeypatch.setattr(publisher_confirms, "CONFIRM_TIMEOUT", 1.0)


def assert_given_up(made):
    began = time.monotonic()
    with pytest.raises(made.broker_errors):
        made.terminate([RUN_ID])
    assert time.monotonic() - began < GIVEN_UP_WITHIN


@pytest.mark.usefixtures("impatient")
def test_a_redis_that_hangs_after_a_ping_times_out(own_server):
    server = own_server(RedisServer)
    with redis.Redis.from_url(server.url) as client, publisher(server.url) as made:
        made.terminate([RUN_ID])
        client.client_pause(60_000, all=False)
        try:
            assert_given_up(made)
        finally:
            client.client_unpause()


@pytest.mark.usefixtures("impatient")
def test_a_rabbitmq_that_stops_replying_times_out(amqp_url):
    with (
        Proxy(make_url(amqp_url).port) as proxy,
        worker_mailbox(amqp_url),
        publisher(proxy.through(amqp_url)) as made,
    ):
        made.terminate([RUN_ID])
        proxy.drop_silently()
        assert_given_up(made)
