"""The users of this example, their sessions, and the protection against forged requests."""

import hashlib
import hmac
import secrets
import time
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool

#: Two users. A real application stores them in its database.
_SALT = b"an example"


def _hash(password: str) -> bytes:
    return hashlib.scrypt(password.encode(), salt=_SALT, n=2**14, r=8, p=1)


USERS = {"alice": _hash("wonderland"), "bob": _hash("builder")}
_NO_USER = _hash(secrets.token_hex())
#: Attempts for one name from one address within a minute.
MAX_ATTEMPTS, _MINUTE = 10, 60
#: The number of attempts, and the time of the first. Several processes need a shared store.
_attempts: dict[tuple[str, str], tuple[int, float]] = {}


class TooManyAttemptsError(Exception):
    """An address has tried wrong passwords for one name too often."""


async def log_in(request: Request, name: str, password: str) -> bool:
    """Start a session of the user, with a new token. Return whether the password is right.

    Raises TooManyAttemptsError.
    """
    key = (request.client.host if request.client else "", name)
    _count_attempt(key)
    # In a thread: it is slow by design. An unknown name takes as long as a wrong password.
    given = await run_in_threadpool(_hash, password)
    is_right = hmac.compare_digest(USERS.get(name, _NO_USER), given)
    if is_right:
        _attempts.pop(key, None)
        request.session.clear()
        request.session.update(user=name, token=secrets.token_urlsafe())
    return is_right


def _count_attempt(key: tuple[str, str]) -> None:
    now = time.monotonic()
    for old in [each for each, (_, first) in _attempts.items() if now - first > _MINUTE]:
        del _attempts[old]
    count, first = _attempts.get(key, (0, now))
    if count >= MAX_ATTEMPTS:
        raise TooManyAttemptsError
    _attempts[key] = (count + 1, first)


def log_out(request: Request) -> None:
    """End the session."""
    request.session.clear()


async def current_user(request: Request) -> str:
    """Return the user of the session. Raises 401 without one."""
    user = request.session.get("user")
    if user not in USERS:
        raise HTTPException(401, "log in first")
    return str(user)


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
