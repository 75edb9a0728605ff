"""Who may change schedules, and under which name. PURE: it decides from options and headers."""

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Any

#: The actor of a change without a login.
UNAUTHENTICATED = "flower (not authenticated)"
#: The longest actor that the audit stores.
_MAX_ACTOR = 255


def has_login(options: Any) -> bool:
    """Return whether Flower requires a login."""
    return bool(options.auth or options.basic_auth)


def why_read_only(options: Any) -> str | None:
    """Return why the schedule pages change nothing, None if they may."""
    # Flower has the option since 2.1.
    if getattr(options, "read_only", False):
        return "Flower runs in read-only mode (--read-only)"
    if has_login(options) or options.dynbeat_unauthenticated_writes:
        return None
    return (
        "Flower requires no login: start it with --basic-auth or --auth, or with"
        " --dynbeat-unauthenticated-writes"
    )


def actor_of(user: object, authorization: str, options: Any) -> str:
    """Return the actor for the audit: an email address with OAuth, else the name of basic auth."""
    if options.auth:
        return str(user)[:_MAX_ACTOR]
    return basic_auth_name(authorization)[:_MAX_ACTOR] if options.basic_auth else UNAUTHENTICATED


def basic_auth_name(authorization: str) -> str:
    """Return the user name of an Authorization header that Flower has accepted."""
    try:
        credentials = b64decode(authorization.partition(" ")[2]).decode()
    except (Base64Error, UnicodeDecodeError):
        return ""
    return credentials.partition(":")[0]
