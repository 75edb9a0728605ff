"""Database-backed dynamic schedules for Celery.

The names are imported at their first use (PEP 562), because Celery loads the command line of this
package, and pytest its plugin, in each project that installs it.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_dynbeat.common.errors import (
    ConfigurationError,
    ConflictError,
    DynbeatError,
    InvalidArgumentError,
    InvalidTriggerError,
    LimitError,
    NotFoundError,
    ScheduleExistsError,
    TransactionRolledBackError,
)

if TYPE_CHECKING:
    from celery_dynbeat.api import Dynbeat
    from celery_dynbeat.api.aio import AsyncDynbeat as AsyncDynbeat
    from celery_dynbeat.api.results import (
        AlertInfo,
        BatchInfo,
        BulkResult,
        CalendarInfo,
        ChangeInfo,
        Explanation,
        FireTime,
        ForecastInfo,
        HoldInfo,
        Page,
        Preview,
        RunInfo,
        ScheduleInfo,
        Usage,
    )
    from celery_dynbeat.beat.scheduler import DatabaseScheduler
    from celery_dynbeat.common.infos import BoundedCount
    from celery_dynbeat.common.owner_limits import OwnerLimits
    from celery_dynbeat.common.quiet_rule import QuietHours
    from celery_dynbeat.common.retry import Retry
    from celery_dynbeat.triggers import (
        AnyOf,
        CalendarDays,
        Cron,
        Every,
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
    "BoundedCount",
    "BulkResult",
    "CalendarDays",
    "CalendarInfo",
    "ChangeInfo",
    "ConfigurationError",
    "ConflictError",
    "Cron",
    "CurrentRun",
    "DatabaseScheduler",
    "Dynbeat",
    "DynbeatError",
    "Every",
    "Explanation",
    "FireTime",
    "ForecastInfo",
    "HoldInfo",
    "InvalidArgumentError",
    "InvalidTriggerError",
    "LimitError",
    "NotFoundError",
    "Once",
    "OwnerLimits",
    "Page",
    "Preview",
    "QuietHours",
    "RRule",
    "Retry",
    "RunInfo",
    "ScheduleExistsError",
    "ScheduleInfo",
    "SkipRun",
    "Solar",
    "TransactionRolledBackError",
    "Trigger",
    "Usage",
    "current_run",
    "note",
]

_LAZY_EXPORTS = {
    "api": ("Dynbeat",),
    "api.aio": ("AsyncDynbeat",),
    "api.results": (
        *("AlertInfo", "BatchInfo", "BulkResult", "CalendarInfo"),
        *("ChangeInfo", "Explanation", "FireTime", "ForecastInfo", "HoldInfo", "Page"),
        *("Preview", "RunInfo", "ScheduleInfo", "Usage"),
    ),
    "common.infos": ("BoundedCount",),
    "common.owner_limits": ("OwnerLimits",),
    "common.retry": ("Retry",),
    "common.quiet_rule": ("QuietHours",),
    "beat.scheduler": ("DatabaseScheduler",),
    "triggers": (
        *("AnyOf", "CalendarDays", "Cron", "Every", "Once"),
        *("RRule", "Solar", "Trigger"),
    ),
    "worker.current_run": ("CurrentRun", "current_run", "note"),
    "worker": ("SkipRun",),
}

_MODULES = {name: module for module, names in _LAZY_EXPORTS.items() for name in names}
_CHILDREN = {module.partition(".")[0]: module for module in _LAZY_EXPORTS}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a name of ``_LAZY_EXPORTS``, or a subpackage that defines some of them."""
        if name in _CHILDREN:
            import_module(f"{__name__}.{_CHILDREN[name]}")
            return sys.modules[f"{__name__}.{name}"]
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        # Python calls __getattr__ only for names that are not set.
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_CHILDREN, *_MODULES})
