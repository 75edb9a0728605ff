"""Database-backed dynamic schedules for Celery."""

from typing import TYPE_CHECKING

from celery_dynbeat.common import lazy_exports
from celery_dynbeat.common.errors import (
    BatchNotFoundError,
    CalendarInUseError,
    CalendarNotFoundError,
    ConfigurationError,
    DispatchError,
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    RunNotFoundError,
    ScheduleExistsError,
    ScheduleHeldError,
    ScheduleNotFoundError,
    SchemaError,
    StaleScheduleError,
    TransactionRolledBackError,
    UnresolvedCalendarError,
)

if TYPE_CHECKING:
    from celery_dynbeat.api import (
        AlertInfo,
        BatchInfo,
        BatchResult,
        BoundedCount,
        BulkFailure,
        BulkResult,
        CalendarInfo,
        ChangeFilter,
        ChangeInfo,
        Dynbeat,
        Explanation,
        FireTime,
        ForecastInfo,
        ForecastRow,
        HoldInfo,
        LimitUsage,
        Page,
        Preview,
        PreviewedFireTime,
        QuietHoursInfo,
        RunFilter,
        RunInfo,
        ScheduleFilter,
        ScheduleInfo,
        Usage,
    )
    from celery_dynbeat.api.aio import AsyncDynbeat as AsyncDynbeat
    from celery_dynbeat.beat.scheduler import DatabaseScheduler
    from celery_dynbeat.common.owner_limits import OwnerLimits
    from celery_dynbeat.common.quiet_rule import QuietHours
    from celery_dynbeat.common.retry import Retry
    from celery_dynbeat.triggers import (
        AnyOf,
        CalendarDays,
        Cron,
        Every,
        Excluding,
        OnBusinessDay,
        Once,
        RRule,
        Solar,
        Trigger,
    )
    from celery_dynbeat.worker import SkipRun
    from celery_dynbeat.worker.current_run import CurrentRun, current_run, note

__version__ = "0.1.0"

# AsyncDynbeat is missing here: `from celery_dynbeat import *` would import what only asyncio needs.
__all__ = [
    "AlertInfo",
    "AnyOf",
    "BatchInfo",
    "BatchNotFoundError",
    "BatchResult",
    "BoundedCount",
    "BulkFailure",
    "BulkResult",
    "CalendarDays",
    "CalendarInUseError",
    "CalendarInfo",
    "CalendarNotFoundError",
    "ChangeFilter",
    "ChangeInfo",
    "ConfigurationError",
    "Cron",
    "CurrentRun",
    "DatabaseScheduler",
    "DispatchError",
    "Dynbeat",
    "DynbeatError",
    "Every",
    "Excluding",
    "Explanation",
    "FireTime",
    "ForecastInfo",
    "ForecastRow",
    "HoldInfo",
    "InvalidScheduleError",
    "InvalidTriggerError",
    "LimitUsage",
    "OnBusinessDay",
    "Once",
    "OwnerLimitError",
    "OwnerLimits",
    "Page",
    "Preview",
    "PreviewedFireTime",
    "QuietHours",
    "QuietHoursInfo",
    "RRule",
    "Retry",
    "RunFilter",
    "RunInfo",
    "RunNotFoundError",
    "ScheduleExistsError",
    "ScheduleFilter",
    "ScheduleHeldError",
    "ScheduleInfo",
    "ScheduleNotFoundError",
    "SchemaError",
    "SkipRun",
    "Solar",
    "StaleScheduleError",
    "TransactionRolledBackError",
    "Trigger",
    "UnresolvedCalendarError",
    "Usage",
    "current_run",
    "note",
]

_LAZY_EXPORTS = {
    "api": (
        *("AlertInfo", "BatchInfo", "BatchResult", "BoundedCount", "BulkFailure", "BulkResult"),
        *(
            "CalendarInfo",
            "ChangeFilter",
            "ChangeInfo",
            "Dynbeat",
            "FireTime",
            "HoldInfo",
            "Page",
        ),
        *("Explanation", "ForecastInfo", "ForecastRow"),
        *("Preview", "PreviewedFireTime", "QuietHoursInfo"),
        *(
            "LimitUsage",
            "RunFilter",
            "RunInfo",
            "ScheduleFilter",
            "ScheduleInfo",
            "Usage",
        ),
    ),
    "api.aio": ("AsyncDynbeat",),
    "common.owner_limits": ("OwnerLimits",),
    "common.retry": ("Retry",),
    "common.quiet_rule": ("QuietHours",),
    "beat.scheduler": ("DatabaseScheduler",),
    "triggers": (
        *("AnyOf", "CalendarDays", "Cron", "Every", "Excluding", "OnBusinessDay", "Once"),
        *("RRule", "Solar", "Trigger"),
    ),
    "worker.current_run": ("CurrentRun", "current_run", "note"),
    "worker": ("SkipRun",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)
