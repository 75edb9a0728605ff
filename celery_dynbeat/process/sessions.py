"""The session of a caller. A call joins its transaction.

A session with SAVEPOINTS in its ``info`` shares its connection with code that does not know the
session, such as Django. There each call that writes has a savepoint: it succeeds as a whole, or it
leaves nothing, and the caller may continue after its error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import URL
from sqlalchemy.orm import Session, scoped_session

from celery_dynbeat.common.errors import ConfigurationError, InvalidScheduleError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.engine import savepoint

#: The key in ``Session.info``.
SAVEPOINTS = "dynbeat_savepoints"
#: Returns the session of the present transaction of the application, None outside a transaction.
CurrentSession = Callable[[], object]


def session_to_join(session: object) -> Session | None:
    """Return the session to join; None if ``session`` is None.

    Of a ``scoped_session``, return the session of the present scope. Raises InvalidScheduleError
    with field ``"session"`` for any other value.
    """
    if session is None or isinstance(session, Session):
        return session
    if isinstance(session, scoped_session):
        scoped: Session = session()
        return scoped
    if hasattr(session, "run_sync"):
        rule = (
            "is asynchronous; call AsyncDynbeat, or `await session.run_sync(lambda session:"
            " mine.create(..., session=session))`"
        )
    else:
        rule = (
            "must be a sqlalchemy.orm.Session; omit it for a separate transaction, or wrap a"
            " connection: Session(bind=connection)"
        )
    msg = f"session = {shorten(session)}: {rule}"
    raise InvalidScheduleError(msg, field="session")


@contextmanager
def in_savepoint(session: Session | None) -> Iterator[None]:
    """Give the writes of the block a savepoint if the session needs one for each call."""
    if session is None or SAVEPOINTS not in session.info:
        yield
        return
    try:
        # If its rollback fails, the other code rolls its transaction back.
        with savepoint(session):
            yield
    finally:
        # The other code can roll back to its own savepoint.
        session.expire_all()


def check_current_session(function: object) -> None:
    """Raise ConfigurationError unless ``function`` is None or can be called."""
    if function is None or callable(function):
        return
    raise ConfigurationError(
        f"current_session = {shorten(function)}: must be a function without arguments; in Django"
        " give celery_dynbeat.django.current_session, without calling it"
    )


def current_of(function: CurrentSession) -> Session | None:
    """Return the session that ``function`` returns. Raises ConfigurationError for another value."""
    returned = function()
    try:
        return session_to_join(returned)
    except InvalidScheduleError as error:
        raise ConfigurationError(
            f"current_session returned {shorten(returned)}: must be a sqlalchemy.orm.Session, or"
            " None outside a transaction; in Django give celery_dynbeat.django.current_session"
        ) from error


def check_same_database(session: Session, url: URL) -> None:
    """Raise ConfigurationError if ``session`` is not for the database ``url``."""
    joined = session.get_bind().engine.url
    if _place(joined) != _place(url):
        raise ConfigurationError(
            f"current_session joins a transaction of the database {joined.database!r}, and the"
            f" schedules are in {url.database!r}: let both name the same database; in Django set"
            " dynbeat_database_url = 'django://default'"
        )


def _place(url: URL) -> tuple[str, str | None]:
    # Not the host: a server can have several names.
    backend = url.get_backend_name()
    return "mysql" if backend == "mariadb" else backend, url.database
