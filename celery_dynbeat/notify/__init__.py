"""The notifiers that wake beat after a change: their selection, and the one over the broker.

``BrokerNotifier`` uses a fanout exchange on Celery's broker. It publishes the notification after
the commit of the caller's session. If the broker does not accept it, the change stays committed,
and beat sees it at its next poll. In the thread of an event loop, a thread of the loop's executor
publishes.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

from celery import Celery
from kombu import Connection, Consumer, Exchange, Queue, pools
from kombu.exceptions import OperationalError
from kombu.utils.uuid import uuid
from sqlalchemy.orm import Session

from celery_dynbeat.broker.connection import ping, set_read_timeout
from celery_dynbeat.common.clock import BackOff
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.events import Event
from celery_dynbeat.db.engine import Database
from celery_dynbeat.telemetry import call_on_commit

logger = logging.getLogger(__name__)

EXCHANGE = Exchange("dynbeat.change", type="fanout", durable=False, delivery_mode="transient")
#: Seconds for one publish. The caller of the API waits for two of them at most.
PUBLISH_TIMEOUT = 2.0
STOP_TIMEOUT = 5.0
PING_INTERVAL = 10.0


class Transport(StrEnum):
    """The ways in which a beat receives notifications."""

    POSTGRESQL = "postgresql"
    BROKER = "broker"
    POLLING = "polling"


class Listener(Protocol):
    """The receiver in beat. Calls ``wake`` from its own thread after each committed change."""

    @property
    def transport(self) -> Transport:
        """The transport that this beat uses now."""

    def start(self) -> None:
        """Start to listen. The listener logs an error, reconnects and never raises."""

    def stop(self) -> None:
        """Stop listening within a few seconds. May be called twice."""


def reconnect_back_off(*, first: float = 1.0) -> BackOff:
    """Return the delays between the attempts of one listener to connect, in seconds."""
    return BackOff(first=first, maximum=30.0, jitter=0.25)


class Notifier(Protocol):
    """The sender of change notifications."""

    @property
    def transport(self) -> Transport:
        """The transport that was configured. A listener may use another notifier."""

    def notify(self, session: Session) -> None:
        """Wake the beats when the transaction of ``session`` commits. A rollback sends nothing."""

    def listener(self, wake: Callable[[], None]) -> Listener:
        """Return the receiver for beat."""


class NullListener:
    """A listener that receives nothing."""

    transport = Transport.POLLING

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class PollingNotifier:
    """Sends no notifications."""

    transport = Transport.POLLING

    def notify(self, session: Session) -> None:
        """Do nothing."""
        del session

    def listener(self, wake: Callable[[], None]) -> NullListener:
        """Return a listener that never wakes."""
        del wake
        return NullListener()


def choose(name: str, *, app: Celery, database: Database) -> Notifier:
    """Return the notifier for ``name``: "auto", "postgresql", "broker" or "polling".

    ``auto`` selects LISTEN/NOTIFY on PostgreSQL, otherwise the broker's fanout exchange if there is
    one, and otherwise polling. Applications and beats call the same function, so they select the
    same notifier. Raises ConfigurationError when the notifier is not available.
    """
    notifies = database.capabilities.notifies
    if name == "postgresql" and not notifies:
        msg = (
            "dynbeat_notifier = 'postgresql' needs a PostgreSQL database, and"
            f" dynbeat_database_url is {database.shown_url}; choose 'auto' or 'broker'"
        )
        raise ConfigurationError(msg)
    if name == "postgresql" or (name == "auto" and notifies):
        return _postgresql(app, database)
    if name == "broker" or (name == "auto" and _has_fanout(app)):
        return BrokerNotifier(app)
    return PollingNotifier()


def _postgresql(app: Celery, database: Database) -> Notifier:
    try:
        from celery_dynbeat.notify.postgresql import PostgresNotifier  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        msg = (
            "LISTEN and NOTIFY need psycopg 3: install celery-dynbeat[postgres], or set"
            " dynbeat_notifier to 'broker' or 'polling'"
        )
        raise ConfigurationError(msg) from error

    def make_fallback() -> Notifier:
        return BrokerNotifier(app) if _has_fanout(app) else PollingNotifier()

    return PostgresNotifier(database, make_fallback)


def _has_fanout(app: Celery) -> bool:
    # The transport declares its exchange types. This opens no connection.
    connection: Any = app.connection_for_read()
    try:
        return bool(connection.supports_exchange_type("fanout"))
    finally:
        connection.release()


class BrokerNotifier:
    """Wakes beat through the broker, for databases without notifications."""

    transport = Transport.BROKER

    def __init__(self, app: Celery) -> None:
        self._app = app

    def notify(self, session: Session) -> None:
        """Publish one notification after the commit, for any number of changes."""
        call_on_commit(session, self._after_commit)

    def listener(self, wake: Callable[[], None]) -> "BrokerListener":
        """Return the thread that consumes the notifications."""
        return BrokerListener(self._app, wake)

    def _after_commit(self) -> None:
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
