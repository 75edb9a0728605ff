"""A publisher rejects some requests before it connects, and filters reserved headers."""

from datetime import UTC, datetime

import pytest
from celery import Celery

from celery_dynbeat.broker import connection, is_reserved, run_headers
from celery_dynbeat.broker import publisher as publisher_module
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.planning.plan import OutgoingRun

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)


def test_terminate_raises_on_a_broker_without_broadcasts():
    app = Celery(broker="sqla+sqlite:///:memory:", set_as_current=False)

    with pytest.raises(DispatchError, match="cancel_previous"):
        Publisher(app).terminate(["019e0000-0000-7000-8000-000000000001"])


def test_a_connection_is_checked_again_after_an_interval(monkeypatch):
    checks = []
    monkeypatch.setattr(connection, "ping", checks.append)
    monkeypatch.setattr(publisher_module, "PING_INTERVAL", 3600)
    app = Celery(broker="memory://", set_as_current=False)
    publisher = Publisher(app)

    for expected in (0, 1, 1):
        publisher.connect()
        assert len(checks) == expected
    monkeypatch.setattr(publisher_module, "PING_INTERVAL", 0)
    publisher.close()
    for expected in (1, 2, 3):
        publisher.connect()
        assert len(checks) == expected
    publisher.close()


def outgoing(**options):
    return OutgoingRun(
        run_id="019e0000-0000-7000-8000-000000000001",
        schedule_id=1,
        owner="user:42",
        name="n",
        version=1,
        task="t",
        args=[],
        kwargs={},
        options=options,
        fire_at=NOW,
    )


def test_reserved_headers_of_a_row_written_in_sql_are_dropped():
    typed = {"task": "admin.drop_tables", "is_eager": True, "dynbeat_run_id": "x", "tenant": "blue"}

    headers = run_headers(outgoing(headers=typed))

    assert headers["tenant"] == "blue"
    assert headers["dynbeat_run_id"] == "019e0000-0000-7000-8000-000000000001"
    assert not {"task", "is_eager"} & headers.keys()


def test_every_header_of_a_celery_message_is_reserved():
    app = Celery(set_as_current=False)

    message = app.amqp.as_task_v2("id", "t")

    assert [key for key in message.headers if not is_reserved(key)] == []


def test_a_router_is_asked_once_for_a_run_and_its_queue_is_returned():
    app = Celery(broker="memory://", set_as_current=False)
    calls = []

    def in_turn(*_args, **_more):
        calls.append(f"q{len(calls)}")
        return {"queue": calls[-1]}

    app.conf.task_routes = [in_turn]
    publisher = Publisher(app)
    publisher.connect()
    batch = [outgoing()._replace(run_id=new_run_id(NOW)) for _ in range(3)]

    published = publisher.publish(batch)

    assert calls == ["q0", "q1", "q2"]
    assert published.sent == [run.run_id for run in batch]
    assert list(published.queues.values()) == calls
    with app.connection_for_read() as connection:
        sent = [connection.default_channel.basic_get(queue, no_ack=True) for queue in calls]
    assert [message.headers["id"] for message in sent] == list(published.queues)
    publisher.close()
