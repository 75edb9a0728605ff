"""URLs that workers may ping, and the origins that the setting dynbeat_ping_hosts allows.

A URL is split here and sent in the form that this module puts together again. Two parsers therefore
cannot disagree about its host. No error shows a URL, because its path or its query is a secret.
"""

import re
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

MAX_LENGTH = 2_000
_PORTS = {"https": 443, "http": 80}
#: ``urlsplit`` removes some of these characters silently.
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f\\]")


class PingUrl(NamedTuple):
    """A URL in parts. ``origin`` is canonical: ``"https://hc-ping.com:443"``."""

    origin: str
    path: str
    query: str


def allowed_origin(entry: str) -> str:
    """Return the canonical origin of an entry of dynbeat_ping_hosts.

    An entry is ``"hc-ping.com"`` or ``"hc.example.com:8443"``, which allow https only, or
    ``"http://hc.internal:8000"``. Raises ValueError.
    """
    parts = _split(entry if "://" in entry else f"https://{entry}")
    if parts.path or parts.query:
        raise ValueError("must be a host, without a path")
    return _origin(parts)


def parse_ping_url(url: str, *, allowed: Collection[str]) -> PingUrl:
    """Return ``url`` in parts. Raises ValueError if its origin is not one of ``allowed``.

    ``allowed`` holds canonical origins.
    """
    if len(url) > MAX_LENGTH:
        raise ValueError(f"must have at most {MAX_LENGTH} characters")
    parts = _split(url)
    if not (parts.path + parts.query).isascii():
        raise ValueError("must have only ASCII characters after its host: write others as %XX")
    origin = _origin(parts)
    if origin not in allowed:
        raise ValueError(f"dynbeat_ping_hosts does not allow {origin}")
    return PingUrl(origin, parts.path, parts.query)


def masked(url: str) -> str:
    """Return the scheme and the host of a URL. The rest can contain a token."""
    try:
        parts = _split(url)
        return f"{_origin(parts).removesuffix(f':{_PORTS[parts.scheme]}')}/..."
    except ValueError:
        # Only SQL can have written it.
        return "..."


def _split(url: str) -> SplitResult:
    if _NOT_IN_URLS.search(url):
        raise ValueError("must not contain white space, control characters or backslashes")
    try:
        parts = urlsplit(url)
    except ValueError:
        # urlsplit's own message can contain the URL.
        raise ValueError("must be a URL") from None
    if parts.scheme not in _PORTS:
        raise ValueError("must begin with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("must not contain a user name or a password")
    if "#" in url:
        raise ValueError("must not contain a fragment (#)")
    return parts


def _origin(parts: SplitResult) -> str:
    try:
        # lower() alone is not enough, because "BÜCHER.example" and "xn--bcher-kva.example" are the
        # same host.
        host = (parts.hostname or "").encode("idna").decode("ascii").lower()
        port = parts.port
    except ValueError:
        raise ValueError("must have a valid host and port") from None
    if not host:
        raise ValueError("must have a host")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}:{_PORTS[parts.scheme] if port is None else port}"
