"""The trigger that the fields kind, rule and time zone mean together."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.api.typed_text import parse_duration, parse_instant
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import load_json, shorten
from celery_dynbeat.triggers import Every, Once, Trigger, parse_trigger
from celery_dynbeat.triggers.base import MAX_COMPOSITE_LENGTH
from celery_dynbeat.triggers.solar import EVENTS
from celery_dynbeat.triggers.text import kind_of
from celery_dynbeat.triggers.zones import load_zone

_SIMPLE_DURATION = re.compile(r"\d+(\.\d+)?\s*(s|m|min|h|d|w)", re.ASCII)


def zone_of(timezone: str, *, owner_zone: str) -> ZoneInfo:
    """Return the zone of times without an offset: the typed zone, or else the owner's zone."""
    return load_zone(timezone or owner_zone)


def detected_kind(text: str) -> str:
    """Return the kind that the first characters of a rule select."""
    if _SIMPLE_DURATION.fullmatch(text[:40]):
        return "every"
    if text.startswith("["):
        return "any_of"
    if text.startswith("{"):
        return "on_business_day" if _has_direction(text) else "excluding"
    return "solar" if text[:40].partition(" ")[0].lower() in EVENTS else kind_of(text)


def _has_direction(text: str) -> bool:
    """Return whether the text is a JSON object with the direction of business days."""
    try:
        data = load_json(text[:MAX_COMPOSITE_LENGTH])
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "direction" in data


def trigger_of(
    kind: str, text: str, *, timezone: str, owner_zone: str, now: Callable[[], datetime]
) -> Trigger:
    """Return the trigger. ``kind`` "" detects the kind. Raises InvalidTriggerError."""
    text = text.strip()
    if not text:
        message = "the rule is empty: pick one, or write one such as '0 9 * * mon-fri' or '5m'"
        raise InvalidTriggerError(message, field="rule")
    kind = kind or detected_kind(text)
    zone = zone_of(timezone, owner_zone=owner_zone)
    if kind == "once" and text[:1].upper() != "P":
        return _once(text, zone=zone, now=now)
    if kind == "every" and text[:1].upper() not in {"P", "R"}:
        text = Every(_duration(text)).spec
    trigger = parse_trigger(kind, text, timezone=timezone or None)
    if timezone and kind != "once":
        _check_zone(trigger, kind, text, timezone)
    return trigger


def _once(text: str, *, zone: ZoneInfo, now: Callable[[], datetime]) -> Trigger:
    try:
        return Once(parse_instant(text).resolve(now=now, zone=zone))
    except OverflowError:
        reason = "it is after the year 9999"
        raise InvalidTriggerError(f"{shorten(text)}: {reason}", field="at") from None
    except InvalidTriggerError:
        raise
    except ValueError as error:
        raise InvalidTriggerError(str(error), field="at") from None


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except InvalidTriggerError:
        raise
    except ValueError as error:
        raise InvalidTriggerError(str(error), field="interval") from None


def _check_zone(trigger: Trigger, kind: str, text: str, timezone: str) -> None:
    """Raise InvalidTriggerError if the rule does not use the zone that was typed."""
    try:
        bare = parse_trigger(kind, text)
    except InvalidTriggerError:
        # A combination that has no fire time without this zone.
        return
    if bare.needs_zone or timezone in (bare.timezone, trigger.timezone):
        return
    if bare.timezone is None:
        reason = "the rule does not depend on a time zone; leave the zone empty"
    else:
        reason = f"the rule names the zone {bare.timezone} itself; leave the zone empty"
    raise InvalidTriggerError(f"time zone {timezone!r}: {reason}", field="timezone")
