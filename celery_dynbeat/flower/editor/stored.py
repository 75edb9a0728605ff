"""The texts with which the form shows a stored schedule.

``parsing`` reads them back. A text without an edit is not read back at all, so values that
only SQL can write, such as a damaged trigger, stay as they are.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.api.typed_text import format_duration, format_retry
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.text import escape
from celery_dynbeat.flower.editor.fields import ARGUMENT_FIELDS, FIELDS, POLICIES
from celery_dynbeat.triggers import Excluding, Once

#: JSON up to this length is written on one line. So is longer JSON than _PAGE: indentation could
#: multiply its length, and with it the size of the form.
_LINE, _PAGE = 72, 8_000
#: Kinds whose rule is JSON. Their exclusions stay in it.
_COMPOSITES = frozenset({"any_of", "excluding", "on_business_day"})
#: The texts of a new schedule.
EMPTY: Mapping[str, str] = dict.fromkeys(FIELDS, "")


def texts_of(
    info: ScheduleInfo, *, zone: ZoneInfo, hides_arguments: bool = False
) -> Mapping[str, str]:
    """Return the texts of all fields. Instants are on the clock of ``zone``, with their offset."""
    # Manual SQL can write any JSON.
    given: Any = info.options
    options = given if isinstance(given, Mapping) else {}
    texts = {
        "task": info.task,
        **_rule(info, zone),
        "args": _json(info.args),
        "kwargs": _json(info.kwargs),
        "queue": _plain(options.get("queue"), zone),
        "priority": _plain(options.get("priority"), zone),
        "description": info.description,
        # A tag contains no line break.
        "tags": "\n".join(map(str, info.tags or ())),
        **{policy.name: _plain(getattr(info, policy.name), zone) for policy in POLICIES},
    }
    return {
        field: lines(texts[field])
        for field in FIELDS
        if not (hides_arguments and field in ARGUMENT_FIELDS)
    }


def lines(text: str) -> str:
    """Return a text with the line breaks that a browser does not change."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _rule(info: ScheduleInfo, zone: ZoneInfo) -> Mapping[str, str]:
    given = info.given_trigger
    if given is None:
        stored = info.stored_trigger
        # A row whose rule follows no wall clock has UTC.
        follows_none = info.inherits_timezone or stored["timezone"] == "UTC"
        timezone = "" if follows_none else stored["timezone"]
        texts = {"kind": stored["kind"], "rule": stored["spec"], "timezone": timezone}
        return {**texts, "calendar": ""}
    calendar = ""
    if isinstance(given, Excluding) and _has_only_calendars(given):
        calendar, given = ", ".join(given.calendars), given.trigger
    rule = given.spec
    if isinstance(given, Once) and given.delay is None:
        rule = _plain(given.at, zone)
    texts = {"kind": given.kind, "rule": rule, "timezone": given.timezone or ""}
    return {**texts, "calendar": calendar}


def _has_only_calendars(given: Excluding) -> bool:
    """Return whether the field of the calendars reads these exclusions back."""
    return (
        not given.dates
        and not given.triggers
        and given.timezone == given.trigger.timezone
        and given.trigger.kind not in _COMPOSITES
        and not any("," in name for name in given.calendars)
    )


def _json(value: Any) -> str:
    if value in ([], {}):
        return ""
    text = json.dumps(value, ensure_ascii=False)
    # A browser shows some characters as nothing, or reverses the text after them.
    is_printable = escape(text) == text
    indent = 2 if _LINE < len(text) <= _PAGE else None
    return json.dumps(value, ensure_ascii=not is_printable, indent=indent)


def _plain(value: Any, zone: ZoneInfo) -> str:
    if value is None:
        return ""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, datetime):
        return value.astimezone(zone).isoformat()
    if isinstance(value, Retry):
        return format_retry(value)
    return str(value)
