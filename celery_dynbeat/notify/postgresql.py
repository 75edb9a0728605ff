"""Change notifications through NOTIFY and LISTEN of PostgreSQL.

NOTIFY is part of the transaction. The server delivers it at the commit and discards it at a
rollback. The listener is a thread with an asyncio loop and a separate connection. The engine
creates that connection, so it reaches the same server:

    connect -> LISTEN -> verify -> wake (for missed changes) -> wait for notifications
      ^                    |                                      | notification: wake
      |                    | no notification: use the fallback    | PING_INTERVAL: ping
      |                    |                                      |
      +--- pause ----------+--------------------------------------+ error or timeout

To verify LISTEN, the listener sends a NOTIFY with a token through the engine's pool. Behind a
pooler in transaction mode, the waiting connection has no server connection and receives nothing,
without any error. Then the fallback (the broker's fanout exchange, or polling) takes over.
``Node.notifier`` shows this to the applications, which then publish to the broker as well. The
listener repeats the check every UNUSABLE_PAUSE.

The ping is a query with a timeout. It detects a connection that a proxy or a dead server dropped
without a close.
"""

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, LiteralString

import psycopg
from psycopg.sql import SQL, Composed, Identifier
from sqlalchemy import select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from celery_dynbeat.common.events import Event
from celery_dynbeat.db import table_names
from celery_dynbeat.db.connections import STATEMENT_TIMEOUTS
from celery_dynbeat.db.dialects.postgresql import notify
from celery_dynbeat.db.engine import Database
from celery_dynbeat.notify import Listener, Notifier, Transport, reconnect_back_off
from celery_dynbeat.store.nodes import beat_listens_to_broker

logger = logging.getLogger(__name__)

PING_INTERVAL = 10.0
RESPONSE_TIMEOUT = 5.0
STOP_TIMEOUT = 5.0
#: Seconds between two checks of a listener that receives nothing.
UNUSABLE_PAUSE = 60.0
#: The payload of a check; a token follows. Listeners of other versions ignore it by this word.
CHECK_PREFIX = "proof "
_LISTEN = SQL("LISTEN {}")


class PostgresNotifier:
    """Wakes beat through the database.

    ``make_fallback`` returns the notifier to use where LISTEN does not work.
    """

    transport = Transport.POSTGRESQL

    def __init__(self, database: Database, make_fallback: Callable[[], Notifier]) -> None:
        self._database = database
        self._make_fallback = make_fallback

    @cached_property
    def _fallback(self) -> Notifier:
        return self._make_fallback()

    def notify(self, session: Session) -> None:
        """Queue the notification in the transaction of ``session``."""
        statement = select(notify(), beat_listens_to_broker())
        if session.execute(statement).one()[1]:
            self._fallback.notify(session)

    def listener(self, wake: Callable[[], None]) -> "PostgresListener":
        """Return the thread that listens."""
        return PostgresListener(self._database, wake, lambda: self._fallback.listener(wake))


class PostgresListener:
    """A thread that waits for notifications and reconnects after an error."""

    def __init__(
        self,
        database: Database,
        wake: Callable[[], None],
        make_fallback: Callable[[], Listener],
    ) -> None:
        self._database = database
        self._wake = wake
        self._make_fallback = make_fallback
        self._fallback: Listener | None = None
        self._thread = threading.Thread(target=self._run, name="dynbeat-listen", daemon=True)
        self._stopping = threading.Event()
        self._back_off = reconnect_back_off()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def transport(self) -> Transport:
        """POSTGRESQL, or the transport of the fallback when the check failed."""
        fallback = self._fallback
        return Transport.POSTGRESQL if fallback is None else fallback.transport

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel the wait and stop the thread."""
        self._stopping.set()
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT)
        self._stop_fallback()

    def _run(self) -> None:
        try:
            asyncio.run(self._listen_until_stopped())
        except asyncio.CancelledError:
            logger.debug("listener stopped")

    async def _listen_until_stopped(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        while not self._stopping.is_set():
            try:
                await self._listen()
            except _ListenerUnusableError:
                self._start_fallback()
                await asyncio.sleep(UNUSABLE_PAUSE)
            except (psycopg.Error, DBAPIError, PoolTimeoutError, OSError, TimeoutError) as error:
                pause = self._back_off.next_delay()
                logger.warning(
                    "listener lost its connection (%s); reconnecting in %.1f s, polling until then",
                    type(error).__name__,
                    pause,
                    extra={"event": Event.LISTENER_FAILED},
                )
                await asyncio.sleep(pause)

    async def _listen(self) -> None:
        connection = await self._connect()
        try:
            await _execute(connection, _LISTEN.format(Identifier(table_names().channel)))
            await self._verify(connection)
            self._back_off.reset()
            self._stop_fallback()
            # Changes before the LISTEN sent no notification to this connection.
            self._wake()
            while True:
                async for notification in connection.notifies(timeout=PING_INTERVAL):
                    # The check of another listener is not a change.
                    if not notification.payload.startswith(CHECK_PREFIX):
                        self._wake()
                await _execute(connection, "SELECT 1")
        finally:
            # close() would wait for a server that may be unreachable.
            connection.pgconn.finish()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        # This blocks the loop, which serves only this listener. A thread of asyncio's executor
        # would delay the exit of the process.
        connection = _connect(self._database)
        await connection.set_autocommit(True)
        # A pooler may run each statement on another server connection.
        connection.prepare_threshold = None
        return connection

    async def _verify(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Wait for a notification that the pool sent. Raises _ListenerUnusableError."""
        payload = f"{CHECK_PREFIX}{uuid.uuid4().hex}"
        self._database.run(lambda session: session.execute(select(notify(payload))))
        notifications = connection.notifies(timeout=RESPONSE_TIMEOUT)
        async for notification in notifications:
            if notification.payload == payload:
                await notifications.aclose()
                return
        raise _ListenerUnusableError

    def _start_fallback(self) -> None:
        if self._fallback is not None:
            return
        fallback = self._make_fallback()
        logger.warning(
            "LISTEN receives no notification: is %s a pooler in transaction mode? Beat uses %s"
            " instead; set dynbeat_notifier to 'broker', or give beat the URL of the server",
            self._database.shown_url,
            fallback.transport,
            extra={"event": Event.LISTENER_UNUSABLE},
        )
        fallback.start()
        self._fallback = fallback

    def _stop_fallback(self) -> None:
        fallback, self._fallback = self._fallback, None
        if fallback is not None:
            fallback.stop()


class _ListenerUnusableError(Exception):
    """LISTEN works without error, but its connection receives no notification."""


def _connect(database: Database) -> psycopg.AsyncConnection[Any]:
    """Return a connection to the server of ``database``, outside its pool.

    An engine on psycopg creates it like its own connections: several hosts, ``connect_args``, a
    ``creator`` and listeners of ``do_connect`` apply. For engines on other drivers only the URL
    and the libpq options of ``connect_args`` apply.
    """
    if database.engine.dialect.driver != "psycopg":
        return _Detached(psycopg.connect(**_parameters(database)))
    # From a separate pool, because a pooled connection may be dead.
    fairy = database.engine.pool.recreate().connect()
    driver_connection: Any = fairy.driver_connection
    fairy.detach()
    return _Detached(driver_connection)


class _Detached(psycopg.AsyncConnection[Any]):
    """A blocking psycopg connection that asyncio waits for."""

    def __init__(self, blocking: psycopg.Connection[Any]) -> None:
        super().__init__(blocking.pgconn)
        # Keep a reference, because its garbage collection would close the connection.
        self._blocking = blocking


def _parameters(database: Database) -> dict[str, Any]:
    """Return the libpq parameters of the URL and of ``connect_args``."""
    url = make_url(database.engine.url).difference_update_query(STATEMENT_TIMEOUTS)
    dialect = url.set(drivername="postgresql+psycopg").get_dialect()()
    _, named = dialect.create_connect_args(url)
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = {key: value for key, value in database.connect_args.items() if key in known}
    return {"connect_timeout": int(RESPONSE_TIMEOUT), **named, **given}


async def _execute(
    connection: psycopg.AsyncConnection[Any], statement: LiteralString | Composed
) -> None:
    """Execute a statement. Raises TimeoutError after RESPONSE_TIMEOUT seconds."""
    running = asyncio.ensure_future(connection.execute(statement))
    done, _ = await asyncio.wait({running}, timeout=RESPONSE_TIMEOUT)
    if not done:
        # This comes before cancel(), because psycopg would send a cancel request to the server and
        # wait for it.
        connection.pgconn.finish()
        running.cancel()
        with suppress(asyncio.CancelledError, psycopg.Error):
            await running
        raise TimeoutError
    running.result()
