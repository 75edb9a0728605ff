"""One schedule of a file: its fields, as the arguments of the API and back.

Each field of ``create()`` has the same name here. Durations are seconds, instants are ISO 8601 with
an offset. A trigger is its text.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.api.checks import check_text
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
    *("owner", "name", "task", "trigger"),
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
    if given.get("paused_reason") is not None:
        check_text("paused_reason", given["paused_reason"])
    return {**DEFAULTS, **values, "trigger": _trigger(given.get("trigger"))}


def pause_end(given: Mapping[str, Any]) -> datetime | None:
    """Return the end of a declared pause, or None if it has no end. Raises InvalidScheduleError."""
    until = given.get("paused_until")
    if until is None:
        return None
    field = "paused_until"
    return _INSTANT.check(field, _INSTANT.from_json(field, until))


def _trigger(given: object) -> Trigger:
    if isinstance(given, str):
        return Trigger.from_text(given)
    rule = (
        "must be a text, in quotes if YAML reads it as another value, such as '2026-11-21T09:00Z'"
    )
    if isinstance(given, Mapping):
        rule = (
            "must be a text ('0 9 * * mon-fri', 'PT5M', 'CRON_TZ=Asia/Seoul 0 9 * * *'); convert"
            " an object with kind, spec and timezone with str(Trigger.from_json(...))"
        )
    raise InvalidTriggerError(f"trigger = {shorten(given)}: {rule}", field="trigger")


def declared(info: ScheduleInfo, *, with_owner: bool) -> dict[str, Any]:
    """Return the fields of a stored schedule that differ from their defaults, in ORDER.

    ``arguments`` reads them back. The trigger must be readable.
    """
    values: dict[str, Any] = {"name": info.name, "task": info.task}
    if with_owner:
        values["owner"] = info.owner
    values["trigger"] = str(info.given_trigger)
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
