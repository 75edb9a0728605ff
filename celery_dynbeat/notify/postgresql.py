"""PostgreSQL's NOTIFY and LISTEN.

NOTIFY is part of the transaction: the server delivers it at the commit and forgets it at a
rollback. The listener is a thread with an asyncio loop and a connection of its own:

    connect -> LISTEN -> wake (what was missed meanwhile) -> wait for a notice
                                     ^                            | a notice: wake
                                     |                            | now and then: heartbeat, and on
                                     +--- pause, reconnect <------+ error or no answer in time

A connection that went silent (a proxy that dropped it, a server that is gone without a word) does
not answer the heartbeat, which is a query of its own with a time limit.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, LiteralString

import psycopg
from sqlalchemy import URL
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects.postgresql import CHANNEL, notify_statement
from celery_dynbeat.db.timeouts import OF_STATEMENTS
from celery_dynbeat.events import Event
from celery_dynbeat.notify.base import BackOff

logger = logging.getLogger(__name__)

HEARTBEAT_EVERY = 10.0
ANSWER_WITHIN = 5.0
STOP_WITHIN = 5.0
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class PostgresNotifier:
    """Wakes beat through the database itself, which every application reaches anyway."""

    def __init__(self, url: URL, connect_args: Mapping[str, Any] = _NOTHING) -> None:
        self._url = url
        self._connect_args = connect_args

    def announce(self, session: Session) -> None:
        """Queue the notice in the transaction of ``session``."""
        session.execute(notify_statement())

    def listener(self, wake: Callable[[], None]) -> "PostgresListener":
        """Return the thread that LISTENs."""
        return PostgresListener(connection_parameters(self._url, self._connect_args), wake)


def connection_parameters(url: URL, connect_args: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """Return what psycopg needs to reach the database that SQLAlchemy knows as ``url``.

    Of ``connect_args``, those that are libpq's own: certificates, a service, a password file.
    """
    named = {
        "host": url.host,
        "port": url.port,
        "dbname": url.database,
        "user": url.username,
        "password": url.password,
    }
    given = {key: value for key, value in named.items() if value is not None}
    # Those that libpq does not know are ours, and say nothing to a connection that only listens.
    query = url.difference_update_query(OF_STATEMENTS).query
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    ours = {key: value for key, value in connect_args.items() if key in known}
    return {**given, **query, **ours, "connect_timeout": int(ANSWER_WITHIN)}


class PostgresListener:
    """A thread that waits for notices and survives the loss of its connection."""

    def __init__(self, parameters: dict[str, Any], wake: Callable[[], None]) -> None:
        self._parameters = parameters
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name="dynbeat-listen", daemon=True)
        self._stopping = threading.Event()
        self._back_off = BackOff()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel the wait and end the thread."""
        self._stopping.set()
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread.is_alive():
            self._thread.join(STOP_WITHIN)

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
            except (psycopg.Error, OSError, TimeoutError) as error:
                pause = self._back_off.failed()
                logger.warning(
                    "listener lost its connection (%s), again in %.1f s; beat polls meanwhile",
                    type(error).__name__,
                    pause,
                    extra={"event": Event.LISTENER_FAILED},
                )
                await asyncio.sleep(pause)

    async def _listen(self) -> None:
        connection = await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True)
        try:
            await _answer(connection, f"LISTEN {CHANNEL}")
            self._back_off.succeeded()
            # What changed before the LISTEN was heard by nobody.
            self._wake()
            while True:
                async for _ in connection.notifies(timeout=HEARTBEAT_EVERY):
                    self._wake()
                await _answer(connection, "SELECT 1")
        finally:
            # A polite close waits for a server that may be gone.
            connection.pgconn.finish()


async def _answer(connection: psycopg.AsyncConnection[Any], statement: LiteralString) -> None:
    """Run a statement. Raises TimeoutError when the answer does not come in time."""
    running = asyncio.ensure_future(connection.execute(statement))
    done, _ = await asyncio.wait({running}, timeout=ANSWER_WITHIN)
    if not done:
        # First: psycopg answers a cancel by asking the server for one, and waits for that too.
        connection.pgconn.finish()
        running.cancel()
        raise TimeoutError
    running.result()
