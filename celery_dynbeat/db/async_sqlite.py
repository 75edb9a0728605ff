"""aiosqlite after a cancellation: each file is closed, and each lock is released.

A cancellation, such as that of ``asyncio.timeout``, leaves aiosqlite 0.22 and sqlite3 in three
states from which they do not return by themselves:

    the thread opens the file after it      the file stays open until a garbage collection
    a statement is executed, but not read   sqlite3_close_v2() keeps its transaction, and so the
                                            write lock, until the cursor is garbage
    stop() while close() waits              close() waits for a thread that has ended

Sources: the code of aiosqlite.core; SQLite, "Closing A Database Connection".
"""

import asyncio
import sqlite3
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import aiosqlite
from sqlalchemy import Engine, event


def survive_cancellations(engine: Engine) -> None:
    """Make the connections of ``engine`` close as described above."""

    @event.listens_for(engine, "do_connect")
    def _connect(
        dialect: Any, _record: Any, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        opening = _OpeningFile(named.get("factory", _File))
        # The event loop closes a connection that the thread of aiosqlite opened.
        options = {**named, "factory": opening.open, "check_same_thread": False}
        options.setdefault("async_creator_fn", _connection)
        try:
            return dialect.connect(*positional, **options)
        except BaseException:
            opening.abandon()
            raise


def _connection(*positional: Any, iter_chunk_size: int = 64, **named: Any) -> "_Connection":
    connection = _Connection(partial(sqlite3.connect, *positional, **named), iter_chunk_size)
    # A process must not wait at its end for a connection that nobody closed.
    connection._thread.daemon = True  # noqa: SLF001 - as SQLAlchemy does
    return connection


class _Connection(aiosqlite.Connection):
    """A connection whose thread is stopped once."""

    _is_stopped = False

    def stop(self) -> asyncio.Future[Any] | None:
        """Close the file and end the thread. Return None, without a wait, if that has begun."""
        if self._is_stopped:
            return None
        self._is_stopped = True
        return super().stop()


class _File(sqlite3.Connection):
    """A connection of sqlite3 that ends its statements before it closes."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    def cursor(self, *positional: Any, **named: Any) -> Any:
        """Return a cursor, which closes with the connection."""
        cursor = super().cursor(*positional, **named)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        """Roll the transaction back and close the file at once."""
        cursors = list(self._cursors)
        self._cursors.clear()
        for each in cursors:
            each.close()
        super().close()


class _OpeningFile:
    """A connection of sqlite3 that another thread opens. The later of two threads closes it."""

    def __init__(self, factory: Callable[..., sqlite3.Connection]) -> None:
        self._factory = factory
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._is_abandoned = False

    def open(self, *positional: Any, **named: Any) -> sqlite3.Connection:
        """Return the open connection; a closed one after ``abandon``."""
        opened = self._factory(*positional, **named)
        with self._lock:
            self._opened = opened
            is_abandoned = self._is_abandoned
        if is_abandoned:
            opened.close()
        return opened

    def abandon(self) -> None:
        """Close the connection, now or when it is open."""
        with self._lock:
            self._is_abandoned = True
            opened = self._opened
        if opened is not None:
            opened.close()
