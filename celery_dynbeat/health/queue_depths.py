"""The number of messages that wait in the queues of the broker.

It declares each queue passively.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.transport import virtual

#: Queues that are read at once.
MAX_QUEUES = 20
#: The reply of the broker if the queue does not exist.
_NOT_FOUND = "404"
#: Options that limit the time of each reply, by the driver of the transport.
_TIMEOUTS = {
    "redis": ("socket_connect_timeout", "socket_timeout"),
    "amqp": ("connect_timeout", "read_timeout", "write_timeout"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """A queue and its messages that no worker has received, or None if they are not known.

    ``error`` is the reason if it concerns only this queue.
    """

    name: str
    messages: int | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepths:
    """The queues. ``is_cut`` is true if there are more. ``error`` is why no depth is known."""

    queues: Sequence[QueueDepth]
    is_cut: bool
    error: str | None = None


def unknown_depths(names: Sequence[str], error: str) -> QueueDepths:
    """Return the queues without numbers."""
    queues = [QueueDepth(name=name, messages=None) for name in names[:MAX_QUEUES]]
    return QueueDepths(queues=queues, is_cut=len(names) > MAX_QUEUES, error=error)


def read_depths(app: Celery, names: Sequence[str], *, timeout: float) -> QueueDepths:
    """Return the messages of the first queues of ``names``. Raises the errors of the transport."""
    connection: Connection = app.connection_for_write()
    limits = dict.fromkeys(_TIMEOUTS.get(connection.transport.driver_type, ()), timeout)
    connection.transport_options = {**(connection.transport_options or {}), **limits}
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=timeout)
        queues = list(_depths(connection, names[:MAX_QUEUES]))
    finally:
        connection.release()
    return QueueDepths(queues=queues, is_cut=len(names) > MAX_QUEUES)


def _depths(connection: Connection, names: Sequence[str]) -> Iterator[QueueDepth]:
    for name in names:
        # An error closes a channel of AMQP.
        channel: Any = connection.channel()
        try:
            reply = channel.queue_declare(queue=name, passive=True)
            yield QueueDepth(name=name, messages=int(reply.message_count))
        except connection.channel_errors as error:
            if str(getattr(error, "reply_code", "")) != _NOT_FOUND:
                yield QueueDepth(name=name, messages=None, error=type(error).__name__)
            elif isinstance(channel, virtual.Channel):
                # Redis has no key for an empty queue.
                yield QueueDepth(name=name, messages=0)
            else:
                yield QueueDepth(name=name, messages=None, error="the broker has no such queue")
        finally:
            with suppress(*connection.channel_errors, *connection.connection_errors):
                channel.close()
