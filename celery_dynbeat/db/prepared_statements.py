"""Prepared statements of psycopg, behind a pooler that does not keep them.

psycopg prepares on the server what it has run a few times, under names that count up in each
client. A pooler in transaction mode that does not track them (PgBouncer before 1.21, or with
max_prepared_statements = 0) hands the next transaction to another server connection. On that
connection the name is unknown (SQLSTATE 26000), or taken (42P05), or it names a statement of
another client. If that statement has a different number of parameters, the server reports 08P01.
If the number is the same, the server runs the wrong statement.

So no statement is prepared through a pooler. A pooler is recognised by the process id of the
server: the id that it sent at the start of the connection is not the one that the server returns.
If that check fails, each of the errors above has the same effect. ``prepare_threshold`` in the
connect_args overrules both.
Source: psycopg, "Using prepared statements in connection pooling services".
"""

import logging
import threading
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

from celery_dynbeat.db.dialects import Capabilities

logger = logging.getLogger(__name__)

_SETTING = "dynbeat_engine_options = {'connect_args': {'prepare_threshold': None}}"


def disable_behind_poolers(engine: Engine, capabilities: Capabilities) -> None:
    """Turn off prepared statements on the connections of ``engine`` that go through a pooler."""
    if engine.dialect.driver != "psycopg":
        return
    has_lost_statement = threading.Event()

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        if has_lost_statement.is_set() or _is_pooled(connection):
            # SQLAlchemy adapts the connection of an asynchronous engine.
            getattr(connection, "driver_connection", connection).prepare_threshold = None

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

    The process id that came at the start of the connection is then not that of the server.
    """
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    connection.autocommit = False
    return bool(pid != connection.info.backend_pid)
