"""Celery's options of apply_async that a schedule may carry.

What is bound to one run (task_id, eta, group ...) has no place in a rule; expiry is the schedule's
own ``expires_after``. Bounds are those of AMQP 0-9-1: nothing is accepted that no broker takes.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

# It has no public list of its short names, "gzip" and the like.
from kombu.compression import _aliases, encoders
from kombu.serialization import registry

from celery_dynbeat.broker.headers import is_reserved
from celery_dynbeat.client.checks import (
    MAX_SECONDS,
    check_choice,
    check_integer,
    check_name,
    check_number,
    invalid,
)
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten

MAX_PRIORITY = 255
#: Octets in an AMQP short string: names of queues, keys of headers.
SHORT_STRING_BYTES = 255
INTEGER_BOUND = 2**63


def check(options: Mapping[str, Any]) -> None:
    """Raise InvalidScheduleError for an option that is unknown or can never be sent."""
    for key, option in options.items():
        checker = _CHECKS.get(key)
        field = f"options[{shorten(key)}]"
        if checker is None:
            raise invalid(field, option, _unknown_option(key))
        checker(field, option)


def check_one(key: str, option: Any) -> None:
    """Raise InvalidScheduleError for an option that is given as a separate field."""
    _CHECKS[key](key, option)


def is_known(key: str) -> bool:
    """Return whether a schedule may carry an option of that name."""
    return key in _CHECKS


def _unknown_option(key: str) -> str:
    hint = _HINTS.get(key)
    if hint is not None:
        return f"it belongs to one message, not to a schedule; {hint}"
    near = difflib.get_close_matches(key[:40], _CHECKS, n=1)
    known = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(_CHECKS))}"
    return f"no such option for a schedule; {known}"


def _check_short_string(field: str, value: Any) -> None:
    if len(check_name(field, value).encode()) > SHORT_STRING_BYTES:
        raise invalid(field, value, f"must be at most {SHORT_STRING_BYTES} bytes long")


def _check_priority(field: str, value: Any) -> None:
    try:
        check_integer(field, value, least=0, most=MAX_PRIORITY)
    except InvalidScheduleError as error:
        hint = "RabbitMQ takes up to x-max-priority of the queue, Redis 0 to 9"
        raise InvalidScheduleError(f"{error} ({hint})", field=field) from None


def _check_seconds(field: str, value: Any) -> None:
    check_number(field, value, least=0, most=MAX_SECONDS)


def _check_time_limit(field: str, value: Any) -> None:
    check_number(field, value, least=0.001, most=MAX_SECONDS)


def _check_serializer(field: str, value: Any) -> None:
    check_choice(field, value, *sorted(registry._encoders))  # noqa: SLF001 - it has no list of names


def _check_compression(field: str, value: Any) -> None:
    check_choice(field, value, *sorted([*encoders(), *_aliases]))


def _check_delivery_mode(field: str, value: Any) -> None:
    check_choice(field, value, 1, 2, "transient", "persistent")


def _check_flag(field: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise invalid(field, value, "must be True or False")


def _check_headers(field: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise invalid(field, value, "must be a mapping")
    for key in value:
        _check_short_string(field, key)
        if is_reserved(key):
            rule = (
                "is a header that Celery or dynbeat writes, and that would change what is run;"
                f" choose another name, such as {'my_' + key!r}"
            )
            raise invalid(field, key, rule)
    _check_integers(field, value)


def _check_integers(field: str, value: Any) -> None:
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            _check_integers(field, each)
    elif isinstance(value, int) and not -INTEGER_BOUND <= value < INTEGER_BOUND:
        raise invalid(field, value, "whole numbers in headers have at most 64 bits")


#: What is bound to one message, and what a schedule has in its place.
_FOLLOW_UP_HINT = "write a task that starts what follows it, and schedule that task"
_HINTS = {
    "expires": "give the schedule expires_after=, in seconds or a timedelta",
    "eta": "give the trigger Once(instant), or start_at= for the first fire time of a rule",
    "task_id": "each run has an id of its own, which run_now() and runs() return",
    **dict.fromkeys(("link", "link_error", "chord", "chain", "group", "group_id"), _FOLLOW_UP_HINT),
    **dict.fromkeys(("retry", "retry_policy"), "beat itself sends again what no broker took"),
}
_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "queue": _check_short_string,
    "exchange": _check_short_string,
    "routing_key": _check_short_string,
    "priority": _check_priority,
    "serializer": _check_serializer,
    "compression": _check_compression,
    "delivery_mode": _check_delivery_mode,
    "countdown": _check_seconds,
    "time_limit": _check_time_limit,
    "soft_time_limit": _check_time_limit,
    "ignore_result": _check_flag,
    "shadow": check_name,
    "headers": _check_headers,
}
