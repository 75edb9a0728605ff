"""Tasks that override apply_async, and countdowns, on a real broker."""

import contextlib
import time
from datetime import UTC, datetime

import pytest
from amqp.exceptions import NotFound
from celery import Celery
from celery.app.task import Task
from kombu import Connection, Exchange, Queue

from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.broker.publisher_confirms import CONFIRM_TIMEOUT
from celery_dynbeat.planning.plan import OutgoingRun
from tests.support.waiting import wait_until

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
WAYS = ("plain", "faithful", "elsewhere", "silent", "renaming", "raising", "plain")
HOUR = 3600
#: RabbitMQ first holds a message in the queue of the highest bit of its delay: 3600 s has bit 11.
HOLDING = "celery_delayed_11"


class Faithful(Task):
    def apply_async(self, args=None, kwargs=None, **options):
        return super().apply_async(args, kwargs, **options)


class Elsewhere(Task):
    def apply_async(self, args=None, kwargs=None, task_id=None, **_options):
        return super().apply_async(args, kwargs, task_id=task_id)


class Silent(Task):
    """Sends another task on the given connection instead of the run."""

    def apply_async(self, *_args, producer=None, **_options):
        self.app.send_task("audit", producer=producer, retry=False)


class Renaming(Task):
    def apply_async(self, args=None, kwargs=None, task_id=None, **options):
        return super().apply_async(args, kwargs, task_id=f"mine-{task_id}", **options)


class Raising(Task):
    def apply_async(self, *_args, producer=None, **_options):
        self.app.send_task("audit", producer=producer, retry=False)
        msg = "already queued"
        raise RuntimeError(msg)


class Swallowing(Task):
    def apply_async(self, args=None, kwargs=None, **options):
        with contextlib.suppress(Exception):
            return super().apply_async(args, kwargs, **options)


BASES = {
    "swallowing": Swallowing,
    "plain": Task,
    "faithful": Faithful,
    "elsewhere": Elsewhere,
    "silent": Silent,
    "renaming": Renaming,
    "raising": Raising,
}


@pytest.fixture(params=["redis_url", "amqp_url"])
def app(request):
    yield from application(request.getfixturevalue(request.param))


@pytest.fixture
def quorum_app(amqp_url):
    """Return an application with a quorum queue, after a worker declared the delay exchanges."""
    reason = "kombu 5.5 is the first with delays of RabbitMQ"
    delays = pytest.importorskip("kombu.transport.native_delayed_delivery", reason=reason)
    topic = Exchange("celery", type="topic")
    queue = Queue("celery", topic, routing_key="celery", queue_arguments={"x-queue-type": "quorum"})
    with Connection(amqp_url) as connection:
        delays.declare_native_delayed_delivery_exchanges_and_queues(connection, "classic")
        queue.bind(connection.default_channel).declare()
        delays.bind_queue_to_native_delayed_delivery_exchange(connection, queue)
    yield from application(
        amqp_url,
        task_queues=[queue],
        task_default_exchange="celery",
        task_default_exchange_type="topic",
    )


def application(url, **configuration):
    app = Celery(broker=url, set_as_current=False)
    app.conf.update(configuration)
    app.queued = set()
    for name, base in BASES.items():

        @app.task(name=name, base=base, shared=False)
        def body():
            pass

    app.finalize()
    yield app
    app.close()


def test_only_messages_published_under_the_id_of_their_run_count_as_sent(app):
    batch = [run(number, name) for number, name in enumerate(WAYS)]

    published = publish(app, batch)

    ways = {run.run_id: run.task for run in batch}
    assert [ways[run_id] for run_id in published.sent] == [
        "plain",
        "faithful",
        "elsewhere",
        "plain",
    ]
    assert {ways[run_id] for run_id in published.declined} == {"silent", "renaming"}
    assert {ways[run_id] for run_id in published.delayed} == {"raising"}
    received = {headers["id"] for headers in headers_of(app, "celery")}
    assert received >= {run_id for run_id, way in ways.items() if run_id in published.sent}


@pytest.mark.parametrize("app", ["amqp_url"], indirect=True)
def test_one_bad_message_closes_the_channel_and_the_others_are_sent(app):
    nowhere = {"exchange": "nobody-declared-it", "routing_key": "x"}
    batch = [
        run(0, "faithful"),
        run(1, "plain", **nowhere),
        run(2, "faithful"),
        run(3, "elsewhere"),
        run(4, "silent"),
        run(5, "faithful", **nowhere),
        run(6, "faithful"),
    ]

    published = publish(app, batch)

    assert set(published.sent) == {batch[n].run_id for n in (0, 2, 3, 6)}
    assert list(published.declined) == [batch[4].run_id]
    assert list(published.delayed) == [batch[1].run_id]
    # The method published the message before the broker refused: it may be in a queue.
    assert published.unknown == {batch[5].run_id}
    assert published.refused == {}


@pytest.mark.parametrize("app", ["amqp_url"], indirect=True)
def test_a_method_that_swallows_the_error_of_a_refused_queue_stalls_no_pass(app):
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare("moved", durable=False, auto_delete=False)
    batch = [run(0, "plain"), run(1, "swallowing", queue="moved"), run(2, "faithful")]

    started_at = time.monotonic()
    published = publish(app, batch)

    assert time.monotonic() - started_at < CONFIRM_TIMEOUT / 2
    assert set(published.sent) == {batch[0].run_id, batch[2].run_id}
    # Not declined: the application did not decide, the broker refused.
    assert list(published.delayed) == [batch[1].run_id]


def test_the_broker_delays_a_countdown_for_a_quorum_queue(quorum_app):
    batch = [run(0, "plain", countdown=HOUR), run(1, "faithful", countdown=HOUR)]

    assert publish(quorum_app, batch).sent == [one.run_id for one in batch]

    wait_until(lambda: waiting(quorum_app, HOLDING) == len(batch), within=10)
    assert waiting(quorum_app, "celery") == 0


def run(number, task, **options):
    return OutgoingRun(
        run_id=f"019e0000-0000-7000-8000-00000000000{number}",
        schedule_id=number,
        owner="user:42",
        name=task,
        version=1,
        task=task,
        args=[],
        kwargs={},
        options=options,
        fire_at=NOW,
    )


def publish(app, batch):
    publisher = Publisher(app, now=lambda: NOW)
    try:
        publisher.connect()
        return publisher.publish(batch)
    finally:
        publisher.close()


def headers_of(app, queue):
    with app.connection_for_read() as connection:
        while message := connection.default_channel.basic_get(queue, no_ack=True):
            yield connection.default_channel.message_to_python(message).headers


def waiting(app, queue):
    with app.connection_for_read() as connection:
        try:
            declared = connection.default_channel.queue_declare(queue, passive=True)
        except NotFound:
            return 0
        return declared.message_count
