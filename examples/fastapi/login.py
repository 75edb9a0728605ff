"""The users of this example, their sessions, and the protection against forged requests."""

import hashlib
import hmac
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from database import LoginSession, sessions
from fastapi import Depends, HTTPException, Request
from sqlalchemy import delete
from starlette.concurrency import run_in_threadpool

#: Two users. A real application stores them in its database.
_SALT = b"an example"


def _hash(password: str) -> bytes:
    return hashlib.scrypt(password.encode(), salt=_SALT, n=2**14, r=8, p=1)


USERS = {"alice": _hash("wonderland"), "bob": _hash("builder")}
_NO_USER = _hash(secrets.token_hex())
#: A cookie is valid for this long, unless its session ends earlier.
SESSION_AGE = timedelta(days=14)
MAX_ATTEMPTS, MAX_RUNS, _MINUTE = 10, 10, 60


class TooManyError(Exception):
    """Too many calls within a minute."""


class PerMinute:
    """Counts calls within a minute. Several processes need a shared store."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: The number of calls, and the time of the first.
        self._calls: dict[object, tuple[int, float]] = {}

    def count(self, key: object) -> None:
        """Count a call. Raises TooManyError above the limit."""
        now = time.monotonic()
        for old in [each for each, (_, first) in self._calls.items() if now - first > _MINUTE]:
            del self._calls[old]
        count, first = self._calls.get(key, (0, now))
        if count >= self._limit:
            raise TooManyError
        self._calls[key] = (count + 1, first)

    def forget(self, key: object) -> None:
        """Count the calls of ``key`` from 0."""
        self._calls.pop(key, None)


#: Attempts for one name from one address, and manual runs of one user.
attempts, manual_runs = PerMinute(MAX_ATTEMPTS), PerMinute(MAX_RUNS)


async def log_in(request: Request, name: str, password: str) -> bool:
    """Start a session of the user, with a new token. Return whether the password is right.

    Raises TooManyError.
    """
    key = (request.client.host if request.client else "", name)
    attempts.count(key)
    # In a thread: it is slow by design. An unknown name takes as long as a wrong password.
    given = await run_in_threadpool(_hash, password)
    is_right = hmac.compare_digest(USERS.get(name, _NO_USER), given)
    if is_right:
        attempts.forget(key)
        made = LoginSession(id=secrets.token_urlsafe(), user=name)
        async with sessions.begin() as session:
            old = LoginSession.created_at < datetime.now(UTC) - SESSION_AGE
            await session.execute(delete(LoginSession).where(old))
            session.add(made)
        request.session.clear()
        request.session.update(id=made.id, token=secrets.token_urlsafe())
    return is_right


async def log_out(request: Request) -> None:
    """End the session. A copy of its cookie is not valid any more."""
    ended = LoginSession.id == request.session.get("id")
    async with sessions.begin() as session:
        await session.execute(delete(LoginSession).where(ended))
    request.session.clear()


async def session_user(request: Request) -> str | None:
    """Return the user of the session, None without one."""
    session_id = request.session.get("id")
    if session_id is None:
        return None
    # Its own short transaction: the connection is free again when the request begins its own.
    async with sessions() as session:
        found = await session.get(LoginSession, session_id)
    return None if found is None else found.user


async def current_user(request: Request) -> str:
    """Return the user of the session. Raises 401 without one."""
    user = await session_user(request)
    if user is None:
        raise HTTPException(401, "log in first")
    return user


async def check_token(request: Request, user: Annotated[str, Depends(current_user)]) -> None:
    """Raise 403 unless the header has the token of the session: a forged request cannot read it."""
    del user  # A request without a session is refused with 401.
    expected: Any = request.session.get("token", "")
    given = request.headers.get("X-CSRF-Token", "")
    if not expected or not hmac.compare_digest(str(expected).encode(), given.encode()):
        raise HTTPException(403, "the token of this page is missing or old: load the page again")


def check_origin(request: Request) -> None:
    """Raise 403 for a form of another site. Browsers send the header Origin with each POST."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        raise HTTPException(403, "this form belongs to another site")


User = Annotated[str, Depends(current_user)]
