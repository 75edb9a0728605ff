"""The calls for one owner that also exist for all owners. Each is defined once for both."""

from celery_dynbeat.api.control.cancelling import CancelCalls
from celery_dynbeat.api.control.holds import HoldCalls
from celery_dynbeat.api.edit.bulk import BulkCalls
from celery_dynbeat.api.edit.new_rows import CreateManyCalls
from celery_dynbeat.api.reading import ReadCalls
from celery_dynbeat.api.reruns import RerunCalls


class SharedCalls(CreateManyCalls, BulkCalls, HoldCalls, CancelCalls, RerunCalls, ReadCalls):
    """The calls that exist both for one owner and for all owners."""
