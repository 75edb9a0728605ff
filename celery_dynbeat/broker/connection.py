"""A connection to the broker that waits for no answer without end.

A connection can fall silent without an end: a server that hangs, a network that swallows. So

- each answer is awaited for a limited time, on Redis and on AMQP;
- before each use, Redis is asked for a sign of life, and on AMQP what the broker has said meanwhile
  is read: that it closes, that it is blocked (short of memory or disk space, it reads nothing from
  publishers), its heartbeats.
"""

from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.exceptions import OperationalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu import Connection

CONNECT_TIMEOUT = 5.0
#: For an answer to one command; an option of the transport comes first.
RESPONSE_TIMEOUT = 10.0
#: For the answer to a farewell, which nobody needs.
CLOSE_TIMEOUT = 1.0
#: Not shorter: between two of them beat may have to wait for its database.
HEARTBEAT = 30.0
# Not 0: with that, the driver would spin in the middle of a frame.
AT_ONCE = 0.001


def set_read_timeout(connection: "Connection", *, within: float | None = None) -> None:
    """Let a connection to Redis that is not open yet wait for its answers for a limited time."""
    if connection.transport.driver_type == "redis":
        answer = RESPONSE_TIMEOUT if within is None else within
        limits = {"socket_timeout": answer, "socket_connect_timeout": min(answer, CONNECT_TIMEOUT)}
        connection.transport_options = {**limits, **(connection.transport_options or {})}


def ping(connection: "Connection") -> None:
    """Raise when the broker does not answer; AMQP has heartbeats for that."""
    if connection.transport.driver_type == "redis":
        channel: Any = connection.default_channel
        channel.client.ping()


class BrokerConnection:
    """A connection to the broker, for one thread, that waits for no answer without end."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.blocked = False
        self.connection = self._new_connection()

    def _new_connection(self) -> "Connection":
        heartbeat = HEARTBEAT if self._app.conf.broker_heartbeat else 0
        connection: Connection = self._app.connection_for_write(heartbeat=heartbeat)
        options = connection.transport_options or {}
        self.is_amqp = bool(connection.transport.driver_type == "amqp")
        self._answer_within = options.get("read_timeout", RESPONSE_TIMEOUT)
        if self.is_amqp:
            # A confirm awaited for each message costs most of the rate; ours are pipelined.
            options = {**options, "confirm_publish": False, **self._notices()}
            connection.transport_options = options
        set_read_timeout(connection)
        return connection

    def connect(self) -> None:
        """Be connected, to a broker that takes messages, or raise after a few seconds."""
        if self.connection.connected:
            self._catch_up()
        self.check_blocked()
        if self.connection.connected:
            return
        self.connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_TIMEOUT)
        self._limit(self._answer_within)

    def check_blocked(self) -> None:
        """Raise OperationalError when the broker has said that it takes nothing for now."""
        if self.blocked:
            raise OperationalError(
                "the broker has blocked the connection: it is short of memory or disk space"
            )

    def abandon(self) -> None:
        """Let the connection go without a word: its answers can no longer be told apart."""
        abandoned, self.connection = self.connection, self._new_connection()
        self.blocked = False
        abandoned.collect()

    def close(self) -> None:
        """Close the connection in good order, if the broker listens."""
        if self.blocked:
            self.abandon()
        self._limit(CLOSE_TIMEOUT)
        self.connection.release()

    def _catch_up(self) -> None:
        """Hear whether the broker is there; without a connection, if it is not."""
        try:
            if self.is_amqp:
                self._read_notices()
                self.connection.heartbeat_check()
            ping(self.connection)
        except (*self.connection.connection_errors, OSError):
            self.abandon()

    def _read_notices(self) -> None:
        while True:
            try:
                self.connection.drain_events(timeout=AT_ONCE)
            except TimeoutError:
                return

    def _limit(self, seconds: float | None) -> None:
        # Not the driver's own read_timeout: it has no effect on TLS.
        if self.is_amqp and self.connection.connected:
            self.connection.connection.sock.settimeout(seconds)

    def _notices(self) -> "dict[str, Callable[..., None]]":
        def on_blocked(_reason: str) -> None:
            self.blocked = True

        def on_unblocked() -> None:
            self.blocked = False

        return {"on_blocked": on_blocked, "on_unblocked": on_unblocked}
