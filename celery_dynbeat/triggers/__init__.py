"""Rules that yield fire times.

Triggers are values, which compare by content and can be converted to text. ``base`` reads them from
rows and from JSON, and ``text`` reads them from text.
"""

# ``Trigger.from_text`` needs the module. It imports all kinds, so ``base`` cannot import it.
from celery_dynbeat.triggers import text as _text  # noqa: F401 - loaded with the package
from celery_dynbeat.triggers.base import (
    CLASSES,
    Trigger,
    is_known,
    parse_trigger,
    trigger_from_json,
)
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
    "trigger_from_json",
]

_KINDS = (Cron, Every, Once, RRule, Solar, AnyOf, Excluding, OnBusinessDay)
CLASSES.update({each.kind: each for each in _KINDS})
#: The kinds that this version can read.
KINDS = tuple(CLASSES)
