"""A broker connection with a timeout on every response.

A broker or a network can stop responding without closing the connection. Therefore:

- each response has a timeout, on Redis and on AMQP;
- before a use, the connection pings Redis. On AMQP it reads the pending frames: connection close,
  ``connection.blocked`` (the broker is short of memory or disk space and reads nothing from
  publishers), and heartbeats. A pass of beat skips this check if the last check is not older than
  PING_INTERVAL.
"""

import math
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError

from celery_dynbeat.common.errors import ConfigurationError

REDIS_SCHEMES = frozenset({"redis", "rediss", "sentinel"})
CONNECT_TIMEOUT = 5.0
#: Seconds for the response to one command. ``broker_transport_options`` override it.
RESPONSE_TIMEOUT = 10.0
#: Seconds for the reply to a close. The reply is not needed.
CLOSE_TIMEOUT = 1.0
#: Seconds. A shorter interval could expire while beat waits for its database.
HEARTBEAT = 30.0
#: Seconds. A ping in each pass took 7 % of the processor time of a pass with one run.
PING_INTERVAL = 0.1
# Seconds. With 0, the driver would busy-wait in the middle of a frame.
NO_WAIT = 0.001


def set_read_timeout(connection: Connection, *, within: float | None = None) -> None:
    """Set the socket timeouts of a Redis connection that is not open yet.

    ``within`` is in seconds; None means RESPONSE_TIMEOUT.
    """
    if connection.transport.driver_type == "redis":
        timeout = RESPONSE_TIMEOUT if within is None else within
        timeouts = {
            "socket_timeout": timeout,
            "socket_connect_timeout": min(timeout, CONNECT_TIMEOUT),
        }
        connection.transport_options = {**timeouts, **(connection.transport_options or {})}


def ping(connection: Connection) -> None:
    """Ping Redis and raise when it does not respond. AMQP has heartbeats instead."""
    if connection.transport.driver_type == "redis":
        channel: Any = connection.default_channel
        channel.client.ping()


def _scheme_of(app: Celery) -> str:
    # Not the URL, which can contain a password.
    return str(app.conf.broker_write_url).partition("://")[0]


def _transport_missing(scheme: str, error: ImportError) -> ConfigurationError:
    how = (
        "pip install 'celery-dynbeat[redis]'"
        if scheme in REDIS_SCHEMES
        else "install what this transport of kombu needs"
    )
    return ConfigurationError(
        f"broker_url is {scheme}://..., and a package for it is not installed ({error}): {how}"
    )


class BrokerConnection:
    """A broker connection for one thread, with a timeout on every response.

    It connects at ``connect``. Raises ConfigurationError if a package of its transport is missing.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.blocked = False
        self._checked_at = -math.inf
        self.connection = self._new_connection()

    def _new_connection(self) -> Connection:
        scheme = _scheme_of(self._app)
        try:
            if scheme in REDIS_SCHEMES:
                # If this package is missing, kombu's transport raises an AttributeError.
                import_module("redis")
            return self._configured_connection()
        except ImportError as error:
            raise _transport_missing(scheme, error) from error

    def _configured_connection(self) -> Connection:
        heartbeat = HEARTBEAT if self._app.conf.broker_heartbeat else 0
        connection: Connection = self._app.connection_for_write(heartbeat=heartbeat)
        options = connection.transport_options or {}
        self.is_amqp = bool(connection.transport.driver_type == "amqp")
        self._response_timeout = options.get("read_timeout", RESPONSE_TIMEOUT)
        if self.is_amqp:
            # kombu would wait for the confirm of each message. Publisher pipelines the confirms.
            options = {**options, "confirm_publish": False, **self._blocked_callbacks()}
            connection.transport_options = options
        set_read_timeout(connection)
        return connection

    def connect(self, *, max_age: float = 0.0) -> None:
        """Connect, and check that the broker accepts messages. Raise after a few seconds.

        A check that was made at most ``max_age`` seconds ago is not repeated.
        """
        if self.connection.connected and time.monotonic() - self._checked_at >= max_age:
            self._checked_at = time.monotonic()
            self._check_alive()
        self.check_blocked()
        if self.connection.connected:
            return
        self.connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_TIMEOUT)
        self._set_socket_timeout(self._response_timeout)

    def check_blocked(self) -> None:
        """Raise OperationalError while the broker blocks the connection."""
        if self.blocked:
            raise OperationalError(
                "the broker has blocked the connection: it is short of memory or disk space"
            )

    def abandon(self) -> None:
        """Drop the connection without a close.

        A late response could be mistaken for another response.
        """
        abandoned, self.connection = self.connection, self._new_connection()
        self._checked_at = -math.inf
        self.blocked = False
        abandoned.collect()

    def close(self) -> None:
        """Close the connection. Abandon it when the broker has blocked it."""
        if self.blocked:
            self.abandon()
        self._set_socket_timeout(CLOSE_TIMEOUT)
        self.connection.release()

    def _check_alive(self) -> None:
        """Check that the broker responds, and abandon the connection when it does not."""
        try:
            if self.is_amqp:
                self._read_pending_frames()
                self.connection.heartbeat_check()
            ping(self.connection)
        except (*self.connection.connection_errors, OSError):
            self.abandon()

    def _read_pending_frames(self) -> None:
        while True:
            try:
                self.connection.drain_events(timeout=NO_WAIT)
            except TimeoutError:
                return

    def _set_socket_timeout(self, seconds: float | None) -> None:
        # The driver's own read_timeout has no effect on TLS.
        if self.is_amqp and self.connection.connected:
            self.connection.connection.sock.settimeout(seconds)

    def _blocked_callbacks(self) -> dict[str, Callable[..., None]]:
        def on_blocked(_reason: str) -> None:
            self.blocked = True

        def on_unblocked() -> None:
            self.blocked = False

        return {"on_blocked": on_blocked, "on_unblocked": on_unblocked}
