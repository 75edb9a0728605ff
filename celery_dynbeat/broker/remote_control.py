"""Celery's remote control command ``revoke``, on a connection of our own.

``app.control.revoke`` publishes through the application's producer pool: on connections without a
time limit, with retries without end. Here the answer is awaited for a limited time, and the
command is published once. On AMQP the exchange is not declared, which takes a right to configure
it: the workers declare it. The publish is confirmed, so that a refusal is noticed.
"""

from collections.abc import Sequence
from typing import Any

from celery import Celery

from celery_dynbeat.broker.connection import BrokerConnection
from celery_dynbeat.broker.publisher_confirms import ConfirmingChannel

_ACCESS_REFUSED, _NOT_FOUND = 403, 404


class _OneTry:
    """A producer that publishes once, whatever the caller says, and may declare nothing."""

    def __init__(self, producer: Any, *, declares: bool) -> None:
        self._producer = producer
        self._declares = declares

    def publish(self, *args: Any, **options: Any) -> Any:
        options["retry"] = False
        if not self._declares:
            options["declare"] = []
        return self._producer.publish(*args, **options)


def terminate_tasks(app: Celery, link: BrokerConnection, task_ids: Sequence[str]) -> str | None:
    """Ask all workers to terminate the tasks; return why the broker does not carry the request.

    Raises what kombu raises when the broker is away. A worker may miss a broadcast.
    """
    if not link.connection.supports_exchange_type("fanout"):
        kind = link.connection.transport.driver_type
        return (
            f"the broker ({kind}) carries no broadcasts, so overlap='cancel_previous' cannot"
            " end what runs; use Redis or RabbitMQ, or another overlap"
        )
    link.connect()
    try:
        send = _broadcast_confirmed if link.is_amqp else _broadcast
        send(app, link, {"task_id": list(task_ids), "terminate": True, "signal": "SIGTERM"})
    except link.connection.channel_errors as error:
        refusal = _refusal(app, error)
        if refusal is None:
            raise
        return refusal
    return None


def _broadcast(app: Celery, link: BrokerConnection, arguments: dict[str, Any]) -> None:
    _publish(app, link, link.connection.default_channel, arguments)


def _broadcast_confirmed(app: Celery, link: BrokerConnection, arguments: dict[str, Any]) -> None:
    with ConfirmingChannel(link) as confirming:
        _publish(app, link, confirming.channel, arguments)
        confirming.drain()


def _publish(app: Celery, link: BrokerConnection, channel: Any, arguments: dict[str, Any]) -> None:
    producer = _OneTry(app.amqp.Producer(channel, auto_declare=False), declares=not link.is_amqp)
    # Celery's own broadcast takes no producer.
    mailbox: Any = app.control.mailbox(link.connection)
    mailbox._publish("revoke", arguments, channel=channel, producer=producer)  # noqa: SLF001


def _refusal(app: Celery, error: BaseException) -> str | None:
    """Return what a broker's error says of the rights or the workers, or None for another error."""
    exchange = app.control.mailbox.exchange.name
    code = getattr(error, "reply_code", None) or getattr(error, "code", None)
    if code == _ACCESS_REFUSED or type(error).__name__ == "NoPermissionError":
        return (
            f"beat may not broadcast on {exchange!r}, so overlap='cancel_previous' cannot end what"
            f" runs; give its broker user the right to write there ({error})"
        )
    if code == _NOT_FOUND:
        return (
            f"no worker listens on {exchange!r}, so overlap='cancel_previous' cannot end what runs;"
            " start workers with worker_enable_remote_control=True"
        )
    return None
