"""Prepared statements of psycopg, behind a pooler that does not keep them.

psycopg prepares on the server what it has run a few times. A pooler in transaction mode that does
not track prepared statements (PgBouncer before 1.21, or with max_prepared_statements = 0) hands the
next transaction to another server connection, which does not know the statement, or knows another
one by that name. Source: psycopg, "Using prepared statements in connection pooling services".
"""

import logging
import threading
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

from celery_dynbeat.db.dialects import Capabilities

logger = logging.getLogger(__name__)


def disable_when_lost(engine: Engine, capabilities: Capabilities) -> None:
    """Let ``engine`` drop its connections, and prepare no more, once a statement was lost."""
    if engine.dialect.driver != "psycopg":
        return
    lost = threading.Event()

    @event.listens_for(engine, "handle_error")
    def _on_error(context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        if not isinstance(error, DBAPIError) or not capabilities.has_lost_statement(error):
            return
        context.is_disconnect = True
        if not lost.is_set():
            lost.set()
            logger.warning(
                "the server does not know a statement that was prepared there: is a pooler in"
                " transaction mode in front of it? Continuing without prepared statements; set"
                " dynbeat_engine_options = {'connect_args': {'prepare_threshold': None}}",
            )

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        if lost.is_set():
            connection.prepare_threshold = None
