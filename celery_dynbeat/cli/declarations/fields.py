"""One schedule of a file: its fields, as the arguments of the API and back.

Each field of ``create()`` has the same name here. Durations are seconds, instants are ISO 8601 with
an offset. A trigger is a text, or an object as ``Trigger.to_json`` writes it.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.api.field_types import Instant
from celery_dynbeat.api.fields import DEFAULTS, FIELDS
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers import Trigger

REQUIRED = ("task", "trigger")
_INSTANT = Instant()
#: Fields that are entries of ``options``.
_OPTIONS = frozenset(name for name, field in FIELDS.items() if field.in_options)
#: The order in which a file shows the fields.
ORDER = (
    *("owner", "name", "task", "trigger", "timezone"),
    *(name for name, field in FIELDS.items() if not field.is_required),
    *("enabled", "paused_reason", "paused_until"),
)


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``create()`` for a declared schedule, without its pause.

    A field that is not given has its default. Raises InvalidScheduleError and InvalidTriggerError.
    """
    values = {name: FIELDS[name].from_json(given[name]) for name in FIELDS if name in given}
    for field in ("paused_reason", "paused_until"):
        if field in given and given.get("enabled") is not False:
            message = f"{field} = {shorten(given[field])}: needs enabled: false"
            raise InvalidScheduleError(message, field=field)
    pause_end(given)
    trigger = trigger_of(given.get("trigger"), timezone=given.get("timezone"))
    return {**DEFAULTS, **values, "trigger": trigger}


def pause_end(given: Mapping[str, Any]) -> datetime | None:
    """Return the end of a declared pause, or None if it has no end. Raises InvalidScheduleError."""
    until = given.get("paused_until")
    return None if until is None else _INSTANT.from_json("paused_until", until)


def trigger_of(given: object, *, timezone: object) -> Trigger:
    """Return the trigger of a text or an object. If it names no zone, it uses ``timezone``."""
    if isinstance(given, Mapping):
        spec = given.get("spec")
        # The spec of a combined trigger may be an object or a list, which people can read.
        text = json.dumps(spec, ensure_ascii=False) if isinstance(spec, list | dict) else spec
        zone = {} if timezone is None else {"timezone": timezone}
        return Trigger.from_json({**zone, **given, "spec": text})
    if not isinstance(given, str):
        rule = (
            "must be a text ('0 9 * * mon-fri', 'PT5M', '2026-11-21T09:00:00Z', the lines of an"
            " RRULE), or an object with kind, spec and timezone"
        )
        raise InvalidTriggerError(f"trigger = {shorten(given)}: {rule}", field="trigger")
    trigger = Trigger.from_text(given)
    if timezone is None:
        return trigger
    return _in_zone(trigger, timezone)


def _in_zone(trigger: Trigger, timezone: object) -> Trigger:
    if trigger.timezone is not None and trigger.timezone != timezone:
        rule = f"the trigger names the zone {trigger.timezone!r} itself; leave one of them out"
        raise InvalidScheduleError(f"timezone = {shorten(timezone)}: {rule}", field="timezone")
    zoned = Trigger.from_json({**trigger.to_json(), "timezone": timezone})
    if zoned.timezone is None:
        rule = f"a trigger of kind {trigger.kind!r} has no time zone; leave timezone out"
        raise InvalidScheduleError(f"timezone = {shorten(timezone)}: {rule}", field="timezone")
    return zoned


def declared(info: ScheduleInfo, *, with_owner: bool) -> dict[str, Any]:
    """Return the fields of a stored schedule that differ from their defaults, in ORDER.

    ``arguments`` reads them back. The trigger must be readable.
    """
    values: dict[str, Any] = {"name": info.name, "task": info.task}
    if with_owner:
        values["owner"] = info.owner
    values |= _declared_trigger(info)
    for name, field in FIELDS.items():
        value = field.to_json(field.value_in(info))
        if name == "options":
            # None means that the value has too many digits or levels for Python.
            value = {key: each for key, each in (value or {}).items() if key not in _OPTIONS}
        if value != field.default and not field.is_required:
            values[name] = value
    if not info.enabled:
        values["enabled"] = False
        if info.paused_reason:
            values["paused_reason"] = info.paused_reason
        if info.paused_until:
            values["paused_until"] = _INSTANT.to_json(info.paused_until)
    return {field: values[field] for field in ORDER if field in values}


def _declared_trigger(info: ScheduleInfo) -> dict[str, Any]:
    assert info.given_trigger is not None  # noqa: S101 - the caller checks it
    as_json = info.given_trigger.to_json()
    zone = {} if as_json["timezone"] is None else {"timezone": as_json["timezone"]}
    text = info.given_trigger.spec
    try:
        if trigger_of(text, timezone=zone.get("timezone")) == Trigger.from_json(as_json):
            return {"trigger": text, **zone}
    except (InvalidScheduleError, InvalidTriggerError):
        pass
    spec = json.loads(text) if text.startswith(("{", "[")) else text
    return {"trigger": {**as_json, "spec": spec}}
