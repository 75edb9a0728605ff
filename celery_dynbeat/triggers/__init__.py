"""Rules that yield fire times. Triggers are values: they compare by content and convert to text."""

from typing import TYPE_CHECKING

from celery_dynbeat.common import lazy_exports
from celery_dynbeat.triggers.base import KINDS, Trigger, is_known
from celery_dynbeat.triggers.parse import parse_trigger

if TYPE_CHECKING:
    from celery_dynbeat.triggers.composite.any_of import AnyOf
    from celery_dynbeat.triggers.composite.excluding import Excluding
    from celery_dynbeat.triggers.cron.trigger import Cron
    from celery_dynbeat.triggers.every import Every
    from celery_dynbeat.triggers.once import Once
    from celery_dynbeat.triggers.rrule.trigger import RRule
    from celery_dynbeat.triggers.solar import Solar

__all__ = [
    "KINDS",
    "AnyOf",
    "Cron",
    "Every",
    "Excluding",
    "Once",
    "RRule",
    "Solar",
    "Trigger",
    "is_known",
    "parse_trigger",
]

#: Most applications use few of these.
_LAZY_EXPORTS = {
    "composite.any_of": ("AnyOf",),
    "composite.excluding": ("Excluding",),
    "cron.trigger": ("Cron",),
    "every": ("Every",),
    "once": ("Once",),
    "rrule.trigger": ("RRule",),
    "solar": ("Solar",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)
