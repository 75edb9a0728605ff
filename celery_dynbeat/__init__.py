"""Database-backed dynamic schedules for Celery."""

from celery_dynbeat.client import BackfillInfo, Dynbeat, Page, RunInfo, ScheduleInfo
from celery_dynbeat.errors import (
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
from celery_dynbeat.scheduler import DatabaseScheduler
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
]
