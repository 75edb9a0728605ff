"""The texts of the form as arguments of ``create`` and ``update``, or an error for each field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.checks import check_name
from celery_dynbeat.api.edit.fields import check_span, merge_options, to_columns
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.flower.editor.fields import LABELS, RULE_FIELDS, TABLE, field_of
from celery_dynbeat.flower.editor.rules import trigger_of, zone_of


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
        value = TABLE[name].parse(texts[name])
        if isinstance(value, TypedInstant):
            value = value.resolve(now=by.now, zone=_zone(texts, by))
        to_columns(merge_options({}, {name: value}), limit=by.limit)
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
