"""ScheduleColumns is a plain copy of the columns of a schedule."""

from sqlalchemy import inspect

from celery_dynbeat.api.timing import ScheduleColumns
from celery_dynbeat.db.models import Schedule
from tests.support.applications import START

GIVEN = {
    "owner": "",
    "name": "n",
    "task": "t",
    "trigger_kind": "every",
    "trigger_spec": "PT1M",
    "timezone": "UTC",
    "created_at": START,
    "updated_at": START,
}


def test_schedule_columns_has_each_column_of_the_model():
    columns = {attribute.key for attribute in inspect(Schedule).column_attrs}

    assert ScheduleColumns(**GIVEN).insert_values().keys() == columns - {"id"}
