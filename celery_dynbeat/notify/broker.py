"""Change notifications through a fanout exchange on Celery's broker.

A hook on the caller's session publishes the notification after the commit. If the broker does not
accept it, the change stays committed, and beat sees it at its next poll. In the thread of an event
loop, a thread of the loop's executor publishes.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from celery import Celery
from kombu import Connection, Consumer, Exchange, Queue, pools
from kombu.exceptions import OperationalError
from kombu.utils.uuid import uuid
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from celery_dynbeat.broker.connection import ping, set_read_timeout
from celery_dynbeat.common.events import Event
from celery_dynbeat.notify import Transport, reconnect_back_off

logger = logging.getLogger(__name__)

EXCHANGE = Exchange("dynbeat.change", type="fanout", durable=False, delivery_mode="transient")
#: Seconds for one publish. The caller of the API waits for two of them at most.
PUBLISH_TIMEOUT = 2.0
STOP_TIMEOUT = 5.0
PING_INTERVAL = 10.0
_PENDING = "dynbeat_notify"


class BrokerNotifier:
    """Wakes beat through the broker, for databases without notifications."""

    transport = Transport.BROKER

    def __init__(self, app: Celery) -> None:
        self._app = app

    def notify(self, session: Session) -> None:
        """Publish one notification after the commit, for any number of changes."""
        if _PENDING not in session.info:
            event.listen(session, "after_commit", self._after_commit)
            event.listen(session, "after_transaction_end", _after_end)
        session.info[_PENDING] = True

    def listener(self, wake: Callable[[], None]) -> "BrokerListener":
        """Return the thread that consumes the notifications."""
        return BrokerListener(self._app, wake)

    def _after_commit(self, session: Session) -> None:
        # The release of a savepoint also calls this hook. Only the outermost commit counts.
        if session.in_nested_transaction() or not session.info.get(_PENDING):
            return
        session.info[_PENDING] = False
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._publish_or_warn()
        else:
            # The event loop must not wait for the broker. asyncio.run() waits for its threads.
            loop.run_in_executor(None, self._publish_or_warn)

    def _publish_or_warn(self) -> None:
        try:
            self._publish()
        # The change is committed. An exception would make the caller believe that it failed.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "change notification failed (%s); beat will see the change at its next poll",
                type(error).__name__,
                extra={"event": Event.NOTIFY_FAILED},
            )

    @cached_property
    def _pool_connection(self) -> Connection:
        # The key of a connection pool; never opened itself. The connections of the application's
        # pool may have no timeout.
        connection: Connection = self._app.connection_for_write()
        if connection.transport.driver_type == "amqp":
            timeouts = {"read_timeout": PUBLISH_TIMEOUT, "write_timeout": PUBLISH_TIMEOUT}
            given = connection.transport_options or {}
            connection.transport_options = {**timeouts, **given, "confirm_publish": False}
        set_read_timeout(connection, within=PUBLISH_TIMEOUT)
        return connection

    def _publish(self) -> None:
        producers = pools.producers[self._pool_connection]
        with producers.acquire(block=True, timeout=PUBLISH_TIMEOUT) as producer:
            connection = producer.connection
            try:
                producer.publish(
                    {},
                    exchange=EXCHANGE,
                    declare=[EXCHANGE],
                    serializer="json",
                    retry=True,
                    retry_policy={"max_retries": 1, "interval_start": 0},
                )
            except connection.connection_errors as error:
                raise OperationalError(str(error)) from error


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info[_PENDING] = False


class BrokerListener:
    """A thread with its own connection and queue. Both are deleted when it stops."""

    transport = Transport.BROKER

    def __init__(self, app: Celery, wake: Callable[[], None]) -> None:
        self._app = app
        self._wake = wake
        self._stopping = threading.Event()
        self._back_off = reconnect_back_off()
        self._thread = threading.Thread(target=self._run, name="dynbeat-listen", daemon=True)

    def start(self) -> None:
        """Start to consume."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT)

    def _run(self) -> None:
        while not self._stopping.is_set():
            connection = self._app.connection_for_read(heartbeat=10)
            set_read_timeout(connection)
            try:
                self._consume(connection)
            # Each transport raises its own errors. Without the listener, beat would only poll.
            except Exception as error:  # noqa: BLE001
                pause = self._back_off.next_delay()
                logger.warning(
                    "listener lost the broker (%s); reconnecting in %.1f s, polling until then",
                    type(error).__name__,
                    pause,
                    extra={"event": Event.LISTENER_FAILED},
                )
                # close() would wait for a reply, which a server that hangs never sends.
                with suppress(Exception):
                    connection.collect()
                self._stopping.wait(pause)
            finally:
                with suppress(Exception):
                    connection.release()

    def _consume(self, connection: Connection) -> None:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
        queue = Queue(
            f"dynbeat.change.{uuid()}", EXCHANGE, exclusive=True, auto_delete=True, durable=False
        )
        with Consumer(
            connection, [queue], callbacks=[self._on_notification], no_ack=True, accept=["json"]
        ):
            # The queue has no notification of changes before it was bound.
            self._wake()
            pinged_at = time.monotonic()
            while not self._stopping.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=1)
                # Not earlier, because drain_events() reads a refusal of the channel by Redis.
                self._back_off.reset()
                if connection.supports_heartbeats:
                    connection.heartbeat_check()
                if time.monotonic() - pinged_at > PING_INTERVAL:
                    ping(connection)
                    pinged_at = time.monotonic()

    def _on_notification(self, body: Any, message: Any) -> None:
        del body, message
        self._wake()
