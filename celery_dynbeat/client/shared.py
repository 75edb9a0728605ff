"""The calls that an owner and all owners have: each is defined once for both."""

from celery_dynbeat.client.control.alerts import AlertCalls
from celery_dynbeat.client.control.cancelling import CancelCalls
from celery_dynbeat.client.control.holds import HoldCalls
from celery_dynbeat.client.edit.new_rows import CreateManyCalls
from celery_dynbeat.client.lists.changes import ChangeCalls
from celery_dynbeat.client.lists.history import RunCalls
from celery_dynbeat.client.lists.schedules import ListCalls
from celery_dynbeat.client.requests import RequestCalls
from celery_dynbeat.client.reruns import RerunCalls


class SharedCalls(
    CreateManyCalls,
    HoldCalls,
    AlertCalls,
    CancelCalls,
    RequestCalls,
    RerunCalls,
    ListCalls,
    RunCalls,
    ChangeCalls,
):
    """The calls that an owner and all owners have."""
