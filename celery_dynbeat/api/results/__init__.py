"""The values that the API returns. They belong to no session. ``Info.to_dict`` gives their JSON."""

from typing import TYPE_CHECKING

from celery_dynbeat.common import lazy_exports

if TYPE_CHECKING:
    from celery_dynbeat.api.results.alert import AlertInfo
    from celery_dynbeat.api.results.base import Info
    from celery_dynbeat.api.results.batch import BatchInfo, BatchResult
    from celery_dynbeat.api.results.bulk import BulkFailure, BulkResult
    from celery_dynbeat.api.results.calendar import CalendarInfo
    from celery_dynbeat.api.results.change import ChangeInfo
    from celery_dynbeat.api.results.explanation import Explanation
    from celery_dynbeat.api.results.fire_time import (
        FireTime,
        Preview,
        PreviewedFireTime,
    )
    from celery_dynbeat.api.results.forecast import (
        ForecastInfo,
        ForecastRow,
    )
    from celery_dynbeat.api.results.hold import HoldInfo
    from celery_dynbeat.api.results.page import BoundedCount, Page
    from celery_dynbeat.api.results.quiet_hours import QuietHoursInfo
    from celery_dynbeat.api.results.run import RunInfo
    from celery_dynbeat.api.results.schedule import ScheduleInfo
    from celery_dynbeat.api.results.usage import LimitUsage, Usage, WaitingOwner

__all__ = [
    "AlertInfo",
    "BatchInfo",
    "BatchResult",
    "BoundedCount",
    "BulkFailure",
    "BulkResult",
    "CalendarInfo",
    "ChangeInfo",
    "Explanation",
    "FireTime",
    "ForecastInfo",
    "ForecastRow",
    "HoldInfo",
    "Info",
    "LimitUsage",
    "Page",
    "Preview",
    "PreviewedFireTime",
    "QuietHoursInfo",
    "RunInfo",
    "ScheduleInfo",
    "Usage",
    "WaitingOwner",
]

#: A beat that writes beat_schedule needs none but ``Info``.
_LAZY_EXPORTS = {
    "alert": ("AlertInfo",),
    "base": ("Info",),
    "batch": ("BatchInfo", "BatchResult"),
    "bulk": ("BulkFailure", "BulkResult"),
    "calendar": ("CalendarInfo",),
    "change": ("ChangeInfo",),
    "explanation": ("Explanation",),
    "fire_time": ("FireTime", "Preview", "PreviewedFireTime"),
    "forecast": ("ForecastInfo", "ForecastRow"),
    "hold": ("HoldInfo",),
    "page": ("BoundedCount", "Page"),
    "quiet_hours": ("QuietHoursInfo",),
    "run": ("RunInfo",),
    "schedule": ("ScheduleInfo",),
    "usage": ("LimitUsage", "Usage", "WaitingOwner"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)
