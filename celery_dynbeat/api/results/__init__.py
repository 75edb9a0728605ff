"""The values that the API returns. They belong to no session. ``Info.to_dict`` gives their JSON."""

from celery_dynbeat.api.results.alert import AlertInfo, AlertTargetInfo
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.api.results.change import ChangeInfo
from celery_dynbeat.api.results.fire_time import FireTime, Preview, PreviewedFireTime
from celery_dynbeat.api.results.hold import HoldInfo
from celery_dynbeat.api.results.page import BoundedCount, Page
from celery_dynbeat.api.results.request import RequestInfo
from celery_dynbeat.api.results.run import RunInfo
from celery_dynbeat.api.results.schedule import ScheduleInfo

__all__ = [
    "AlertInfo",
    "AlertTargetInfo",
    "BoundedCount",
    "ChangeInfo",
    "FireTime",
    "HoldInfo",
    "Info",
    "Page",
    "Preview",
    "PreviewedFireTime",
    "RequestInfo",
    "RunInfo",
    "ScheduleInfo",
]
