"""The values that the API returns. They belong to no session. ``Info.to_dict`` gives their JSON."""

from celery_dynbeat.client.views.alert import AlertInfo, AlertTargetInfo
from celery_dynbeat.client.views.base import Info
from celery_dynbeat.client.views.change import ChangeInfo
from celery_dynbeat.client.views.count import BoundedCount
from celery_dynbeat.client.views.fire_time import FireTime
from celery_dynbeat.client.views.hold import HoldInfo
from celery_dynbeat.client.views.page import ChangePage, ItemPage, Page, RequestPage, RunPage
from celery_dynbeat.client.views.preview import Preview, PreviewedFireTime
from celery_dynbeat.client.views.request import RequestInfo
from celery_dynbeat.client.views.run import RunInfo
from celery_dynbeat.client.views.schedule import ScheduleInfo

__all__ = [
    "AlertInfo",
    "AlertTargetInfo",
    "BoundedCount",
    "ChangeInfo",
    "ChangePage",
    "FireTime",
    "HoldInfo",
    "Info",
    "ItemPage",
    "Page",
    "Preview",
    "PreviewedFireTime",
    "RequestInfo",
    "RequestPage",
    "RunInfo",
    "RunPage",
    "ScheduleInfo",
]
