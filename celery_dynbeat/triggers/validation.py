"""Checks of arguments that several kinds of triggers take."""

from datetime import UTC, datetime

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import as_text, shorten


def utc(instant: object, *, field: str) -> datetime:
    """Return ``instant`` in UTC.

    Raises ``InvalidTriggerError`` for ``field`` when it is naive or no datetime.
    """
    if not isinstance(instant, datetime):
        message = f"{field} is {shorten(instant)}; it must be an aware datetime"
        raise InvalidTriggerError(message, field=field)
    if instant.tzinfo is UTC:
        return instant
    if instant.utcoffset() is None:
        message = f"{field} {instant} has no zone; make it aware, e.g. with tzinfo=datetime.UTC"
        raise InvalidTriggerError(message, field=field)
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        message = f"{field} {instant} lies outside the years 1 to 9999 in UTC; choose another"
        raise InvalidTriggerError(message, field=field) from error


def require_text(value: object, *, field: str | None, example: str, label: str = "trigger") -> str:
    """Return ``value``, which must be a string, a lazy string of Django or a ZoneInfo, as text.

    Raises ``InvalidTriggerError`` for ``field``. The message names the field, or ``label`` when
    ``field`` is None.
    """
    text = as_text(value)
    if isinstance(text, str):
        return text
    message = f"{field or label} is {shorten(value)}; it must be text, such as {example!r}"
    raise InvalidTriggerError(message, field=field)
