"""How long a connection of ours may be silent before it is given up.

Without a limit, one that lost its server without a word (a firewall that forgot it, a host that is
gone, a server that hangs) is waited for until TCP gives up, which takes a quarter of an hour, or
for ever.

    connect   connect_timeout: libpq's and the MySQL drivers' own
    answer    read_timeout: the MySQL drivers' own; psycopg has none, so BoundedConnection counts
              the time during which nothing came
    send      tcp_user_timeout (libpq), write_timeout (MySQL): TCP's own retries, cut short
    idle      keepalives (libpq); a pooled connection is also tried before it is used

A statement of ours is answered within milliseconds, or waits for a row lock. A migration may take
long, and runs on a connection without these limits.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import URL, Engine, event

CONNECT_TIMEOUT = 10
READ_TIMEOUT = 30
#: What limits a statement, however well the connection is.
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
#: By SQLAlchemy's names of the drivers; one that is not here keeps its own defaults.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "psycopg": {**_LIBPQ, "read_timeout": READ_TIMEOUT},
        "psycopg2": _LIBPQ,
        "pymysql": _MYSQL,
        "mysqldb": _MYSQL,
    },
)

# From a database in SQL_ASCII a driver would otherwise read bytes in place of texts.
_UTF8 = MappingProxyType({"client_encoding": "utf8"})
_ENCODED: Mapping[str, Mapping[str, Any]] = MappingProxyType({"psycopg": _UTF8, "psycopg2": _UTF8})


def connect_args(url: URL, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection: defaults, save where ``url`` or ``given`` say more."""
    driver = url.get_driver_name()
    defaults = {**_DEFAULTS.get(driver, {}), **_ENCODED.get(driver, {})}
    return {**{key: defaults[key] for key in defaults.keys() - url.query.keys()}, **given}


def connect_args_without_timeouts(url: URL, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments ``given`` without those that limit a statement."""
    kept = {key: value for key, value in given.items() if key not in STATEMENT_TIMEOUTS}
    defaults = _ENCODED.get(url.get_driver_name(), {})
    return {**{key: defaults[key] for key in defaults.keys() - url.query.keys()}, **kept}


def set_read_timeout(engine: Engine) -> None:
    """Make the engine's connections obey ``read_timeout`` where the driver knows none."""
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
