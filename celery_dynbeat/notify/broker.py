"""A fanout exchange on Celery's own broker.

The notice is published after the commit, by a hook on the caller's session. It is a hint and
nothing else: when the broker does not take it, the change stands all the same and beat finds it by
polling.
"""

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
from celery_dynbeat.notify.base import Transport, reconnect_back_off

logger = logging.getLogger(__name__)

EXCHANGE = Exchange("dynbeat.change", type="fanout", durable=False, delivery_mode="transient")
#: For the broker to take a notice; whoever made the change waits so long, twice at most.
PUBLISH_TIMEOUT = 2.0
STOP_TIMEOUT = 5.0
ASK_EVERY = 10.0
_PENDING = "dynbeat_announce"


class BrokerNotifier:
    """Wakes beat through the broker, for databases that cannot."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def notify(self, session: Session) -> None:
        """Publish one notice after the commit, however many changes the transaction holds."""
        if _PENDING not in session.info:
            event.listen(session, "after_commit", self._after_commit)
            event.listen(session, "after_transaction_end", _after_end)
        session.info[_PENDING] = True

    def listener(self, wake: Callable[[], None]) -> "BrokerListener":
        """Return the thread that consumes the notices."""
        return BrokerListener(self._app, wake)

    def _after_commit(self, session: Session) -> None:
        # A savepoint that is released "commits" too; only the outermost one counts.
        if session.in_nested_transaction() or not session.info.get(_PENDING):
            return
        session.info[_PENDING] = False
        try:
            self._publish()
        # The commit stands, and the caller must not be told otherwise by a mere hint that failed.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "beat was not told of a change (%s); it will find it by polling",
                type(error).__name__,
                extra={"event": Event.NOTIFY_FAILED},
            )

    @cached_property
    def _to_broker(self) -> Connection:
        # Never opened: it names a pool. Not the application's own, whose connections may wait for
        # an answer without end.
        connection: Connection = self._app.connection_for_write()
        if connection.transport.driver_type == "amqp":
            limits = {"read_timeout": PUBLISH_TIMEOUT, "write_timeout": PUBLISH_TIMEOUT}
            given = connection.transport_options or {}
            connection.transport_options = {**limits, **given, "confirm_publish": False}
        set_read_timeout(connection, within=PUBLISH_TIMEOUT)
        return connection

    def _publish(self) -> None:
        producers = pools.producers[self._to_broker]
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
    """A thread with a connection and a queue of its own, both gone when it stops."""

    transport = Transport.BROKER

    def __init__(self, app: Celery, wake: Callable[[], None]) -> None:
        self._app = app
        self._wake = wake
        self._stopping = threading.Event()
        self._back_off = reconnect_back_off()
        self._thread = threading.Thread(target=self._run, name="dynbeat-listen", daemon=True)

    def start(self) -> None:
        """Begin to consume."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT)

    def _run(self) -> None:
        while not self._stopping.is_set():
            connection = self._app.connection_for_read(heartbeat=10)
            set_read_timeout(connection)
            try:
                self._consume(connection)
            # Each transport has its own errors, and a listener that dies is a beat that is late.
            except Exception as error:  # noqa: BLE001
                pause = self._back_off.next_delay()
                logger.warning(
                    "listener lost the broker (%s), again in %.1f s; beat polls meanwhile",
                    type(error).__name__,
                    pause,
                    extra={"event": Event.LISTENER_FAILED},
                )
                # Without a farewell, to which a server that hangs would never reply.
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
            connection, [queue], callbacks=[self._on_notice], no_ack=True, accept=["json"]
        ):
            # What changed before the queue was bound was heard by nobody.
            self._wake()
            asked_at = time.monotonic()
            while not self._stopping.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=1)
                # Not before: Redis refuses a channel in its answer, which is read here.
                self._back_off.reset()
                if connection.supports_heartbeats:
                    connection.heartbeat_check()
                if time.monotonic() - asked_at > ASK_EVERY:
                    ping(connection)
                    asked_at = time.monotonic()

    def _on_notice(self, body: Any, message: Any) -> None:
        del body, message
        self._wake()
