"""Close each file and release each lock of aiosqlite after a cancellation.

After a cancellation, for example by ``asyncio.timeout``, aiosqlite 0.22 and sqlite3 can stay in
three states:

    the thread opens the file later         the file stays open until a garbage collection
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
    """Make the connections of ``engine`` close their files after a cancellation."""

    @event.listens_for(engine, "do_connect")
    def _connect(
        dialect: Any, _record: Any, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        opening = _OpeningFile(_ending_statements(named.get("factory", sqlite3.Connection)))
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
    # A process does not wait at its end for a connection that is still open.
    connection._thread.daemon = True  # noqa: SLF001 - as SQLAlchemy does
    return connection


class _Connection(aiosqlite.Connection):
    """A connection whose thread is stopped once."""

    _is_stopped = False
    _stopping: asyncio.Future[Any] | None = None

    def stop(self) -> asyncio.Future[Any] | None:
        """Close the file and end the thread, once. Return a future for the end of the thread.

        Return None if the first call was made without an event loop or in another event loop.
        """
        if not self._is_stopped:
            self._is_stopped = True
            self._stopping = super().stop()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        if self._stopping is None or self._stopping.get_loop() is not loop:
            return None
        # Each caller can be cancelled. The next one waits for the same thread.
        return asyncio.shield(self._stopping)


class _EndsStatements(sqlite3.Connection):
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
        """Close the cursors, then the file. This rolls the transaction back."""
        cursors = list(self._cursors)
        self._cursors.clear()
        for each in cursors:
            each.close()
        super().close()


def _ending_statements(factory: Any) -> Callable[..., sqlite3.Connection]:
    """Return ``factory`` with the methods of _EndsStatements, or itself if it is not a class."""
    if not isinstance(factory, type):
        given: Callable[..., sqlite3.Connection] = factory
        return given
    return type(factory.__name__, (_EndsStatements, factory), {})


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
