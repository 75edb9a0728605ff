"""Timeouts of the package's database connections.

A connection can lose its server without an error: a firewall drops the connection, the host
disappears, or the server hangs. Without timeouts a process then waits until TCP gives up. That
takes a quarter of an hour, or never happens.

    connect   connect_timeout of libpq and of the MySQL drivers
    read      read_timeout of the MySQL drivers. psycopg has none: BoundedConnection measures how
              long the server has been silent
    write     tcp_user_timeout (libpq) and write_timeout (MySQL) shorten the retries of TCP
    idle      keepalives (libpq); db.pool_ping also pings an idle pooled connection before its use

The server answers a statement of the package within milliseconds, unless the statement waits for a
row lock. A migration may take long: it runs on a connection without read and write timeouts.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import URL, Engine, event

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
    if engine.dialect.driver != "psycopg" or engine.dialect.is_async:
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
