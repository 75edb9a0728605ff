"""Single statements in autocommit mode, at little more than the cost of the driver.

A worker executes two statements for each run. In a session, most of their time is SQLAlchemy's: it
compiles lists, creates the session and its transaction, and changes the mode of the connection and
back. Here a statement is compiled once, and its connection stays in autocommit mode between two
statements. SQLAlchemy still executes it, so that errors and lost connections are handled as always.

At most one connection is kept. It belongs to the pool and returns to it before any other use of the
engine, and before a fork. While another thread waits for a connection or uses one, none is kept.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Row, Select, Update, event
from sqlalchemy.sql.compiler import SQLCompiler

from celery_dynbeat.db import connections

T = TypeVar("T")

_instances: "weakref.WeakSet[SingleStatements]" = weakref.WeakSet()
#: In a forked process: connections of its parent. If they were freed, they would be reset on the
#: parent's socket.
_of_parent: list[object] = []


def return_all() -> None:
    """Return each kept connection of this process to its pool, before a fork."""
    for instance in list(_instances):
        instance.return_kept()


def forget_all() -> None:
    """Forget what belongs to the parent, after a fork.

    A thread of the parent may have kept a connection after ``return_all``, or may use one now.
    """
    for instance in list(_instances):
        _of_parent.extend(instance.forget())


class SingleStatements:
    """Executes statements of ``engine`` in autocommit mode.

    Several threads may use it. A connection is kept only if ``keeps`` is true. It is closed when
    the engine is disposed of.
    """

    def __init__(self, engine: Engine, *, keeps: bool) -> None:
        # This engine shares the pool.
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._keeps = keeps
        # Threads take it out while they use it.
        self._kept: deque[tuple[Connection, float]] = deque()
        # One item for each thread that waits for a connection of the pool, or uses another one.
        self._others: deque[None] = deque()
        self._compiled: dict[Update | Select[Any], _Compiled] = {}
        _instances.add(self)
        event.listen(engine, "engine_disposed", self._on_disposed)

    def execute(self, statement: Update, values: Mapping[str, Any]) -> int:
        """Execute ``statement`` with its parameters, and return its row count."""
        return self._execute(statement, values, lambda result: result.rowcount)

    def read_row(self, statement: Select[Any], values: Mapping[str, Any]) -> Row[Any]:
        """Execute ``statement`` with its parameters, and return its only row."""
        return self._execute(statement, values, lambda result: result.one())

    def _execute(
        self,
        statement: Update | Select[Any],
        values: Mapping[str, Any],
        read: Callable[[CursorResult[Any]], T],
    ) -> T:
        compiled = self._compiled.get(statement)
        if compiled is None:
            compiled = self._compiled[statement] = _Compiled(statement, self._engine)
        parameters = compiled.parameters(values)
        connection = self._take()
        try:
            answer = read(connection.exec_driver_sql(compiled.sql, parameters))
        except BaseException:
            # The pool resets it, or replaces it if it is lost.
            connection.close()
            raise
        if self._keeps and not self._kept and not self._others:
            self._kept.append((connection, time.monotonic()))
            if self._others:
                # It began to wait meanwhile.
                self.return_kept()
        else:
            connection.close()
        return answer

    def _take(self) -> Connection:
        kept = self._pop()
        if kept is None:
            return self._connect()
        connection, used_at = kept
        if time.monotonic() - used_at < connections.PING_AFTER_SECONDS:
            return connection
        # The pool pings it at the next checkout.
        _return(connection, used_at)
        return self._connect()

    def _connect(self) -> Connection:
        with self.keeping_none():
            return self._engine.connect()

    @contextmanager
    def keeping_none(self) -> Iterator[None]:
        """Keep no connection during the block, which may wait for one."""
        self._others.append(None)
        try:
            self.return_kept()
            yield
        finally:
            self._others.pop()

    def forget(self) -> list[tuple[Connection, float]]:
        """Return what is kept. Afterwards no connection is kept, and no thread is waiting."""
        kept = list(self._kept)
        self._kept.clear()
        self._others.clear()
        return kept

    def return_kept(self) -> None:
        """Return the kept connection to its pool."""
        kept = self._pop()
        if kept is not None:
            _return(*kept)

    def _on_disposed(self, _engine: Engine) -> None:
        # The pool of this connection is gone.
        kept = self._pop()
        if kept is not None:
            kept[0].detach()
            kept[0].close()

    def _pop(self) -> tuple[Connection, float] | None:
        try:
            return self._kept.pop()
        except IndexError:
            return None


def _return(connection: Connection, used_at: float) -> None:
    record = connection.info
    connection.close()
    connections.set_used_at(record, used_at)


class _Compiled:
    """The SQL text of a statement, and how to convert its parameters for the driver."""

    def __init__(self, statement: Update | Select[Any], engine: Engine) -> None:
        dialect = engine.dialect
        compiled = statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)  # noqa: S101 - what SQL compiles to
        assert not compiled.post_compile_params, "a list has one parameter for each value"  # noqa: S101
        self.sql = compiled.string
        self._order = compiled.positiontup if compiled.positional else None
        self._constants: dict[str, Any] = {}
        self._converters: dict[str, Callable[[Any], Any] | None] = {}
        for name, parameter in compiled.binds.items():
            convert = parameter.type.dialect_impl(dialect).bind_processor(dialect)
            if parameter.required:
                self._converters[name] = convert
            else:
                self._constants[name] = (
                    parameter.value if convert is None else convert(parameter.value)
                )

    def parameters(self, values: Mapping[str, Any]) -> dict[str, Any] | tuple[Any, ...]:
        """Return ``values`` and the constants of the statement, as the driver takes them."""
        parameters = dict(self._constants)
        for name, convert in self._converters.items():
            value = values[name]
            parameters[name] = value if convert is None else convert(value)
        if self._order is None:
            return parameters
        return tuple(parameters[name] for name in self._order)
