"""The trigger that the fields kind, rule and time zone mean together."""

from collections.abc import Callable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.api.typed_text import parse_duration, parse_instant
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers import Every, Once, Trigger, parse_trigger
from celery_dynbeat.triggers.zones import load_zone


def zone_of(timezone: str, *, owner_zone: str) -> ZoneInfo:
    """Return the zone of times without an offset: the typed zone, or else the owner's zone."""
    return load_zone(timezone or owner_zone)


def trigger_of(
    kind: str, text: str, *, timezone: str, owner_zone: str, now: Callable[[], datetime]
) -> Trigger:
    """Return the trigger. For ``kind`` "", the rule is its text. Raises InvalidTriggerError."""
    text = text.strip()
    if not text:
        message = "the rule is empty: pick one, or write one such as '0 9 * * mon-fri' or '5m'"
        raise InvalidTriggerError(message, field="rule")
    if not kind:
        return _from_text(text, timezone=timezone, owner_zone=owner_zone)
    zone = zone_of(timezone, owner_zone=owner_zone)
    if kind == "once" and text[:1].upper() != "P":
        return _once(text, zone=zone, now=now)
    if kind == "every" and text[:1].upper() not in {"P", "R"}:
        text = Every(_duration(text)).spec
    trigger = parse_trigger(kind, text, timezone=timezone or None)
    if timezone and kind != "once":
        _check_zone(trigger, kind, text, timezone)
    return trigger


def _from_text(text: str, *, timezone: str, owner_zone: str) -> Trigger:
    trigger = Trigger.from_text(text, timezone=timezone or owner_zone)
    if not timezone or trigger.kind == "once":
        return trigger
    if not trigger.needs_zone and trigger.timezone != timezone:
        raise _unused_zone(timezone, trigger)
    return trigger.in_zone(zone_of(timezone, owner_zone=owner_zone).key)


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
    raise _unused_zone(timezone, bare)


def _unused_zone(timezone: str, bare: Trigger) -> InvalidTriggerError:
    if bare.timezone is None:
        reason = "the rule does not depend on a time zone; leave the zone empty"
    else:
        reason = f"the rule names the zone {bare.timezone} itself; leave the zone empty"
    return InvalidTriggerError(f"time zone {timezone!r}: {reason}", field="timezone")
