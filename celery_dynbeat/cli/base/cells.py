"""Values as text. PURE: it reads neither a clock nor a terminal.

Names, reasons and errors come from end users, so each text passes through ``escape``.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import singledispatch
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.common.text import escape, format_distance, format_duration
from celery_dynbeat.triggers import Trigger


@singledispatch
def plain(value: Any) -> str:
    """Return ``value`` for a program: instants in UTC, durations in seconds, None as ""."""
    return escape(str(value))


@plain.register
def _(value: None) -> str:
    del value
    return ""


@plain.register
def _(value: bool) -> str:  # noqa: FBT001 - the type selects this function
    return "yes" if value else "no"


@plain.register
def _(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


@plain.register
def _(value: timedelta) -> str:
    return f"{value.total_seconds():.15g}"


@plain.register
def _(value: Trigger) -> str:
    return escape(str(value))


@plain.register(list)
@plain.register(tuple)
@plain.register
def _(value: Mapping) -> str:  # type: ignore[type-arg]  # singledispatch needs a class
    return escape(json.dumps(value, ensure_ascii=False)) if value else ""


def readable(value: Any, zone: ZoneInfo) -> str:
    """Return ``value`` for a person: instants on the clock of ``zone``, durations in units."""
    if isinstance(value, datetime):
        return local_time(value, zone)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return escape(", ".join(value))
    return plain(value)


def local_time(instant: datetime, zone: ZoneInfo) -> str:
    """Return ``2026-11-22 18:00:00`` on the clock of ``zone``."""
    return instant.astimezone(zone).replace(tzinfo=None, microsecond=0).isoformat(" ")


def both_times(instant: datetime, zone: ZoneInfo, *, now: datetime) -> str:
    """Return the time in ``zone`` with its offset, in UTC, and how far it is from ``now``."""
    utc = f"{local_time(instant, ZoneInfo('UTC'))} UTC"
    if zone.key != "UTC":
        utc = f"{instant.astimezone(zone).replace(microsecond=0).isoformat(' ')} ({utc})"
    return f"{utc}, {format_distance(instant, now=now)}"
