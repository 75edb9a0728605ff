"""Instants and durations as ISO 8601 text."""

import re
from datetime import UTC, datetime, timedelta

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import shorten, utc

_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)? ?(Z|[+-]\d\d:?\d\d)", re.ASCII
)
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)
_DURATION = re.compile(
    r"P(?=.*\d)(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,10})(?:\.(?P<fraction>\d{1,6}))?S)?)?",
    re.ASCII,
)
_CALENDAR = re.compile(r"P[\dWD.]*\d[YM].*", re.ASCII)
_SECONDS_A_MINUTE, _SECONDS_AN_HOUR = 60, 3600


def format_instant(instant: datetime) -> str:
    """Return an instant in UTC as ``2026-11-21T09:00:00Z``, with a fraction if it has one."""
    return f"{instant.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def parse_instant(text: str, *, field: str) -> datetime:
    """Read ``2026-11-21T09:00:00Z`` or ``2026-11-21 18:00+09:00``; return it in UTC.

    Raises ``InvalidTriggerError`` for ``field``.
    """
    cleaned = text.strip().upper()
    if _LOCAL.fullmatch(cleaned):
        reason = "it needs a time and a zone: add Z for UTC, or an offset such as +09:00"
    elif not _INSTANT.fullmatch(cleaned):
        reason = "it must look like 2026-11-21T09:00:00Z"
    else:
        try:
            return utc(
                datetime.fromisoformat(cleaned.replace(" ", "T", 1).replace(" ", "")), field=field
            )
        except ValueError as error:
            reason = str(error)
    raise InvalidTriggerError(f"{field} {shorten(text)} is no instant: {reason}", field=field)


def format_duration(duration: timedelta) -> str:
    """Return a positive duration as ``P1DT1H30M``, ``PT5M`` or ``PT0.5S``."""
    hours, rest = divmod(duration.seconds, _SECONDS_AN_HOUR)
    minutes, seconds = divmod(rest, _SECONDS_A_MINUTE)
    fraction = f".{duration.microseconds:06}".rstrip("0") if duration.microseconds else ""
    clock = f"{hours}H" if hours else ""
    clock += f"{minutes}M" if minutes else ""
    clock += f"{seconds}{fraction}S" if seconds or fraction else ""
    days = f"{duration.days}D" if duration.days else ""
    return f"P{days}T{clock}" if clock else f"P{days}"


def parse_duration(text: str) -> timedelta:
    """Read an ISO 8601 duration of weeks, days, hours, minutes and seconds.

    Raises ``InvalidTriggerError`` with field ``"interval"``, also for years and months: they are
    no elapsed time.
    """
    cleaned = "".join(text.split()).upper()
    match = _DURATION.fullmatch(cleaned)
    if match is not None:
        digits = match.groupdict("0")
        microseconds = int(digits.pop("fraction").ljust(6, "0"))
        parts = {unit: int(number) for unit, number in digits.items()}
        try:
            return timedelta(**parts, microseconds=microseconds)
        except OverflowError:
            reason = "it must not exceed 100 years"
    else:
        reason = "it must be an ISO 8601 duration, such as PT5M, PT1H30M or P1D"
    if _CALENDAR.fullmatch(cleaned):
        reason = (
            "years and months differ in length; use days (P30D) or a Cron such as '0 9 1 * *'"
            " (five minutes are PT5M)"
        )
    raise InvalidTriggerError(f"interval {shorten(text)}: {reason}", field="interval")
