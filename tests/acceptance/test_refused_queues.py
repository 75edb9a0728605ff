"""A queue or exchange that the broker refuses: its runs wait, all others are sent."""

import contextlib
from datetime import timedelta
from urllib.parse import urlparse

import kombu
import pytest
import redis
from celery import Celery
from kombu import Queue

from celery_dynbeat import Dynbeat, Every
from celery_dynbeat.broker import outages
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import START, execute
from tests.support.servers import RabbitMQServer

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
NONE = "^$"
#: Bytes, more than the test's RabbitMQ accepts.
TOO_LARGE = 4_500_000


class Installation:
    """An application on SQLite and a real broker, with a manual beat."""

    def __init__(self, database_url, broker_url):
        self.app = Celery("refused", broker=broker_url, set_as_current=False)
        self.app.conf.update(
            dynbeat_database_url=database_url,
            dynbeat_create_tables=True,
            dynbeat_max_payload_bytes=2 * TOO_LARGE,
        )
        self.clock = FrozenClock(START)
        self.dynbeat = Dynbeat(self.app, clock=self.clock)
        self.dynbeat.context.prepare()
        self.mine = self.dynbeat.schedules.for_owner("user:1")
        self.publisher = Publisher(self.app, now=self.clock.now)
        self.beat = ManualBeat(self.dynbeat, self.publisher)
        self.number = 0

    def create(self, queue=None, number=1, **fields):
        """Create schedules that are due in a day and return their names."""
        options = {} if queue is None else {"queue": queue}
        fields = {"task": "t", "trigger": Every(DAY), "options": options, **fields}
        names = [f"{queue or 'celery'}-{self.number + n}" for n in range(number)]
        self.number += number
        for name in names:
            self.mine.create(name, **fields)
        return names

    def after(self, duration):
        self.clock.advance(duration)
        self.beat.run_until_idle()

    def statuses(self, names):
        return {self.mine.runs(name)[0].status for name in names}

    def errors(self, names):
        return {self.mine.get(name).error for name in names}

    def reported(self):
        return [
            (each.kind, each.name) for each in outages.parse_report(self.publisher.outages.report())
        ]

    def close(self):
        self.publisher.close()
        self.app.close()
        self.dynbeat.context.database.dispose()


@pytest.fixture
def on_rabbitmq(sqlite_url, amqp_url):
    with contextlib.closing(Installation(sqlite_url, amqp_url)) as made:
        yield made


@pytest.fixture
def on_redis(sqlite_url, redis_url):
    with contextlib.closing(Installation(sqlite_url, redis_url)) as made:
        yield made


@pytest.fixture
def channel(amqp_url):
    with kombu.Connection(amqp_url) as connection:
        yield connection.default_channel


@pytest.fixture
def grant(rabbitmq_server, amqp_url):
    """Set the rights of the account on this virtual host."""
    if not isinstance(rabbitmq_server, RabbitMQServer):
        pytest.skip("the broker of the environment is not ours to set rights on")
    vhost = urlparse(amqp_url).path[1:]
    return lambda **rights: rabbitmq_server.grant(vhost, **rights)


def test_a_queue_with_other_arguments_delays_only_its_runs(on_rabbitmq, channel):
    channel.queue_declare("moved", durable=False, auto_delete=False)
    bad, good = on_rabbitmq.create("moved", 15), on_rabbitmq.create(number=5)

    on_rabbitmq.after(DAY)

    assert on_rabbitmq.statuses(good) == {"sent"}
    assert on_rabbitmq.statuses(bad) == {"pending"}
    assert on_rabbitmq.errors(bad) == {None}
    assert on_rabbitmq.reported() == [("queue", "moved")]
    assert channel.queue_declare("celery", passive=True).message_count == len(good)

    channel.queue_delete("moved")
    on_rabbitmq.after(2 * SECOND)
    assert on_rabbitmq.statuses(bad) == {"sent"}
    assert channel.queue_declare("moved", passive=True).message_count == len(bad)
    assert on_rabbitmq.reported() == []


def test_a_right_that_is_missing_for_seconds_quarantines_nothing(on_rabbitmq, grant):
    names = on_rabbitmq.create(number=5) + on_rabbitmq.create("other", 5)
    grant(write=NONE, configure=NONE)
    on_rabbitmq.after(DAY)
    assert on_rabbitmq.statuses(names) == {"pending"}
    on_rabbitmq.after(8 * SECOND)
    assert on_rabbitmq.statuses(names) == {"pending"}

    grant()
    on_rabbitmq.after(outages.MAX_PAUSE)

    assert on_rabbitmq.statuses(names) == {"sent"}
    assert on_rabbitmq.errors(names) == {None}
    assert on_rabbitmq.reported() == []


def test_a_missing_right_to_one_exchange_delays_only_its_runs(on_rabbitmq, grant):
    topic = kombu.Exchange("news", type="topic")
    on_rabbitmq.app.conf.task_queues = [Queue("celery"), Queue("t", topic, routing_key="t.#")]
    bad, good = on_rabbitmq.create("t", 3), on_rabbitmq.create(number=3)
    grant(write="^(?!news$).*")

    on_rabbitmq.after(DAY)

    assert on_rabbitmq.statuses(good) == {"sent"}
    assert on_rabbitmq.statuses(bad) == {"pending"}
    assert on_rabbitmq.reported() == [("queue", "t")]


def test_a_message_that_is_too_large_is_isolated_from_the_others(on_rabbitmq, channel):
    good = on_rabbitmq.create(number=20)
    bad = on_rabbitmq.create(args=["x" * TOO_LARGE])
    good += on_rabbitmq.create(number=20)

    on_rabbitmq.after(DAY)

    assert on_rabbitmq.statuses(good) == {"sent"}
    assert on_rabbitmq.statuses(bad) == {"failed"}
    assert "larger than" in on_rabbitmq.mine.get(bad[0]).error
    assert on_rabbitmq.reported() == []
    # Only unconfirmed messages are sent again.
    assert channel.queue_declare("celery", passive=True).message_count <= 2 * len(good)


def test_a_run_fails_if_the_exchange_of_its_row_stays_missing(on_rabbitmq):
    poison = '{"exchange": "nobody-declared-it", "routing_key": "x"}'
    good, (bad,) = on_rabbitmq.create(number=2), on_rabbitmq.create(number=1)
    execute(
        on_rabbitmq.dynbeat,
        "UPDATE dynbeat_schedule SET options = :options WHERE name = :name",
        options=poison,
        name=bad,
    )
    on_rabbitmq.after(DAY)
    assert on_rabbitmq.statuses(good) == {"sent"}
    for _ in range(outages.MAX_TRIES - 2):
        on_rabbitmq.after(outages.MAX_PAUSE)
    assert on_rabbitmq.mine.get(bad).error is None

    on_rabbitmq.after(outages.MAX_PAUSE)

    assert "no exchange 'nobody-declared-it'" in on_rabbitmq.mine.get(bad).error
    assert on_rabbitmq.statuses([bad]) == {"failed"}


def test_a_queue_that_is_full_delays_its_runs_and_is_reported(on_rabbitmq):
    limited = {"x-max-length": 2, "x-overflow": "reject-publish"}
    on_rabbitmq.app.conf.task_queues = [Queue("celery"), Queue("full", queue_arguments=limited)]
    bad, good = on_rabbitmq.create("full", 10), on_rabbitmq.create(number=5)

    on_rabbitmq.after(DAY)

    assert on_rabbitmq.statuses(good) == {"sent"}
    assert on_rabbitmq.statuses(bad) == {"sent", "pending"}
    assert on_rabbitmq.reported() == [("queue", "full")]


def test_a_redis_key_that_is_not_a_list_delays_only_the_runs_of_its_queue(on_redis, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.set("taken", "by another program")
        bad, good = on_redis.create("taken", 5), on_redis.create(number=5)

        on_redis.after(DAY)

        assert on_redis.statuses(good) == {"sent"}
        assert on_redis.statuses(bad) == {"pending"}
        assert on_redis.reported() == [("queue", "taken")]
        client.delete("taken")
        on_redis.after(2 * SECOND)
        assert client.llen("taken") == len(bad)
    assert on_redis.statuses(bad) == {"sent"}
    assert on_redis.errors(bad) == {None}
