"""Rules that yield fire times.

Triggers are values, which compare by content and can be converted to text.

This module reads them from rows and from JSON, and ``text`` reads them from text. The classes are
imported at their first use.
"""

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from celery_dynbeat.common import lazy_exports
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import (
    KINDS,
    MAX_SPEC_LENGTH,
    Trigger,
    is_known,
    load_class,
    require_text,
)

if TYPE_CHECKING:
    from celery_dynbeat.triggers.calendar_days import CalendarDays
    from celery_dynbeat.triggers.composite.any_of import AnyOf
    from celery_dynbeat.triggers.composite.excluding import Excluding
    from celery_dynbeat.triggers.composite.on_business_day import OnBusinessDay
    from celery_dynbeat.triggers.cron.trigger import Cron
    from celery_dynbeat.triggers.every import Every
    from celery_dynbeat.triggers.once import Once
    from celery_dynbeat.triggers.rrule.trigger import RRule
    from celery_dynbeat.triggers.solar import Solar

__all__ = [
    "KINDS",
    "AnyOf",
    "CalendarDays",
    "Cron",
    "Every",
    "Excluding",
    "OnBusinessDay",
    "Once",
    "RRule",
    "Solar",
    "Trigger",
    "is_known",
    "parse_trigger",
]

#: Most applications use few of these.
_LAZY_EXPORTS = {
    "calendar_days": ("CalendarDays",),
    "composite.any_of": ("AnyOf",),
    "composite.excluding": ("Excluding",),
    "composite.on_business_day": ("OnBusinessDay",),
    "cron.trigger": ("Cron",),
    "every": ("Every",),
    "once": ("Once",),
    "rrule.trigger": ("RRule",),
    "solar": ("Solar",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)


_KEYS = ("kind", "spec", "timezone")


def parse_trigger(kind: str, spec: str, *, timezone: str | None = None) -> Trigger:
    """Return the trigger of a database row: the inverse of ``kind``, ``spec`` and ``timezone``.

    Case and spaces may differ, because people also write rows manually. Only rules of the wall
    clock use ``timezone``.

    Raises ``InvalidTriggerError``, and no other error, for any text.
    """
    return _parse_whole(*_required(kind, spec, timezone))


def trigger_from_json(data: Mapping[str, object]) -> Trigger:
    """See ``Trigger.from_json``."""
    return _parse_whole(*_texts(data))


def _texts(data: object) -> tuple[str, str, str | None]:
    """Return kind, spec and timezone.

    Only text may reach the caches, because they need hashable keys.
    """
    if not isinstance(data, Mapping):
        rule = f"it must be an object with the keys {', '.join(_KEYS)}"
        raise InvalidTriggerError(f"trigger is {shorten(data)}; {rule}", field="trigger")
    for key in data:
        if key not in _KEYS:
            message = f"unknown key {shorten(key)} in trigger; known are {', '.join(_KEYS)}"
            field = key if isinstance(key, str) and len(key) <= MAX_SPEC_LENGTH else shorten(key)
            raise InvalidTriggerError(message, field=field)
    return _required(data.get("kind"), _spec_text(data.get("spec")), data.get("timezone"))


def _spec_text(spec: object) -> object:
    """Return the spec of a combination as the text of a row, any other value as it is."""
    if not isinstance(spec, list | dict):
        return spec
    try:
        return json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTriggerError(f"spec {shorten(spec)} is not JSON", field="spec") from error


def _required(kind: object, spec: object, timezone: object) -> tuple[str, str, str | None]:
    kind = require_text(kind, field="kind", example="cron")
    spec = require_text(spec, field="spec", example="0 9 * * mon-fri")
    if timezone is not None:
        timezone = require_text(timezone, field="timezone", example="Asia/Seoul")
    return kind, spec, timezone


@lru_cache(maxsize=8192)
def _parse_whole(kind: str, spec: str, timezone: str | None) -> Trigger:
    # Parts are not checked one by one, because all searches of the check share one budget.
    return parse_unchecked(kind, spec, timezone).checked()


def parse_part(data: Mapping[str, object]) -> Trigger:
    """Return a part of a combined trigger from its JSON, not checked for having fire times."""
    return parse_unchecked(*_texts(data))


@lru_cache(maxsize=8192)
def parse_unchecked(kind: str, spec: str, timezone: str | None) -> Trigger:
    """Return ``parse_trigger``, not checked for having fire times."""
    name = kind.strip().lower()
    if name not in KINDS:
        near = difflib.get_close_matches(name[:40], KINDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(KINDS)}"
        raise InvalidTriggerError(f"unknown kind of trigger {shorten(kind)}: {hint}", field="kind")
    trigger_class: type[Trigger] = load_class(name)
    most = trigger_class.max_spec_length
    if len(spec) > most:
        message = f"{shorten(spec)} has {len(spec)} characters; at most {most} are allowed"
        raise InvalidTriggerError(message, field="spec")
    return trigger_class.from_spec(spec, timezone)
