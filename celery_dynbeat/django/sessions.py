"""A SQLAlchemy session on the connection of Django's present transaction.

    atomic()     BEGIN ------------------------------------------- COMMIT -> on_commit callbacks
    session()            session on the same connection -> flush      |          |
                                                                      |   Session.commit(): its
    SQLAlchemy's commit, rollback and close do not reach the connection.  hooks notify beat

A rollback of Django, also of a savepoint, drops the callback. So beat is notified of nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.django.borrowed import BORROWED
from celery_dynbeat.django.urls import url_of


@contextmanager
def session(using: str = DEFAULT_DB_ALIAS) -> Iterator[Session]:
    """Yield a session for ``session=``, inside ``transaction.atomic()`` of the database ``using``.

    What calls do with it commits and rolls back with Django's transaction. At the end of the block
    the session is flushed. Do not commit it. Raises ConfigurationError outside atomic(), and for a
    database or driver that is not supported.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        raise ConfigurationError(
            "session() joins a transaction: call it inside transaction.atomic(); without one, omit"
            " session= from the call"
        )
    engine = _engine(using)
    joined = Session(engine, expire_on_commit=False)
    try:
        yield joined
        joined.flush()
    except BaseException:
        joined.close()
        raise
    transaction.on_commit(lambda: _end(joined), using=using)


def _end(joined: Session) -> None:
    try:
        joined.commit()
    finally:
        joined.close()


@cache
def _engine(using: str) -> Engine:
    url = url_of(connections[using].settings_dict)
    borrow = BORROWED.get(url.drivername)
    if borrow is None:
        raise ConfigurationError(
            f"session() does not support the driver of {using!r}: it supports PostgreSQL with"
            " psycopg 3, and SQLite"
        )

    def connect() -> Any:
        connections[using].ensure_connection()
        return borrow(connections[using].connection)

    options: dict[str, Any] = {"poolclass": NullPool, "hide_parameters": True}
    if url.get_backend_name() == "postgresql":
        # Its registration changes the adapters of the connection, which Django uses.
        options["use_native_hstore"] = False
    return create_engine(url, creator=connect, **options)
