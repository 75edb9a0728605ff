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
from celery_dynbeat.client.checks import LONGEST, choice, name, number, refuse
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten

PRIORITIES = 255
#: Octets in an AMQP short string: names of queues, keys of headers.
SHORT_STRING = 255
LARGEST_INTEGER = 2**63


def check(options: Mapping[str, Any]) -> None:
    """Raise InvalidScheduleError for an option that is unknown or can never be sent."""
    for key, option in options.items():
        checker = _CHECKS.get(key)
        field = f"options[{shorten(key)}]"
        if checker is None:
            raise refuse(field, option, _unknown(key))
        checker(field, option)


def check_one(key: str, option: Any) -> None:
    """Raise InvalidScheduleError for an option that is given as a separate field."""
    _CHECKS[key](key, option)


def is_known(key: str) -> bool:
    """Return whether a schedule may carry an option of that name."""
    return key in _CHECKS


def _unknown(key: str) -> str:
    cure = _ELSEWHERE.get(key)
    if cure is not None:
        return f"it belongs to one message, not to a schedule; {cure}"
    near = difflib.get_close_matches(key[:40], _CHECKS, n=1)
    known = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(_CHECKS))}"
    return f"no such option for a schedule; {known}"


def _short(field: str, value: Any) -> None:
    if len(name(field, value).encode()) > SHORT_STRING:
        raise refuse(field, value, f"must be at most {SHORT_STRING} bytes long")


def _priority(field: str, value: Any) -> None:
    try:
        number(field, value, least=0, most=PRIORITIES, whole=True)
    except InvalidScheduleError as error:
        cure = "RabbitMQ takes up to x-max-priority of the queue, Redis 0 to 9"
        raise InvalidScheduleError(f"{error} ({cure})", field=field) from None


def _seconds(field: str, value: Any) -> None:
    number(field, value, least=0, most=LONGEST)


def _limit(field: str, value: Any) -> None:
    number(field, value, least=0.001, most=LONGEST)


def _serializer(field: str, value: Any) -> None:
    choice(field, value, *sorted(registry._encoders))  # noqa: SLF001 - it has no list of names


def _compression(field: str, value: Any) -> None:
    choice(field, value, *sorted([*encoders(), *_aliases]))


def _delivery_mode(field: str, value: Any) -> None:
    choice(field, value, 1, 2, "transient", "persistent")


def _flag(field: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise refuse(field, value, "must be True or False")


def _headers(field: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise refuse(field, value, "must be a mapping")
    for key in value:
        _short(field, key)
        if is_reserved(key):
            rule = (
                "is a header that Celery or dynbeat writes, and that would change what is run;"
                f" choose another name, such as {'my_' + key!r}"
            )
            raise refuse(field, key, rule)
    _integers(field, value)


def _integers(field: str, value: Any) -> None:
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            _integers(field, each)
    elif isinstance(value, int) and not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
        raise refuse(field, value, "whole numbers in headers have at most 64 bits")


#: What is bound to one message, and what a schedule has in its place.
_FOLLOWS = "write a task that starts what follows it, and schedule that task"
_ELSEWHERE = {
    "expires": "give the schedule expires_after=, in seconds or a timedelta",
    "eta": "give the trigger Once(instant), or start_at= for the first fire time of a rule",
    "task_id": "each run has an id of its own, which run_now() and runs() return",
    **dict.fromkeys(("link", "link_error", "chord", "chain", "group", "group_id"), _FOLLOWS),
    **dict.fromkeys(("retry", "retry_policy"), "beat itself sends again what no broker took"),
}
_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "queue": _short,
    "exchange": _short,
    "routing_key": _short,
    "priority": _priority,
    "serializer": _serializer,
    "compression": _compression,
    "delivery_mode": _delivery_mode,
    "countdown": _seconds,
    "time_limit": _limit,
    "soft_time_limit": _limit,
    "ignore_result": _flag,
    "shadow": name,
    "headers": _headers,
}
