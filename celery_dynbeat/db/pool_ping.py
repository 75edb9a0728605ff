"""Ping pooled connections that were idle, and replace those that do not answer.

SQLAlchemy's ``pool_pre_ping`` pings at each checkout, which costs one round trip per transaction.
Here a connection that was used within PING_AFTER_SECONDS is not pinged. If its server went away in
that time, the transaction fails as it does when the server goes away later.
Source: SQLAlchemy, "Dealing with Disconnects", "Custom / Legacy Pessimistic Ping".
"""

import time
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

#: A checkout pings a connection that has been idle for this long.
PING_AFTER_SECONDS = 1.0
_USED_AT = "dynbeat_used_at"


def ping_idle_connections(engine: Engine) -> None:
    """Make the pool of ``engine`` ping idle connections at checkout.

    When a ping fails, SQLAlchemy replaces this connection and all that are at least as old.
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


def _is_alive(engine: Engine, connection: Any) -> bool:
    try:
        return bool(engine.dialect.do_ping(connection))
    except engine.dialect.loaded_dbapi.Error:
        return False
