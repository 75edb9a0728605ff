"""The options of apply_async that a schedule accepts.

Options of a single message (task_id, eta, group ...) are rejected, because each message needs a
different value. A schedule has its own ``expires_after`` in place of ``expires``. The bounds
come from AMQP 0-9-1, so that no option is stored that all brokers reject.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery

# kombu has no public list of the aliases, such as "gzip".
from kombu.compression import _aliases, encoders
from kombu.serialization import registry

from celery_dynbeat.api.checks import (
    MAX_SECONDS,
    check_choice,
    check_integer,
    check_name,
    check_number,
    invalid,
)
from celery_dynbeat.broker import is_reserved
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten

MAX_PRIORITY = 255
#: Bytes of an AMQP short string: names of queues, keys of headers.
SHORT_STRING_BYTES = 255
#: An integer in a header is signed and has 64 bits.
INTEGER_BOUND = 2**63


def check(options: Mapping[str, Any]) -> None:
    """Raise InvalidScheduleError for an unknown option, or one that no broker accepts."""
    for key, option in options.items():
        checker = _CHECKS.get(key)
        field = f"options[{shorten(key)}]"
        if checker is None:
            raise invalid(field, option, _unknown_option(key))
        checker(field, option)


def check_one(key: str, option: Any) -> None:
    """Raise InvalidScheduleError for an invalid option that was given as its own field."""
    _CHECKS[key](key, option)


def is_known(key: str) -> bool:
    """Return whether a schedule accepts an option of this name."""
    return key in _CHECKS


def refused_content_type(app: Celery, serializer: str) -> str | None:
    """Return the content type of ``serializer`` if ``accept_content`` of the app refuses it."""
    content_type: str | None = registry.name_to_type.get(serializer)
    accepted = app.conf.accept_content
    if content_type is None or accepted is None:
        return None
    # A name that only the workers register is unknown here.
    types = {registry.name_to_type.get(each, each) for each in accepted}
    return None if content_type in types else content_type


def _unknown_option(key: str) -> str:
    hint = _HINTS.get(key)
    if hint is not None:
        return f"it belongs to one message, not to a schedule; {hint}"
    near = difflib.get_close_matches(key[:40], _CHECKS, n=1)
    known = (
        f"did you mean {near[0]}?"
        if near
        else f"the known options are {', '.join(sorted(_CHECKS))}"
    )
    return f"a schedule has no such option; {known}"


def _check_short_string(field: str, value: Any) -> None:
    if len(check_name(field, value).encode()) > SHORT_STRING_BYTES:
        raise invalid(field, value, f"must be at most {SHORT_STRING_BYTES} bytes long")


def _check_priority(field: str, value: Any) -> None:
    try:
        check_integer(field, value, minimum=0, maximum=MAX_PRIORITY)
    except InvalidScheduleError as error:
        hint = "RabbitMQ accepts 0 to x-max-priority of the queue, Redis 0 to 9"
        raise InvalidScheduleError(f"{error} ({hint})", field=field) from None


def _check_seconds(field: str, value: Any) -> None:
    check_number(field, value, minimum=0, maximum=MAX_SECONDS)


def _check_time_limit(field: str, value: Any) -> None:
    check_number(field, value, minimum=0.001, maximum=MAX_SECONDS)


def _check_serializer(field: str, value: Any) -> None:
    check_choice(field, value, *sorted(registry._encoders))  # noqa: SLF001 - no public list exists


def _check_compression(field: str, value: Any) -> None:
    check_choice(field, value, *sorted([*encoders(), *_aliases]))


def _check_delivery_mode(field: str, value: Any) -> None:
    check_choice(field, value, 1, 2, "transient", "persistent")


def _check_bool(field: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise invalid(field, value, "must be True or False")


def _check_headers(field: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise invalid(field, value, "must be a mapping")
    for key in value:
        _check_short_string(field, key)
        if is_reserved(key):
            rule = (
                "is a header that Celery or dynbeat sets, and that decides which task is executed;"
                f" choose another name, such as {'my_' + key!r}"
            )
            raise invalid(field, key, rule)
    _check_integers(field, value)


def _check_integers(field: str, value: Any) -> None:
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            _check_integers(field, each)
    elif isinstance(value, int) and not -INTEGER_BOUND <= value < INTEGER_BOUND:
        raise invalid(field, value, "an integer in headers must fit into 64 bits")


_CANVAS_HINT = "write a task that starts the other tasks, and schedule that task"
#: What to use instead of an option that belongs to a single message.
_HINTS = {
    "expires": "use expires_after= of the schedule, in seconds or a timedelta",
    "eta": "use the trigger Once(instant), or start_at= for the first fire time of another trigger",
    "task_id": "each run has its own id, which run_now() and runs() return",
    **dict.fromkeys(("link", "link_error", "chord", "chain", "group", "group_id"), _CANVAS_HINT),
    **dict.fromkeys(
        ("retry", "retry_policy"), "beat itself resends messages that no broker accepted"
    ),
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
    "ignore_result": _check_bool,
    "shadow": check_name,
    "headers": _check_headers,
}
