"""The values that the API returns. They belong to no session. ``Info.to_dict`` gives their JSON."""

from typing import TYPE_CHECKING

from celery_dynbeat.common import lazy_exports

if TYPE_CHECKING:
    from celery_dynbeat.api.results.alert import AlertInfo, AlertTargetInfo
    from celery_dynbeat.api.results.base import Info
    from celery_dynbeat.api.results.bulk import BulkFailure, BulkResult
    from celery_dynbeat.api.results.calendar import CalendarInfo
    from celery_dynbeat.api.results.change import ChangeInfo
    from celery_dynbeat.api.results.fire_time import (
        CalendarEffect,
        FireTime,
        Preview,
        PreviewedFireTime,
    )
    from celery_dynbeat.api.results.forecast import (
        ForecastInfo,
        ForecastPeak,
        ForecastRow,
        OwnerRuns,
    )
    from celery_dynbeat.api.results.hold import HoldInfo
    from celery_dynbeat.api.results.page import BoundedCount, Page
    from celery_dynbeat.api.results.quiet_hours import QuietHoursInfo
    from celery_dynbeat.api.results.request import RequestInfo
    from celery_dynbeat.api.results.run import RunInfo
    from celery_dynbeat.api.results.run_arguments import RunArguments
    from celery_dynbeat.api.results.schedule import ScheduleInfo
    from celery_dynbeat.api.results.usage import LimitUsage, Usage

__all__ = [
    "AlertInfo",
    "AlertTargetInfo",
    "BoundedCount",
    "BulkFailure",
    "BulkResult",
    "CalendarEffect",
    "CalendarInfo",
    "ChangeInfo",
    "FireTime",
    "ForecastInfo",
    "ForecastPeak",
    "ForecastRow",
    "HoldInfo",
    "Info",
    "LimitUsage",
    "OwnerRuns",
    "Page",
    "Preview",
    "PreviewedFireTime",
    "QuietHoursInfo",
    "RequestInfo",
    "RunArguments",
    "RunInfo",
    "ScheduleInfo",
    "Usage",
]

#: A beat that writes beat_schedule needs none but ``Info``.
_LAZY_EXPORTS = {
    "alert": ("AlertInfo", "AlertTargetInfo"),
    "base": ("Info",),
    "bulk": ("BulkFailure", "BulkResult"),
    "calendar": ("CalendarInfo",),
    "change": ("ChangeInfo",),
    "fire_time": ("CalendarEffect", "FireTime", "Preview", "PreviewedFireTime"),
    "forecast": ("ForecastInfo", "ForecastPeak", "ForecastRow", "OwnerRuns"),
    "hold": ("HoldInfo",),
    "page": ("BoundedCount", "Page"),
    "quiet_hours": ("QuietHoursInfo",),
    "request": ("RequestInfo",),
    "run": ("RunInfo",),
    "run_arguments": ("RunArguments",),
    "schedule": ("ScheduleInfo",),
    "usage": ("LimitUsage", "Usage"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)
