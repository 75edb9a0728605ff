"""Database-backed dynamic schedules for Celery."""

from typing import TYPE_CHECKING

from celery_dynbeat.common import lazy_exports
from celery_dynbeat.common.errors import (
    AlertNotFoundError,
    ChangeNotFoundError,
    ConfigurationError,
    DispatchError,
    DynbeatError,
    HeldByOthersError,
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    RequestNotFoundError,
    RunNotFoundError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    SchemaError,
    StaleScheduleError,
    TransactionRolledBackError,
)

if TYPE_CHECKING:
    from celery_dynbeat.api import (
        AlertInfo,
        AlertTargetInfo,
        BoundedCount,
        BulkFailure,
        BulkResult,
        ChangeFilter,
        ChangeInfo,
        Dynbeat,
        FireTime,
        ForecastInfo,
        ForecastPeak,
        ForecastRow,
        HoldInfo,
        LimitUsage,
        OwnerRuns,
        Page,
        Preview,
        PreviewedFireTime,
        QuietHoursInfo,
        RequestFilter,
        RequestInfo,
        RunArguments,
        RunFilter,
        RunInfo,
        ScheduleFilter,
        ScheduleInfo,
        Usage,
    )
    from celery_dynbeat.api.aio import AsyncDynbeat as AsyncDynbeat
    from celery_dynbeat.beat.scheduler import DatabaseScheduler
    from celery_dynbeat.common.alert_rules import AlertRules
    from celery_dynbeat.common.owner_limits import OwnerLimits
    from celery_dynbeat.common.retry import Retry
    from celery_dynbeat.planning.quiet_hours import QuietHours
    from celery_dynbeat.process.logs.formatter import JsonFormatter
    from celery_dynbeat.triggers import (
        AnyOf,
        Cron,
        Every,
        Excluding,
        Once,
        RRule,
        Solar,
        Trigger,
    )
    from celery_dynbeat.worker import SkipRun
    from celery_dynbeat.worker.current_run import CurrentRun, current_run, note

__version__ = "0.1.0"

# Without AsyncDynbeat: `from celery_dynbeat import *` reads each name, and this one needs greenlet.
__all__ = [
    "AlertInfo",
    "AlertNotFoundError",
    "AlertRules",
    "AlertTargetInfo",
    "AnyOf",
    "BoundedCount",
    "BulkFailure",
    "BulkResult",
    "ChangeFilter",
    "ChangeInfo",
    "ChangeNotFoundError",
    "ConfigurationError",
    "Cron",
    "CurrentRun",
    "DatabaseScheduler",
    "DispatchError",
    "Dynbeat",
    "DynbeatError",
    "Every",
    "Excluding",
    "FireTime",
    "ForecastInfo",
    "ForecastPeak",
    "ForecastRow",
    "HeldByOthersError",
    "HoldInfo",
    "InvalidScheduleError",
    "InvalidTriggerError",
    "JsonFormatter",
    "LimitUsage",
    "Once",
    "OwnerLimitError",
    "OwnerLimits",
    "OwnerRuns",
    "Page",
    "Preview",
    "PreviewedFireTime",
    "QuietHours",
    "QuietHoursInfo",
    "RRule",
    "RequestFilter",
    "RequestInfo",
    "RequestNotFoundError",
    "Retry",
    "RunArguments",
    "RunFilter",
    "RunInfo",
    "RunNotFoundError",
    "ScheduleExistsError",
    "ScheduleFilter",
    "ScheduleInfo",
    "ScheduleNotFoundError",
    "SchemaError",
    "SkipRun",
    "Solar",
    "StaleScheduleError",
    "TransactionRolledBackError",
    "Trigger",
    "Usage",
    "current_run",
    "note",
]

_LAZY_EXPORTS = {
    "api": (
        *("AlertInfo", "AlertTargetInfo", "BoundedCount", "BulkFailure", "BulkResult"),
        *("ChangeFilter", "ChangeInfo", "Dynbeat", "FireTime", "HoldInfo", "Page"),
        *("ForecastInfo", "ForecastPeak", "ForecastRow", "OwnerRuns"),
        *("Preview", "PreviewedFireTime", "QuietHoursInfo", "RequestFilter", "RequestInfo"),
        *(
            "LimitUsage",
            "RunArguments",
            "RunFilter",
            "RunInfo",
            "ScheduleFilter",
            "ScheduleInfo",
            "Usage",
        ),
    ),
    "api.aio": ("AsyncDynbeat",),
    "common.alert_rules": ("AlertRules",),
    "common.owner_limits": ("OwnerLimits",),
    "common.retry": ("Retry",),
    "planning.quiet_hours": ("QuietHours",),
    "beat.scheduler": ("DatabaseScheduler",),
    "triggers": ("AnyOf", "Cron", "Every", "Excluding", "Once", "RRule", "Solar", "Trigger"),
    "process.logs.formatter": ("JsonFormatter",),
    "worker.current_run": ("CurrentRun", "current_run", "note"),
    "worker": ("SkipRun",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)
