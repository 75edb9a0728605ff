"""Instants and durations as ISO 8601 text. A duration can also be short: ``5m``."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import utc

_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)? ?(Z|[+-]\d\d:?\d\d)", re.ASCII
)
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)
_LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
_DURATION = re.compile(
    r"P(?=.*\d)(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?"
    r"(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,10})(?:\.(?P<fraction>\d{1,6}))?S)?)?",
    re.ASCII,
)

_SHORT = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(s|m|min|h|d|w)", re.ASCII)
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_MAX_SECONDS = 1e10


def short_duration(text: str) -> timedelta | None:
    """Return the elapsed time of ``90s``, ``5m`` or ``1.5h``. None for any other text.

    A day (``1d``) has 24 hours, and a week (``1w``) has 7 days.
    """
    match = _SHORT.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else None
    return None if seconds is None or seconds > _MAX_SECONDS else timedelta(seconds=seconds)


def format_instant(instant: datetime) -> str:
    """Return ``2026-11-21T09:00:00Z``, with a fraction if the instant has one."""
    return f"{instant.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def is_local(text: str) -> bool:
    """Return whether ``text`` looks like a date and a time without an offset."""
    return _LOCAL_TIME.fullmatch(text.strip().upper()) is not None


def parse_instant(text: str, *, field: str, zone: ZoneInfo | None = None) -> datetime:
    """Return the instant, in UTC, of ``2026-11-21T09:00:00Z`` or ``2026-11-21 18:00+09:00``.

    ``2026-11-21T18:00`` is on the clock of ``zone``. A time that the clock skips is read with the
    offset before the gap. Raises ``InvalidTriggerError`` for ``field``.
    """
    cleaned = text.strip().upper()
    if zone is not None and is_local(cleaned):
        try:
            return utc(datetime.fromisoformat(cleaned).replace(tzinfo=zone), field=field)
        except InvalidTriggerError:
            raise
        except ValueError:
            reason = "this day or time does not exist; write one such as 2026-11-21T09:00"
    elif _LOCAL.fullmatch(cleaned):
        reason = "it needs a time and a zone: add Z for UTC, or an offset such as +09:00"
    elif not _INSTANT.fullmatch(cleaned):
        reason = "it must look like 2026-11-21T09:00:00Z"
    else:
        try:
            return utc(
                datetime.fromisoformat(cleaned.replace(" ", "T", 1).replace(" ", "")), field=field
            )
        except InvalidTriggerError:
            raise
        except ValueError:
            reason = "this day or time does not exist; write one such as 2026-11-21T09:00:00Z"
    raise InvalidTriggerError(f"{field} {shorten(text)} is not an instant: {reason}", field=field)


def format_duration(duration: timedelta) -> str:
    """Return ``PT24H``, ``PT1H30M`` or ``PT0.5S``. The longest unit is an hour."""
    minutes, rest = divmod(duration, timedelta(minutes=1))
    hours, minutes = divmod(minutes, 60)
    fraction = f".{rest.microseconds:06}".rstrip("0") if rest.microseconds else ""
    clock = f"{hours}H" if hours else ""
    clock += f"{minutes}M" if minutes else ""
    return f"PT{clock}{rest.seconds}{fraction}S" if rest or not clock else f"PT{clock}"


def format_calendar(unit: str, count: int) -> str:
    """Return ``P3D``, ``P2W``, ``P1M`` or ``P1Y`` for days, weeks, months or years."""
    return f"P{count}{unit[0].upper()}"


def parse_duration(text: str) -> timedelta | dict[str, int]:
    """Return elapsed time for ``PT5M`` or ``5m``, and ``{"months": 1}`` for calendar time.

    A duration with a time part (``P1DT12H``) is elapsed time, where a day has 24 hours. Without
    a time part it is calendar time and has one unit.

    Raises ``InvalidTriggerError`` with field ``"interval"``.
    """
    if (short := short_duration(text)) is not None:
        return short
    cleaned = "".join(text.split()).upper()
    match = _DURATION.fullmatch(cleaned)
    if match is None:
        reason = "it must be an ISO 8601 duration, such as PT5M or P1D, or a short one: 5m"
        raise InvalidTriggerError(f"interval {shorten(text)}: {reason}", field="interval")
    digits = {unit: number for unit, number in match.groupdict().items() if number is not None}
    fraction = digits.pop("fraction", "")
    parts = {unit: int(number) for unit, number in digits.items()}
    if "T" not in cleaned and len(parts) == 1:
        return parts
    reason = _mixed(parts)
    if not reason:
        try:
            return timedelta(**parts, microseconds=int(fraction.ljust(6, "0")))
        except OverflowError:
            reason = "it must not exceed 100 years"
    raise InvalidTriggerError(f"interval {shorten(text)}: {reason}", field="interval")


def _mixed(parts: dict[str, int]) -> str:
    """Return why these units cannot be combined, "" if they can."""
    if parts.keys() & {"hours", "minutes", "seconds"}:
        if not parts.keys() & {"years", "months"}:
            return ""
        return "years and months differ in length; write hours (PT720H) or months alone (P1M)"
    if parts.keys() <= {"years", "months"}:
        return f"one unit only; write P{parts['years'] * 12 + parts['months']}M"
    if parts.keys() <= {"weeks", "days"}:
        return f"one unit only; write P{parts['weeks'] * 7 + parts['days']}D"
    return "one unit only, because months differ in length; use P30D, P1M or a Cron"
