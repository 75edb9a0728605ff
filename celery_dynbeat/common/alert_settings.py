"""The rules of the alert settings. No error shows an URL: it holds passwords and tokens."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from celery_dynbeat.common.ping_urls import allowed_origin

#: Ended runs that ``after_failures`` may count. Each evaluation reads so many rows.
MAX_FAILURES = 1_000
#: The name of the targets that apply to schedules without ``to``.
DEFAULT_TARGET = "default"
MAX_TARGET_LENGTH = 64
_TARGET_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_TARGET_LENGTH}}}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FactLimits:
    """A run that is later or slower than this is a fact for alerts. None: no run is, by itself."""

    late_after: timedelta | None
    slow_after: timedelta | None


def failures(value: object) -> int:
    """Return a valid ``after_failures``; 0 means never. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_FAILURES:
        msg = f"must be a whole number from 0 to {MAX_FAILURES}; 0 means never"
        raise ValueError(msg)
    return value


def is_target_name(value: object) -> bool:
    """Return whether ``value`` can be the name of a target."""
    return isinstance(value, str) and _TARGET_NAME.fullmatch(value) is not None


def urls(value: object) -> Mapping[str, tuple[str, ...]]:
    """Return the Apprise URLs by the name of their target.

    ``value`` is a list for the target "default", a dict of lists, or a function without arguments
    that returns one of these. Raises ValueError.
    """
    given = _called(value)
    if not isinstance(given, Mapping):
        given = {DEFAULT_TARGET: given}
    targets = {}
    # An error names the index, not the key: a caller may swap name and URL.
    for index, (name, many) in enumerate(given.items(), start=1):
        if not is_target_name(name):
            msg = (
                f"the name of target {index} must have 1 to {MAX_TARGET_LENGTH} letters, digits,"
                " '_', '-' or '.'"
            )
            raise ValueError(msg)
        targets[name] = _url_list(name, many)
    if DEFAULT_TARGET not in targets:
        msg = f"needs the key {DEFAULT_TARGET!r}; its list may be empty"
        raise ValueError(msg)
    return targets


def urls_of(targets: Mapping[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    """Return the URLs of a target; those of the default one if it has been removed."""
    return targets.get(name, targets.get(DEFAULT_TARGET, ()))


def _called(value: object) -> object:
    if not callable(value):
        return value
    try:
        return value()
    # A function of the operator: its error may show what it read.
    except Exception as error:  # noqa: BLE001
        msg = f"the function must return URLs, but raised {type(error).__name__}"
        raise ValueError(msg) from None


def _url_list(name: str, many: object) -> tuple[str, ...]:
    if isinstance(many, (str, bytes, Mapping)) or not isinstance(many, Iterable):
        msg = f"{name!r} must be a list of Apprise URLs"
        raise ValueError(msg)  # noqa: TRY004 - Settings.read expects ValueError
    listed = tuple(many)
    for index, url in enumerate(listed):
        if not isinstance(url, str) or not _URL.fullmatch(url):
            msg = f"{name!r} item {index} must be an Apprise URL, such as 'mailto://...'"
            raise ValueError(msg)
    return listed


def ping_hosts(value: object) -> tuple[str, ...]:
    """Return the origins that an operator allows, in their canonical form. Raises ValueError."""
    rule = "must be a list of host names, such as ['hc-ping.com']"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ValueError(rule)  # noqa: TRY004
    return tuple(_origin(entry, rule) for entry in value)


def _origin(entry: object, rule: str) -> str:
    # No entry is a pattern.
    if not isinstance(entry, str) or "*" in entry:
        raise ValueError(rule)
    try:
        return allowed_origin(entry)
    except ValueError as error:
        raise ValueError(f"{rule}: {entry!r} {error}") from None
