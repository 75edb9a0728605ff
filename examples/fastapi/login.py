"""The users of this example, their sessions, and the protection against forged requests."""

import hashlib
import hmac
import secrets
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

#: Two users. A real application stores them in its database.
_SALT = b"an example"


def _hash(password: str) -> bytes:
    return hashlib.scrypt(password.encode(), salt=_SALT, n=2**14, r=8, p=1)


USERS = {"alice": _hash("wonderland"), "bob": _hash("builder")}
_NO_USER = _hash(secrets.token_hex())


def log_in(request: Request, name: str, password: str) -> bool:
    """Start a session of the user, with a new token. Return whether the password is right."""
    # An unknown name takes as long as a wrong password.
    is_right = hmac.compare_digest(USERS.get(name, _NO_USER), _hash(password))
    if is_right:
        request.session.clear()
        request.session.update(user=name, token=secrets.token_urlsafe())
    return is_right


def log_out(request: Request) -> None:
    """End the session."""
    request.session.clear()


async def current_user(request: Request) -> str:
    """Return the user of the session. Raises 401 without one."""
    user = request.session.get("user")
    if user not in USERS:
        raise HTTPException(401, "log in first")
    return str(user)


async def check_token(request: Request) -> None:
    """Raise 403 unless the header has the token of the session: a forged request cannot read it."""
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
