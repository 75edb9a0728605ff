"""Database-backed dynamic schedules for Celery."""

from celery_dynbeat.client import Dynbeat, Page, RunInfo, ScheduleInfo
from celery_dynbeat.errors import (
    ConfigurationError,
    DispatchError,
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    SchemaError,
    StaleScheduleError,
)
from celery_dynbeat.scheduler import DatabaseScheduler
from celery_dynbeat.triggers import Cron, Every, Once, Trigger

__all__ = [
    "ConfigurationError",
    "Cron",
    "DatabaseScheduler",
    "DispatchError",
    "Dynbeat",
    "DynbeatError",
    "Every",
    "InvalidScheduleError",
    "InvalidTriggerError",
    "Once",
    "Page",
    "RunInfo",
    "ScheduleExistsError",
    "ScheduleInfo",
    "ScheduleNotFoundError",
    "SchemaError",
    "StaleScheduleError",
    "Trigger",
]
