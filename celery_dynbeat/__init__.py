"""Database-backed dynamic schedules for Celery."""

from typing import TYPE_CHECKING

from celery_dynbeat.common.errors import (
    BackfillNotFoundError,
    ConfigurationError,
    DispatchError,
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    SchemaError,
    StaleScheduleError,
)
from celery_dynbeat.common.lazy import lazy_exports

if TYPE_CHECKING:
    from celery_dynbeat.beat.scheduler import DatabaseScheduler
    from celery_dynbeat.client import BackfillInfo, Dynbeat, Page, RunInfo, ScheduleInfo
    from celery_dynbeat.triggers import (
        AnyOf,
        Cron,
        Every,
        Excluding,
        Once,
        RRule,
        Solar,
        Trigger,
        parse_trigger,
        trigger_from_json,
        trigger_from_text,
    )

__all__ = [
    "AnyOf",
    "BackfillInfo",
    "BackfillNotFoundError",
    "ConfigurationError",
    "Cron",
    "DatabaseScheduler",
    "DispatchError",
    "Dynbeat",
    "DynbeatError",
    "Every",
    "Excluding",
    "InvalidScheduleError",
    "InvalidTriggerError",
    "Once",
    "OwnerLimitError",
    "Page",
    "RRule",
    "RunInfo",
    "ScheduleExistsError",
    "ScheduleInfo",
    "ScheduleNotFoundError",
    "SchemaError",
    "Solar",
    "StaleScheduleError",
    "Trigger",
    "parse_trigger",
    "trigger_from_json",
    "trigger_from_text",
]

_LAZY_EXPORTS = {
    "client": ("BackfillInfo", "Dynbeat", "Page", "RunInfo", "ScheduleInfo"),
    "beat.scheduler": ("DatabaseScheduler",),
    "triggers": (
        *("AnyOf", "Cron", "Every", "Excluding", "Once", "RRule", "Solar"),
        *("Trigger", "parse_trigger", "trigger_from_json", "trigger_from_text"),
    ),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)
