"""Publish Celery's remote control command ``revoke`` on beat's own connection.

``app.control.revoke`` publishes through the application's producer pool. Its connections have no
timeout, and it retries without limit. This module publishes the command once, with a timeout. On
AMQP, it does not declare the exchange, because that requires the ``configure`` right. The workers
declare it. It waits for the publisher confirm, so that a refusal is noticed.
"""

from collections.abc import Sequence
from typing import Any

from celery import Celery

from celery_dynbeat.broker.connection import BrokerConnection
from celery_dynbeat.broker.publisher_confirms import ConfirmingChannel

_ACCESS_REFUSED, _NOT_FOUND = 403, 404


class _SingleTryProducer:
    """A producer that publishes without retry and, with ``declares=False``, declares nothing."""

    def __init__(self, producer: Any, *, declares: bool) -> None:
        self._producer = producer
        self._declares = declares

    def publish(self, *args: Any, **options: Any) -> Any:
        options["retry"] = False
        if not self._declares:
            options["declare"] = []
        return self._producer.publish(*args, **options)


def terminate_tasks(app: Celery, broker: BrokerConnection, task_ids: Sequence[str]) -> str | None:
    """Ask all workers to terminate the tasks. Return why the broker refuses, or None.

    A worker may miss a broadcast. Raises an error of kombu when the broker is unreachable.
    """
    if not broker.connection.supports_exchange_type("fanout"):
        kind = broker.connection.transport.driver_type
        return (
            f"the broker ({kind}) has no broadcasts, so overlap='cancel_previous' cannot terminate"
            " running tasks; use Redis or RabbitMQ, or another overlap"
        )
    broker.connect()
    try:
        send = _broadcast_confirmed if broker.is_amqp else _broadcast
        send(app, broker, {"task_id": list(task_ids), "terminate": True, "signal": "SIGTERM"})
    except broker.connection.channel_errors as error:
        refusal = _refusal(app, error)
        if refusal is None:
            raise
        return refusal
    return None


def _broadcast(app: Celery, broker: BrokerConnection, arguments: dict[str, Any]) -> None:
    _publish(app, broker, broker.connection.default_channel, arguments)


def _broadcast_confirmed(app: Celery, broker: BrokerConnection, arguments: dict[str, Any]) -> None:
    with ConfirmingChannel(broker) as confirming:
        _publish(app, broker, confirming.channel, arguments)
        confirming.wait_for_confirms()


def _publish(
    app: Celery, broker: BrokerConnection, channel: Any, arguments: dict[str, Any]
) -> None:
    producer = _SingleTryProducer(
        app.amqp.Producer(channel, auto_declare=False), declares=not broker.is_amqp
    )
    # Celery's own broadcast does not accept a producer.
    mailbox: Any = app.control.mailbox(broker.connection)
    mailbox._publish("revoke", arguments, channel=channel, producer=producer)  # noqa: SLF001


def _refusal(app: Celery, error: BaseException) -> str | None:
    """Return the reason if the error is about rights or missing workers, or else None."""
    exchange = app.control.mailbox.exchange.name
    code = getattr(error, "reply_code", None) or getattr(error, "code", None)
    if code == _ACCESS_REFUSED or type(error).__name__ == "NoPermissionError":
        return (
            f"beat may not write to {exchange!r}, so overlap='cancel_previous' cannot terminate"
            f" running tasks; grant its broker user the write permission ({error})"
        )
    if code == _NOT_FOUND:
        return (
            f"no worker listens on {exchange!r}, so overlap='cancel_previous' cannot terminate"
            " running tasks; start workers with worker_enable_remote_control=True"
        )
    return None
