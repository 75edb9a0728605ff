"""Who may see and change schedules, and under which name. PURE: it reads options and headers.

Host of a request   A page of another site can resolve its own name to the address of this Flower
                    (DNS rebinding). The browser then sees one site, but sends the name of the other
                    site as Host. An address cannot be rebound, so each address is accepted. Names
                    are loopback names, the name of the machine, and names in the options.
                    With a login, the browser has no credentials for the other name: without the
                    option, each name is accepted.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from socket import gethostname
from typing import Any
from urllib.parse import urlsplit

from celery_dynbeat.common.text import shorten

#: The actor of a change without a login.
UNAUTHENTICATED = "flower (not authenticated)"
#: The longest actor that the audit stores.
_MAX_ACTOR = 255
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
#: Accepts each name.
_ANY_HOST = "*"
_PORTS = {"http": "80", "https": "443"}


def has_login(options: Any) -> bool:
    """Return whether Flower requires a login."""
    return bool(options.auth or options.basic_auth)


def why_read_only(options: Any) -> str | None:
    """Return why the schedule pages change nothing, or None if they may."""
    # Flower has the option since 2.1.
    if getattr(options, "read_only", False):
        return "Flower runs in read-only mode (--read-only)"
    if has_login(options) or options.dynbeat_unauthenticated_writes:
        return None
    return (
        "Flower requires no login. Start it with --basic-auth or --auth, or with"
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


def why_wrong_hosts(entries: Iterable[str]) -> str | None:
    """Return an error for the first entry of ``--dynbeat-allowed-hosts`` that is not a host."""
    for entry in entries:
        if entry != _ANY_HOST and _parsed(entry) is None:
            return (
                f"--dynbeat-allowed-hosts: {shorten(entry)} is not a host. Write a name or an"
                " address, such as monitor.example.com or monitor.example.com:8443, without https://"
            )
    return None


def why_wrong_host(host: str, protocol: str, options: Any) -> str | None:
    """Return why a request with this Host is refused, or None for a Host of this Flower."""
    entries = options.dynbeat_allowed_hosts
    if _ANY_HOST in entries or (not entries and has_login(options)):
        return None
    given = _parsed(host)
    if given is not None:
        name, port = given
        allowed = filter(None, map(_parsed, [*entries, *_own_names(options)]))
        ports = (None, port or _PORTS.get(protocol))
        if _is_local(name) or any(name == each and wanted in ports for each, wanted in allowed):
            return None
    return (
        f"This Flower does not accept the Host {shorten(host)}. To allow it, start Flower with"
        " --dynbeat-allowed-hosts=HOST. Separate several hosts by commas."
    )


def _own_names(options: Any) -> Iterator[str]:
    yield gethostname()
    if options.address:
        yield options.address
    if options.oauth2_redirect_uri:
        yield urlsplit(options.oauth2_redirect_uri).netloc


def _is_local(name: str) -> bool:
    """Return whether the name means this machine for each resolver, or is an address."""
    try:
        return bool(ip_address(name))
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _parsed(host: str) -> tuple[str, str | None] | None:
    """Return the name in lower case and the port, or None for text that is not a host."""
    match = _HOST.fullmatch(host.strip().lower())
    if match is None:
        return None
    name, port = match.groups()
    return name.strip("[]").removesuffix("."), port
