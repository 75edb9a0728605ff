"""PostgreSQL's NOTIFY and LISTEN.

NOTIFY is part of the transaction: the server delivers it at the commit and forgets it at a
rollback. The listener is a thread with an asyncio loop and a separate connection, which the
engine makes, so it reaches the server that the engine reaches:

    connect -> LISTEN -> prove -> wake (for what was missed meanwhile) -> wait for notifications
      ^                    |                            ^                   | one came: wake
      |                    | not heard: the fallback    |                   | now and then: ping
      |                    | listens meanwhile          |                   |
      +--- pause ----------+----------------------------+-------------------+ error, or no answer

The proof is a NOTIFY with a token, sent through the engine's pool. Behind a pooler in transaction
mode the waiting connection has no server connection, and receives nothing; nothing else reports
that. Then the fallback (the broker's fanout, or polling) takes over, ``Node.notifier``
tells the applications, which from then on publish to the broker too, and the proof is tried again
every minute.

A connection that went silent (a proxy that dropped it, a server that is gone without a word) does
not answer the ping, which is a query with a time limit.
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
from sqlalchemy import select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from celery_dynbeat.common.events import Event
from celery_dynbeat.db.dialects.postgresql import CHANNEL, notify
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.timeouts import STATEMENT_TIMEOUTS
from celery_dynbeat.notify.base import Listener, Notifier, Transport, reconnect_back_off
from celery_dynbeat.store.nodes import beat_listens_to_broker

logger = logging.getLogger(__name__)

PING_INTERVAL = 10.0
ANSWER_TIMEOUT = 5.0
STOP_TIMEOUT = 5.0
#: Between two proofs of a listener that hears nothing.
UNUSABLE_PAUSE = 60.0
#: Payload of a proof; a token follows.
PROOF = "proof "


class PostgresNotifier:
    """Wakes beat through the database itself, which every application reaches anyway.

    ``make_fallback`` makes what takes over where LISTEN does not work.
    """

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
        """Return the thread that LISTENs."""
        return PostgresListener(self._database, wake, lambda: self._fallback.listener(wake))


class PostgresListener:
    """A thread that waits for notifications and survives the loss of its connection."""

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
        """POSTGRESQL, unless the proof failed: then the transport of the fallback."""
        fallback = self._fallback
        return Transport.POSTGRESQL if fallback is None else fallback.transport

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel the wait and end the thread."""
        self._stopping.set()
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT)
        self._stop_fallback()

    def _run(self) -> None:
        try:
            asyncio.run(self._listen_for_ever())
        except asyncio.CancelledError:
            logger.debug("listener stopped")

    async def _listen_for_ever(self) -> None:
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
                    "listener lost its connection (%s), again in %.1f s; beat polls meanwhile",
                    type(error).__name__,
                    pause,
                    extra={"event": Event.LISTENER_FAILED},
                )
                await asyncio.sleep(pause)

    async def _listen(self) -> None:
        connection = await self._connect()
        try:
            await _answer(connection, f"LISTEN {CHANNEL}")
            await self._prove(connection)
            self._back_off.reset()
            self._stop_fallback()
            # No notification came for what changed before the LISTEN.
            self._wake()
            while True:
                async for notification in connection.notifies(timeout=PING_INTERVAL):
                    # The proof of another listener changes nothing.
                    if not notification.payload.startswith(PROOF):
                        self._wake()
                await _answer(connection, "SELECT 1")
        finally:
            # An orderly close waits for a server that may be gone.
            connection.pgconn.finish()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        # This blocks the loop, which serves this listener alone. A thread of asyncio's executor
        # would keep the process from ending.
        connection = _connect(self._database)
        await connection.set_autocommit(True)
        # A pooler may give each statement another server connection.
        connection.prepare_threshold = None
        return connection

    async def _prove(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Return when a notification that the pool sent has arrived. Raises _DeafError."""
        payload = f"{PROOF}{uuid.uuid4().hex}"
        self._database.run(lambda session: session.execute(select(notify(payload))))
        heard = connection.notifies(timeout=ANSWER_TIMEOUT)
        async for notification in heard:
            if notification.payload == payload:
                await heard.aclose()
                return
        raise _ListenerUnusableError

    def _start_fallback(self) -> None:
        if self._fallback is not None:
            return
        fallback = self._make_fallback()
        logger.warning(
            "LISTEN receives no notification: is %s a pooler in transaction mode? Beat uses %s"
            " instead; set dynbeat_notifier to 'broker', or give beat a URL of the server itself",
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
    """The connection that LISTENs hears nothing."""


def _connect(database: Database) -> psycopg.AsyncConnection[Any]:
    """Return a connection to the server that ``database`` uses, outside of its pool.

    An engine on psycopg makes it as it makes its own: with several hosts, with connect_args, a
    creator, or a listener of do_connect. What engines on other drivers keep cannot be used here;
    for them the URL counts.
    """
    if database.engine.dialect.driver != "psycopg":
        return _Detached(psycopg.connect(**_parameters(database)))
    # From a separate pool: a pooled connection may have died without an error.
    fairy = database.engine.pool.recreate().connect()
    driver_connection: Any = fairy.driver_connection
    fairy.detach()
    return _Detached(driver_connection)


class _Detached(psycopg.AsyncConnection[Any]):
    """A connection of psycopg's blocking kind, waited for by asyncio."""

    def __init__(self, blocking: psycopg.Connection[Any]) -> None:
        super().__init__(blocking.pgconn)
        # It closes the connection when it is collected.
        self._blocking = blocking


def _parameters(database: Database) -> dict[str, Any]:
    """Return what libpq needs to reach the database: the URL, and libpq's own of connect_args."""
    url = make_url(database.engine.url).difference_update_query(STATEMENT_TIMEOUTS)
    dialect = url.set(drivername="postgresql+psycopg").get_dialect()()
    _, named = dialect.create_connect_args(url)
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    ours = {key: value for key, value in database.connect_args.items() if key in known}
    return {"connect_timeout": int(ANSWER_TIMEOUT), **named, **ours}


async def _answer(connection: psycopg.AsyncConnection[Any], statement: LiteralString) -> None:
    """Run a statement. Raises TimeoutError when the answer does not come in time."""
    running = asyncio.ensure_future(connection.execute(statement))
    done, _ = await asyncio.wait({running}, timeout=ANSWER_TIMEOUT)
    if not done:
        # First: psycopg answers a cancel by asking the server for one, and waits for that too.
        connection.pgconn.finish()
        running.cancel()
        with suppress(asyncio.CancelledError, psycopg.Error):
            await running
        raise TimeoutError
    running.result()
