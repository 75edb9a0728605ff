"""The parts of a combined trigger as JSON. Each part is its ``to_json`` without a missing zone."""

from collections.abc import Iterable

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import RepeatedKeyError, load_json, shorten
from celery_dynbeat.triggers import parse_part
from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.wrappers import check_preparation

#: The deepest nesting is AnyOf of exclusions from business days of AnyOf.
MAX_DEPTH = 4
# A level of triggers adds at most three levels of JSON: an object, its list, an object in the list.
_MAX_NESTING = 3 * MAX_DEPTH + 1


def distinct(triggers: Iterable[Trigger]) -> tuple[Trigger, ...]:
    """Return the different triggers, in an order that does not depend on theirs."""
    return tuple(sorted(set(triggers), key=_order))


def load(spec: str, *, example: str) -> object:
    """Return the value of JSON text. Raises ``InvalidTriggerError`` with field ``"spec"``."""
    try:
        value = load_json(spec)
        too_deep = _nesting(value) > _MAX_NESTING
    except RepeatedKeyError as error:
        raise InvalidTriggerError(str(error), field="spec") from None
    except (ValueError, RecursionError) as error:
        reason = f"it must be JSON such as {example}"
        raise InvalidTriggerError(f"{shorten(spec)}: {reason}", field="spec") from error
    if too_deep:
        reason = f"more than {MAX_DEPTH} combinations inside each other"
        raise InvalidTriggerError(f"{shorten(spec)}: {reason}", field="spec")
    return value


def read_parts(value: object, *, timezone: str | None) -> tuple[Trigger, ...]:
    """Return the parts of a JSON list. Parts without a ``timezone`` key are in ``timezone``.

    Raises ``InvalidTriggerError`` at the first part at which the preparation of the parts so far
    takes too many steps. The rest is not read.
    """
    if not isinstance(value, list):
        message = f"{shorten(value)} must be a list of triggers in JSON"
        raise InvalidTriggerError(message, field="spec")
    return prepared(read_part(item, timezone=timezone) for item in value)


def prepared(triggers: Iterable[Trigger]) -> tuple[Trigger, ...]:
    """Return ``triggers``. Stop at the first one at which preparing them takes too many steps."""
    parts, steps = list[Trigger](), 0
    for part in triggers:
        steps += part.preparation_steps
        check_preparation(part, steps)
        parts.append(part)
    return tuple(parts)


def read_part(value: object, *, timezone: str | None) -> Trigger:
    """Return the part of a JSON object. If it has no ``timezone`` key, it is in ``timezone``."""
    if not isinstance(value, dict):
        message = f"{shorten(value)} must be a trigger, with the keys kind, spec and timezone"
        raise InvalidTriggerError(message, field="spec")
    return parse_part({"timezone": timezone, **value})


def _nesting(value: object) -> int:
    """Return the depth of nested lists and objects, at most one more than the limit."""
    level, depth = [value], 0
    while level and depth <= _MAX_NESTING:
        inner = [value for value in level if isinstance(value, list | dict)]
        level = [
            child
            for value in inner
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        depth += bool(inner)
    return depth


def _order(trigger: Trigger) -> tuple[str, str, str]:
    return trigger.kind, trigger.spec, trigger.timezone or ""
