"""Pooled connections that died while they were idle are replaced before they are used.

SQLAlchemy's own pool_pre_ping asks each connection each time, which is a round trip for every
transaction. One that was in use a moment ago is taken at its word here: should its server have gone
in that moment, the transaction fails as it would have in its middle. Source of the way: SQLAlchemy,
"Dealing with Disconnects", "Custom / Legacy Pessimistic Ping".
"""

import time
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

#: Seconds since its last use after which a connection is asked.
PING_AFTER_SECONDS = 1.0
_USED_AT = "dynbeat_used_at"


def ping_idle_connections(engine: Engine) -> None:
    """Let the pool of ``engine`` replace what does not answer, and all that is as old."""

    @event.listens_for(engine, "checkin")
    def _note(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[_USED_AT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _ask(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        used_at = record.info.get(_USED_AT)
        # None: it was made just now.
        if used_at is None or time.monotonic() - used_at < PING_AFTER_SECONDS:
            return
        if not _answers(engine, connection):
            raise InvalidatePoolError


def _answers(engine: Engine, connection: Any) -> bool:
    try:
        return bool(engine.dialect.do_ping(connection))
    except engine.dialect.loaded_dbapi.Error:
        return False
