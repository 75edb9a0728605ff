"""The texts with which the form shows a stored schedule.

``parsing`` reads them back. A text without an edit is not read back at all, so values that
only SQL can write, such as a damaged trigger, stay as they are.
"""

from collections.abc import Mapping
from zoneinfo import ZoneInfo

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.flower.editor.fields import ARGUMENT_FIELDS, FIELDS, TABLE
from celery_dynbeat.triggers import Excluding, Once

#: Kinds whose rule is JSON. Their exclusions stay in it.
_COMPOSITES = frozenset({"any_of", "excluding", "on_business_day"})
#: The texts of a new schedule.
EMPTY: Mapping[str, str] = dict.fromkeys(FIELDS, "")


def texts_of(
    info: ScheduleInfo, *, zone: ZoneInfo, hides_arguments: bool = False
) -> Mapping[str, str]:
    """Return the texts of all fields. Instants are on the clock of ``zone``, with their offset."""
    texts = {
        **_rule(info, zone),
        **{name: field.format(field.value_in(info), zone) for name, field in TABLE.items()},
    }
    return {
        field: lines(texts[field])
        for field in FIELDS
        if not (hides_arguments and field in ARGUMENT_FIELDS)
    }


def lines(text: str) -> str:
    """Return a text with the line breaks that a browser does not change."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _rule(info: ScheduleInfo, zone: ZoneInfo) -> Mapping[str, str]:
    given = info.given_trigger
    if given is None:
        stored = info.stored_trigger
        # A row whose rule follows no wall clock has UTC.
        follows_none = info.inherits_timezone or stored["timezone"] == "UTC"
        timezone = "" if follows_none else stored["timezone"]
        texts = {"kind": stored["kind"], "rule": stored["spec"], "timezone": timezone}
        return {**texts, "calendar": ""}
    calendar = ""
    if isinstance(given, Excluding) and _has_only_calendars(given):
        calendar, given = ", ".join(given.calendars), given.trigger
    rule = given.spec
    if isinstance(given, Once) and given.delay is None:
        rule = given.at.astimezone(zone).isoformat()
    texts = {"kind": given.kind, "rule": rule, "timezone": given.timezone or ""}
    return {**texts, "calendar": calendar}


def _has_only_calendars(given: Excluding) -> bool:
    """Return whether the field of the calendars reads these exclusions back."""
    return (
        not given.dates
        and not given.triggers
        and given.timezone == given.trigger.timezone
        and given.trigger.kind not in _COMPOSITES
        and not any("," in name for name in given.calendars)
    )
