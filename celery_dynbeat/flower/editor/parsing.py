"""The texts of the form: those of a stored schedule, and the arguments that edited texts mean.

A text without an edit is not read back. Values that only SQL can write, such as a damaged trigger,
therefore stay as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.api.checks import check_name
from celery_dynbeat.api.edit.fields import check_span, merge_options, to_columns
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.flower.editor.fields import ARGUMENT_FIELDS, LABELS, TABLE
from celery_dynbeat.triggers import Trigger

#: The texts of a new schedule.
EMPTY: Mapping[str, str] = dict.fromkeys(LABELS, "")


@dataclass(frozen=True, slots=True)
class Parsing:
    """The meaning of texts. ``zone`` is the owner's zone. ``limit`` is the size of payloads.

    ``now`` is read only for a time such as ``2h``.
    """

    zone: ZoneInfo
    limit: int
    now: Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Parsed:
    """The arguments that differ from the stored schedule, and the errors by field."""

    changes: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def texts_of(
    info: ScheduleInfo, *, zone: ZoneInfo, hides_arguments: bool = False
) -> dict[str, str]:
    """Return the texts of all fields. Instants are on the clock of ``zone``, with their offset."""
    texts = {name: each.format(each.value_in(info), zone) for name, each in TABLE.items()}
    texts["rule"] = info.stored_trigger["spec"] if info.rule is None else info.rule
    hidden = ARGUMENT_FIELDS if hides_arguments else ()
    return {name: lines(texts[name]) for name in LABELS if name not in hidden}


def lines(text: str) -> str:
    """Return a text with the line breaks that a browser does not change."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse(texts: Mapping[str, str], *, stored: Mapping[str, str], by: Parsing) -> Parsed:
    """Return the arguments for the fields whose texts differ from ``stored``.

    Fields that ``texts`` does not have are not changed. Never raises for any text.
    """
    parsed = Parsed()
    for name, text in texts.items():
        if text != stored.get(name):
            _parse_field(name, text, parsed, by)
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


def _parse_field(name: str, text: str, parsed: Parsed, by: Parsing) -> None:
    try:
        if name == "rule":
            parsed.changes["trigger"] = _trigger(text, by.zone)
            return
        value = TABLE[name].parse(text)
        if isinstance(value, TypedInstant):
            value = value.resolve(now=by.now, zone=by.zone)
        to_columns(merge_options({}, {name: value}), limit=by.limit)
    # InvalidScheduleError and InvalidTriggerError are ValueErrors.
    except (ValueError, OverflowError) as error:
        parsed.errors[name] = str(error)
    else:
        parsed.changes[name] = value


def _trigger(text: str, zone: ZoneInfo) -> Trigger:
    if not text.strip():
        message = "the rule is empty: pick one, or write one such as '0 9 * * mon-fri' or '5m'"
        raise InvalidTriggerError(message, field="trigger")
    return Trigger.from_text(text, timezone=zone.key)


def _check_span(parsed: Parsed) -> None:
    start_at, end_at = (parsed.changes.get(name) for name in ("start_at", "end_at"))
    try:
        check_span(start_at=start_at, end_at=end_at)
    except InvalidScheduleError as error:
        parsed.errors["end_at"] = str(error)
