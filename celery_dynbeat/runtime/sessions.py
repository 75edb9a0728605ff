"""The session of a caller. A call joins its transaction."""

from sqlalchemy.orm import Session, scoped_session

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten


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
