"""Instants that a URL or a form contains. PURE."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from celery_dynbeat.api.typed_text import parse_instant
from celery_dynbeat.common.errors import InvalidScheduleError


def given_instant(field: str, text: str, *, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the instant of ``2026-11-22T09:00``, with or without an offset, or of ``24h`` ago.

    A time without an offset is in ``zone``. Raises InvalidScheduleError.
    """
    # A "+" in a URL that a person wrote arrives as a space.
    cleaned = text.replace(" ", "+") if "T" in text else text
    try:
        typed = parse_instant(cleaned, direction=-1)
        return typed.resolve(now=lambda: now, zone=zone).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidScheduleError(f"{field}: {error}", field=field) from None
