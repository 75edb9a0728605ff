"""The calls for one owner that also exist for all owners. Each is defined once for both."""

from celery_dynbeat.api.batches import BatchCalls
from celery_dynbeat.api.control.alerts import AlertCalls
from celery_dynbeat.api.control.cancelling import CancelCalls
from celery_dynbeat.api.control.holds import HoldCalls
from celery_dynbeat.api.edit.bulk import BulkCalls
from celery_dynbeat.api.edit.new_rows import CreateManyCalls
from celery_dynbeat.api.lists.changes import ChangeCalls
from celery_dynbeat.api.lists.explaining import ExplainCalls
from celery_dynbeat.api.lists.forecast_calls import ForecastCalls
from celery_dynbeat.api.lists.history import RunCalls
from celery_dynbeat.api.lists.schedules import ListCalls
from celery_dynbeat.api.reruns import RerunCalls
from celery_dynbeat.api.usage import UsageCalls


class SharedCalls(
    CreateManyCalls,
    BulkCalls,
    HoldCalls,
    AlertCalls,
    CancelCalls,
    BatchCalls,
    RerunCalls,
    ListCalls,
    RunCalls,
    ChangeCalls,
    UsageCalls,
    ForecastCalls,
    ExplainCalls,
):
    """The calls that exist both for one owner and for all owners."""
