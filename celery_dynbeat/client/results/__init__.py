"""The values that the API returns. They belong to no session. ``Info.to_dict`` gives their JSON."""

from celery_dynbeat.client.results.alert import AlertInfo, AlertTargetInfo
from celery_dynbeat.client.results.base import Info
from celery_dynbeat.client.results.change import ChangeInfo
from celery_dynbeat.client.results.fire_time import FireTime, Preview, PreviewedFireTime
from celery_dynbeat.client.results.hold import HoldInfo
from celery_dynbeat.client.results.page import BoundedCount, Page
from celery_dynbeat.client.results.request import RequestInfo
from celery_dynbeat.client.results.run import RunInfo
from celery_dynbeat.client.results.schedule import ScheduleInfo

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
