"""The schedules of a group of owners."""

from celery_dynbeat.api import checks
from celery_dynbeat.api.control.alerts import AlertCalls
from celery_dynbeat.api.control.holds import HoldCalls
from celery_dynbeat.api.lists.changes import ChangeCalls
from celery_dynbeat.api.lists.forecast_calls import ForecastCalls
from celery_dynbeat.api.lists.history import RunCalls
from celery_dynbeat.api.lists.schedules import ListCalls
from celery_dynbeat.api.usage import UsageCalls
from celery_dynbeat.common.text import GROUP_END, is_group
from celery_dynbeat.process.context import Context


class GroupSchedules(
    HoldCalls, AlertCalls, ListCalls, RunCalls, ChangeCalls, UsageCalls, ForecastCalls
):
    """The schedules of all owners that begin with the name of a group, such as ``"org:7/"``.

    The calls are the owner's calls that concern several schedules. Like the calls of
    ``OwnerSchedules``, each call accepts ``session=``, and each change accepts ``actor=`` and
    ``reason=``.
    """

    def __init__(self, context: Context, group: str) -> None:
        if not is_group(checks.check_name("group", group)):
            rule = f"must end with {GROUP_END!r}, such as 'org:7/'; call for_owner() for one owner"
            raise checks.invalid("group", group, rule)
        super().__init__(context, group)
        self.group = group
