"""Rules that yield fire times: values that compare by content and go to text and back."""

from typing import TYPE_CHECKING

from celery_dynbeat.late import exports
from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.cron import Cron
from celery_dynbeat.triggers.every import Every
from celery_dynbeat.triggers.once import Once
from celery_dynbeat.triggers.parse import (
    KINDS,
    is_known,
    parse_trigger,
    trigger_from_json,
    trigger_from_text,
)

if TYPE_CHECKING:
    from celery_dynbeat.triggers.any_of import AnyOf
    from celery_dynbeat.triggers.excluding import Excluding
    from celery_dynbeat.triggers.rrule import RRule
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
    "trigger_from_json",
    "trigger_from_text",
]

#: What most applications have none of.
_WHERE = {
    "any_of": ("AnyOf",),
    "excluding": ("Excluding",),
    "rrule": ("RRule",),
    "solar": ("Solar",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = exports(__name__, _WHERE)
