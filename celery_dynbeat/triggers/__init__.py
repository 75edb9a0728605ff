"""Rules that yield fire times: values that compare by content and go to text and back."""

from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.cron import Cron
from celery_dynbeat.triggers.every import Every
from celery_dynbeat.triggers.once import Once
from celery_dynbeat.triggers.parse import parse_trigger, trigger_from_json

__all__ = ["Cron", "Every", "Once", "Trigger", "parse_trigger", "trigger_from_json"]
