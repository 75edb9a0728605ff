"""The argsrepr and kwargsrepr of a message equal those of Celery."""

from contextlib import contextmanager
from datetime import UTC, datetime

from celery import Celery
from celery.signals import before_task_publish
from celery.utils.saferepr import saferepr
from hypothesis import example, given
from hypothesis import strategies as st

from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.broker.task_message import fast_repr
from celery_dynbeat.planning.plan import OutgoingRun

MAX_LENGTH = 1024
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
payloads = st.recursive(
    st.dictionaries(st.text(), scalars) | st.lists(scalars),
    lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner),
    max_leaves=5,
)


@given(payloads)
@example({"user_id": 7, "name": "it's", "ratio": 0.1})
@example({"text": 'say "it"'})
@example(["back\\slash"])
@example(["line\nbreak"])
@example(["\x7f"])
@example({"long": "a" * MAX_LENGTH})
@example({"nested": {"deep": [1]}})
@example([["[", "{"]])
def test_the_repr_of_a_payload_equals_that_of_celery(payload):
    assert fast_repr(payload, MAX_LENGTH) in {None, saferepr(payload, MAX_LENGTH)}


def test_the_repr_of_empty_arguments_equals_that_of_celery():
    assert [sent(args=[]), sent(args=[1])] == [as_celery_would(args=[]), as_celery_would(args=[1])]


def test_before_task_publish_receives_the_queue_of_each_message():
    received = []

    def receive(declare, **_):
        received.append([queue.name for queue in declare])

    before_task_publish.connect(receive)
    try:
        with publisher_of(app()) as publisher:
            publisher.publish([run(args=[]) for _ in range(3)])
    finally:
        before_task_publish.disconnect(receive)

    assert received == [["celery"]] * 3


def app():
    return Celery("messages", broker="memory://", set_as_current=False)


@contextmanager
def publisher_of(application):
    publisher = Publisher(application)
    publisher.connect()
    yield publisher
    publisher.close()


def run(*, args):
    return OutgoingRun(
        run_id="01a1ffea-b135-76a3-b9c5-3667a500c655",
        schedule_id=1,
        owner="user:1",
        name="n",
        version=1,
        task="t",
        args=args,
        kwargs={},
        options={},
        fire_at=datetime(2026, 11, 21, tzinfo=UTC),
    )


def sent(*, args):
    """Return the headers of a sent message that show its arguments and its origin."""
    application = app()
    with publisher_of(application) as publisher:
        publisher.publish([run(args=args)])
    with application.connection_for_read() as connection:
        message = connection.SimpleQueue("celery").get(timeout=1)
    return {name: message.headers[name] for name in ("argsrepr", "kwargsrepr", "origin")}


def as_celery_would(*, args):
    headers = app().amqp.as_task_v2("id", "t", args, {}).headers
    return {name: headers[name] for name in ("argsrepr", "kwargsrepr", "origin")}


@given(st.dictionaries(st.from_regex(r"\A[a-z_]{1,9}\Z"), st.integers() | st.booleans()))
def test_plain_arguments_use_the_fast_repr(payload):
    assert fast_repr(payload, MAX_LENGTH) in (
        {repr(payload)} if len(repr(payload)) <= MAX_LENGTH else {None}
    )
