"""The package's database connections: their timeouts, pings and poolers.

A connection can lose its server without an error: a firewall drops the connection, the host
disappears, or the server hangs. Without timeouts a process then waits until TCP gives up. That
takes a quarter of an hour, or never happens.

    connect   connect_timeout of libpq and of the MySQL drivers
    read      read_timeout of the MySQL drivers. psycopg has none: BoundedConnection measures how
              long the server has been silent
    write     tcp_user_timeout (libpq) and write_timeout (MySQL) shorten the retries of TCP
    idle      keepalives (libpq); ``ping_idle_connections``

The server answers a statement of the package within milliseconds, unless the statement waits for a
row lock. A migration may take long: it runs on a connection without read and write timeouts.

psycopg prepares a statement on the server after it has run a few times. The names of prepared
statements are numbered in each client. A pooler in transaction mode that does not track them
(PgBouncer before 1.21, or with max_prepared_statements = 0) hands the next transaction to another
server connection. On that connection the name is unknown (SQLSTATE 26000), or taken (42P05), or it
names a statement of another client. If that statement has a different number of parameters, the
server reports 08P01. If the number is the same, the server runs the wrong statement. Therefore, no
statement is prepared through a pooler. Source: psycopg, "Using prepared statements in connection
pooling services".
"""

import logging
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from celery_dynbeat.db.dialects import Capabilities

CONNECT_TIMEOUT = 10
READ_TIMEOUT = 30
#: Arguments that limit the time of a statement, even on a working connection.
STATEMENT_TIMEOUTS = ("read_timeout", "write_timeout")

_LIBPQ = MappingProxyType(
    {
        "connect_timeout": CONNECT_TIMEOUT,
        "tcp_user_timeout": READ_TIMEOUT * 1000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    },
)
_MYSQL = MappingProxyType(
    {
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": READ_TIMEOUT,
        "write_timeout": READ_TIMEOUT,
    },
)
#: Keys are SQLAlchemy's driver names. Other drivers keep their own defaults.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "psycopg": {**_LIBPQ, "read_timeout": READ_TIMEOUT},
        "psycopg2": _LIBPQ,
        "pymysql": _MYSQL,
        "mysqldb": _MYSQL,
    },
)

# Otherwise the driver returns bytes in place of str from a database in SQL_ASCII.
_UTF8 = MappingProxyType({"client_encoding": "utf8"})
_ENCODED: Mapping[str, Mapping[str, Any]] = MappingProxyType({"psycopg": _UTF8, "psycopg2": _UTF8})


def connect_args(url: URL, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection: ``given`` and the defaults that ``url`` leaves open."""
    driver = url.get_driver_name()
    defaults = {**_DEFAULTS.get(driver, {}), **_ENCODED.get(driver, {})}
    return {**{key: defaults[key] for key in defaults.keys() - url.query.keys()}, **given}


def connect_args_without_timeouts(url: URL, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments ``given`` without read and write timeouts."""
    kept = {key: value for key, value in given.items() if key not in STATEMENT_TIMEOUTS}
    defaults = _ENCODED.get(url.get_driver_name(), {})
    return {**{key: defaults[key] for key in defaults.keys() - url.query.keys()}, **kept}


def set_read_timeout(engine: Engine) -> None:
    """Add ``read_timeout`` to the connections of psycopg, which does not support it."""
    if engine.dialect.driver != "psycopg":
        return
    from celery_dynbeat.db.psycopg_read_timeout import BoundedConnection  # noqa: PLC0415 - an extra

    @event.listens_for(engine, "do_connect")
    def _connect(
        _dialect: Any, _record: Any, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        options = {**named}
        seconds = options.pop("read_timeout", None)
        connection = BoundedConnection.connect(*positional, **options)
        connection.read_timeout = None if seconds is None else float(seconds)
        return connection


#: A checkout pings a connection that has been idle for this long.
PING_AFTER_SECONDS = 1.0
_USED_AT = "dynbeat_used_at"


def ping_idle_connections(engine: Engine) -> None:
    """Make the pool of ``engine`` ping idle connections at checkout.

    When a ping fails, SQLAlchemy replaces this connection and all connections that are at least as
    old.

    SQLAlchemy's ``pool_pre_ping`` pings at each checkout, which costs one round trip per
    transaction. Here a connection that was used within PING_AFTER_SECONDS is not pinged. If its
    server went away in that time, the transaction fails as it does when the server goes away later.
    Source: SQLAlchemy, "Dealing with Disconnects", "Custom / Legacy Pessimistic Ping".
    """

    @event.listens_for(engine, "checkin")
    def _record_use(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[_USED_AT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _ping_if_idle(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        used_at = record.info.get(_USED_AT)
        # A new connection has no time of last use.
        if used_at is None or time.monotonic() - used_at < PING_AFTER_SECONDS:
            return
        if not _is_alive(engine, connection):
            raise InvalidatePoolError


def return_idle(connection: Connection, used_at: float) -> None:
    """Return a connection to its pool that was last used at an instant of the monotonic clock."""
    info = connection.info
    connection.close()
    info[_USED_AT] = used_at


def _is_alive(engine: Engine, connection: Any) -> bool:
    try:
        return bool(engine.dialect.do_ping(connection))
    except engine.dialect.loaded_dbapi.Error:
        return False


logger = logging.getLogger(__name__)

_SETTING = "dynbeat_engine_options = {'connect_args': {'prepare_threshold': None}}"


def disable_behind_poolers(engine: Engine, capabilities: Capabilities) -> None:
    """Turn off prepared statements on the connections of ``engine`` that go through a pooler.

    A pooler is recognised by the process id of the server. The id that it sent at the start of the
    connection differs from the id that the server returns. If that check fails, each of the errors
    above has the same effect. ``prepare_threshold`` in the connect_args overrules both.
    """
    if engine.dialect.driver != "psycopg":
        return
    has_lost_statement = threading.Event()

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        if has_lost_statement.is_set() or _is_pooled(connection):
            connection.prepare_threshold = None

    @event.listens_for(engine, "handle_error")
    def _on_error(context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        if not isinstance(error, DBAPIError) or not capabilities.is_prepared_statement_lost(error):
            return
        context.is_disconnect = True
        if not has_lost_statement.is_set():
            has_lost_statement.set()
            logger.warning(
                "a prepared statement is unknown to the server, which a pooler in front of it can"
                " cause. Continuing without prepared statements; set %s",
                _SETTING,
            )


def _is_pooled(connection: Any) -> bool:
    """Return whether a pooler is between the client and the server.

    The process id that came at the start of the connection is then not the server's process id.
    """
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    connection.autocommit = False
    return bool(pid != connection.info.backend_pid)
