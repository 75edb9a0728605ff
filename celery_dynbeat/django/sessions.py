"""A SQLAlchemy session on the connection of Django's present transaction.

    atomic()     BEGIN ------------------------------------------- COMMIT -> on_commit callbacks
    call                 SAVEPOINT, statements, RELEASE                       |
                         of a session on Django's connection         Session.commit(): its hooks
                                                                     notify beat and send signals

SQLAlchemy's commit, rollback and close do not reach the connection. One session serves all changes
of a transaction, and of each savepoint of Django: a rollback of Django drops the callback of the
session, and so what its hooks would have sent. A call that only reads needs no callback.
"""

from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils.asyncio import async_unsafe
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import NullPool

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db import SAVEPOINTS
from celery_dynbeat.db.django_databases import address_in, is_in_testcase
from celery_dynbeat.django.borrowed import BORROWED

#: The key of the alias in ``Session.info``, until the session has ended.
ALIAS = "dynbeat_alias"
#: Statements after whose failure a savepoint is no longer there.
_OF_SAVEPOINTS = ("SAVEPOINT", "ROLLBACK TO", "RELEASE")


@async_unsafe(
    "a call of dynbeat would block the event loop: use AsyncDynbeat, or call it with"
    " asgiref.sync.sync_to_async"
)
def current_session(using: str = DEFAULT_DB_ALIAS) -> Session | None:
    """Return the session on Django's transaction of the database ``using``; None outside atomic().

    Pass it as ``Dynbeat(app, current_session=current_session)``. For another alias, pass
    ``functools.partial(current_session, "other")``. What calls do with the session commits and
    rolls back with Django's transaction. Do not commit or close the session.

    If the database refuses a statement, the call leaves nothing behind, and the transaction
    continues. If the database has rolled back more than the call, as MySQL does after a deadlock,
    Django's transaction can no longer commit. This function then raises Django's
    TransactionManagementError, as Django's own queries do. Raises ConfigurationError for a driver
    that is not supported, and SynchronousOnlyOperation in a thread with a running event loop.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        _refuse_other_transaction(using)
        return None
    connection.validate_no_broken_transaction()
    return _registered(connection) or _make(using)


def _refuse_other_transaction(using: str) -> None:
    """Raise ConfigurationError if a transaction of another alias is open: a call cannot join it."""
    for other in connections.all(initialized_only=True):
        # With ATOMIC_REQUESTS, each view has a transaction, whatever it calls.
        if other.alias == using or other.settings_dict["ATOMIC_REQUESTS"]:
            continue
        if other.in_atomic_block and not is_in_testcase(other):
            raise ConfigurationError(
                f"a transaction of Django's database {other.alias!r} is open, and a call cannot"
                f" join it, because the schedules are in {using!r}: call it in"
                f" transaction.atomic(using={using!r}), or after the transaction"
            )


class _Session(Session):
    """A session that ends after Django's commit, if a call has changed something."""

    def begin_nested(self) -> SessionTransaction:
        """Begin the savepoint of a call that writes, and await Django's commit."""
        if not self.in_nested_transaction():
            connection = connections[self.info[ALIAS]]
            # captureOnCommitCallbacks() of Django's tests sees only new callbacks.
            if _registered(connection) is not self or is_in_testcase(connection):
                transaction.on_commit(self.end, using=connection.alias)
        return super().begin_nested()

    def end(self) -> None:
        """Call the hooks of the commit. Called again, it does nothing."""
        if self.info.pop(ALIAS, None) is None:
            return
        try:
            self.commit()
        finally:
            self.close()


def _registered(connection: Any) -> "_Session | None":
    """Return the session that ends with Django's present savepoint, or None if there is none."""
    savepoints = set(connection.savepoint_ids)
    for at, callback, *_ in reversed(connection.run_on_commit):
        session = getattr(callback, "__self__", None)
        if isinstance(session, _Session) and at == savepoints and ALIAS in session.info:
            return session
    return None


def _make(using: str) -> Session:
    engine = _engine(using, str(connections[using].settings_dict["NAME"]))
    return _Session(engine, expire_on_commit=False, info={SAVEPOINTS: True, ALIAS: using})


@lru_cache(maxsize=32)
def _engine(using: str, name: str) -> Engine:
    """Return the engine for an alias. ``name`` is another one in Django's tests."""
    del name
    url = address_in(connections[using].settings_dict, alias=using).url
    borrow = BORROWED.get(url.drivername)
    if borrow is None:
        raise ConfigurationError(
            f"the connections of {using!r} ({url.drivername}) cannot be shared: install psycopg"
            " (version 3), or mysqlclient or PyMySQL"
        )
    connect = borrow

    def creator() -> Any:
        connections[using].ensure_connection()
        return connect(connections[using].connection)

    options: dict[str, Any] = {
        "poolclass": NullPool,
        "hide_parameters": True,
    }
    if url.get_backend_name() == "postgresql":
        # Its registration changes the adapters of the connection, which Django uses.
        options["use_native_hstore"] = False
    engine = create_engine(url, creator=creator, **options)

    @event.listens_for(engine, "handle_error")
    def failed(context: ExceptionContext) -> None:
        # Django does not see this error.
        if not _is_undone(context):
            connections[using].needs_rollback = connections[using].in_atomic_block

    return engine


def _is_undone(context: ExceptionContext) -> bool:
    """Return whether a savepoint undoes the call that fails with this error."""
    # SQLAlchemy sends nothing more, even after KeyboardInterrupt or a timeout of gevent.
    if context.connection is None or context.is_disconnect:
        return False
    sql = (context.statement or "").lstrip().upper()
    return context.connection.in_nested_transaction() and not sql.startswith(_OF_SAVEPOINTS)
