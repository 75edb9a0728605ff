"""The texts that a person types for a schedule, and the arguments that they mean. PURE.

The forms of Flower and of Django have a text for each field of the table FIELDS, and the text
``rule`` for the trigger. A text without an edit is not read back. Values that only SQL can write,
such as a damaged trigger, therefore stay as they are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.field_types import TypedInstant
from celery_dynbeat.api.fields import FIELDS, check_span, merge_options, to_columns
from celery_dynbeat.api.results import ChangeInfo, ScheduleInfo
from celery_dynbeat.common.errors import DynbeatError, InvalidArgumentError, InvalidTriggerError
from celery_dynbeat.triggers import Trigger

RULE = "rule"


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
    """The arguments that differ from the stored schedule, and the errors by text."""

    changes: dict[str, Any] = field(default_factory=dict)
    raised: dict[str, Exception] = field(default_factory=dict)

    @property
    def errors(self) -> dict[str, str]:
        """The texts of the errors."""
        return {name: str(error) for name, error in self.raised.items()}


def texts_of(info: ScheduleInfo, names: Iterable[str], *, zone: ZoneInfo) -> dict[str, str]:
    """Return the texts of a schedule. Instants are on the clock of ``zone``, with their offset."""
    return {name: lines(_text(info, name, zone)) for name in names}


def _text(info: ScheduleInfo, name: str, zone: ZoneInfo) -> str:
    if name == RULE:
        return info.stored_trigger["spec"] if info.rule is None else info.rule
    return FIELDS[name].format(FIELDS[name].value_in(info), zone)


def lines(text: str) -> str:
    """Return a text with the line breaks that a browser does not change."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse(texts: Mapping[str, str], *, stored: Mapping[str, str], by: Parsing) -> Parsed:
    """Return the arguments for the texts that differ from ``stored``.

    Fields that ``texts`` does not have are not changed. Never raises for any text.
    """
    parsed = Parsed()
    for name, text in texts.items():
        if text == stored.get(name):
            continue
        try:
            argument = "trigger" if name == RULE else name
            parsed.changes[argument] = _value(name, text, by)
        # InvalidArgumentError and InvalidTriggerError are ValueErrors.
        except (ValueError, OverflowError) as error:
            parsed.raised[name] = error
    try:
        check_span(**{name: parsed.changes.get(name) for name in ("start_at", "end_at")})
    except InvalidArgumentError as error:
        parsed.raised["end_at"] = error
    return parsed


def _value(name: str, text: str, by: Parsing) -> Any:
    if name == RULE:
        if not text.strip():
            msg = "the rule is empty: pick one, or write one such as '0 9 * * mon-fri' or '5m'"
            raise InvalidTriggerError(msg, field="trigger")
        return Trigger.from_text(text, timezone=by.zone.key)
    value = FIELDS[name].parse(text)
    if isinstance(value, TypedInstant):
        value = value.resolve(now=by.now, zone=by.zone)
    to_columns(merge_options({}, {name: value}), limit=by.limit)
    return value


def text_of(error: DynbeatError) -> str:
    """Return the name of the text to which the error of a call belongs, "" for none."""
    field = getattr(error, "field", None) or ""
    if isinstance(error, InvalidTriggerError) or field == "trigger":
        return RULE
    # An entry of the options is ``options['queue']``.
    return str(field).partition("[")[0]


def changes_since(
    info: ScheduleInfo, changes: Iterable[ChangeInfo], *, version: int
) -> Sequence[ChangeInfo]:
    """Return the edits of this schedule after ``version``."""
    return [
        change
        for change in changes
        if change.changed_at >= info.created_at and (change.after or {}).get("version", 0) > version
    ]
