"""The texts of the form as arguments of ``create`` and ``update``, or an error for each field."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.checks import check_name
from celery_dynbeat.api.edit.fields import check_span, merge_options, to_columns
from celery_dynbeat.api.typed_text import (
    TypedInstant,
    parse_duration,
    parse_instant,
    parse_retry,
    parse_window,
)
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.text import load_json, shorten
from celery_dynbeat.flower.editor.fields import LABELS, POLICIES, RULE_FIELDS, field_of
from celery_dynbeat.flower.editor.rules import trigger_of, zone_of

_WHOLE_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_OPTIONS = ("queue", "priority")


@dataclass(frozen=True, slots=True)
class Parsing:
    """The meaning of texts. ``owner_zone`` is the owner's zone. ``limit`` is the size of payloads.

    ``now`` is read only for a time such as ``2h``.
    """

    owner_zone: str
    limit: int
    now: Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Parsed:
    """The arguments that differ from the stored schedule, and the errors by field."""

    changes: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def parse(texts: Mapping[str, str], *, stored: Mapping[str, str], by: Parsing) -> Parsed:
    """Return the arguments for the fields whose texts differ from ``stored``.

    Fields that ``texts`` does not have are not changed. Never raises for any text.
    """
    parsed = Parsed()
    edited = [name for name in LABELS if name in texts and texts[name] != stored.get(name)]
    if any(name in edited for name in RULE_FIELDS):
        _parse_rule(texts, parsed, by)
    for name in edited:
        if name not in RULE_FIELDS:
            _parse_field(name, texts, parsed, by)
    _check_span(parsed)
    return parsed


def check_names(owner: str, name: str) -> Mapping[str, str]:
    """Return the errors of the owner and the name of a new schedule."""
    errors = {}
    for named, value, empty in (("owner", owner, True), ("name", name, False)):
        try:
            check_name(named, value, empty=empty)
        except InvalidScheduleError as error:
            errors[named] = str(error)
    return errors


def _parse_rule(texts: Mapping[str, str], parsed: Parsed, by: Parsing) -> None:
    kind, rule, timezone, calendar = (texts.get(name, "") for name in RULE_FIELDS)
    try:
        trigger = trigger_of(
            kind, rule, timezone=timezone.strip(), owner_zone=by.owner_zone, now=by.now
        )
        names = [name for part in calendar.split(",") if (name := part.strip())]
        parsed.changes["trigger"] = trigger.excluding(calendar=names) if names else trigger
    except InvalidTriggerError as error:
        parsed.errors[field_of(error)] = str(error)


def _parse_field(name: str, texts: Mapping[str, str], parsed: Parsed, by: Parsing) -> None:
    try:
        value = _READERS[name](texts[name])
        if isinstance(value, TypedInstant):
            value = value.resolve(now=by.now, zone=_zone(texts, by))
        if name in _OPTIONS:
            merge_options({}, {name: value})
        else:
            to_columns({name: value}, limit=by.limit)
    # InvalidScheduleError is a ValueError.
    except (ValueError, OverflowError) as error:
        parsed.errors[name] = str(error)
    else:
        parsed.changes[name] = value


def _check_span(parsed: Parsed) -> None:
    start_at, end_at = (parsed.changes.get(name) for name in ("start_at", "end_at"))
    try:
        check_span(start_at=start_at, end_at=end_at)
    except InvalidScheduleError as error:
        parsed.errors["end_at"] = str(error)


def _zone(texts: Mapping[str, str], by: Parsing) -> ZoneInfo:
    """Return the zone of times without an offset. An invalid one is an error of that field."""
    try:
        return zone_of(texts.get("timezone", "").strip(), owner_zone=by.owner_zone)
    except InvalidTriggerError:
        return zone_of("", owner_zone=by.owner_zone)


def _read_tags(text: str) -> Sequence[str]:
    return [tag for line in text.split("\n") if (tag := line.strip())]


def _read_choice(text: str) -> str | None:
    return text.strip() or None


def _read_list(text: str) -> list[Any]:
    return _json(text, list, example='[1, "a"]') if text.strip() else []


def _read_object(text: str) -> dict[str, Any]:
    return _json(text, dict, example='{"key": 1}') if text.strip() else {}


def _read_number(text: str) -> int | None:
    if not text.strip():
        return None
    if not _WHOLE_NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{shorten(text)} is not a whole number")
    return int(text)


def _read_duration(text: str) -> timedelta | None:
    return parse_duration(text) if text.strip() else None


def _read_window(text: str) -> timedelta | str | None:
    return parse_window(text) if text.strip() else None


def _read_instant(text: str) -> TypedInstant | None:
    return parse_instant(text) if text.strip() else None


def _read_retry(text: str) -> Retry | None:
    return parse_retry(text) if text.strip() else None


def _json(text: str, kind: type, *, example: str) -> Any:
    wanted = "array" if kind is list else "object"
    try:
        value = load_json(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(
            f"not JSON: {error.msg} ({place}); an {wanted} looks like {example}"
        ) from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(value, kind):
        raise ValueError(f"write a JSON {wanted}, such as {example}")  # noqa: TRY004
    return value


_FORMS: Mapping[str, Callable[[str], Any]] = {
    "choice": _read_choice,
    "count": _read_number,
    "duration": _read_duration,
    "instant": _read_instant,
    "retry": _read_retry,
    "window": _read_window,
}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "task": str.strip,
    "args": _read_list,
    "kwargs": _read_object,
    "queue": _read_choice,
    "priority": _read_number,
    "description": str,
    "tags": _read_tags,
    **{policy.name: _FORMS[policy.form] for policy in POLICIES},
}
