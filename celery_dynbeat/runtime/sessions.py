"""The session of a caller, whose transaction a call joins."""

from sqlalchemy.orm import Session, scoped_session

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten


def session_to_join(session: object) -> Session | None:
    """Return the session to join, None if none is given.

    A ``scoped_session`` stands for the session of the present scope. Raises InvalidScheduleError
    with field ``"session"``.
    """
    if session is None or isinstance(session, Session):
        return session
    if isinstance(session, scoped_session):
        found: Session = session()
        return found
    if hasattr(session, "run_sync"):
        rule = (
            "is asynchronous; within it call `await session.run_sync(lambda session:"
            " mine.create(..., session=session))`"
        )
    else:
        rule = (
            "must be a sqlalchemy.orm.Session; leave it out for a transaction of its own, or wrap a"
            " connection: Session(bind=connection)"
        )
    msg = f"session = {shorten(session)}: {rule}"
    raise InvalidScheduleError(msg, field="session")
