"""ScheduleColumns is a plain copy of the columns of a schedule."""

from dataclasses import fields

from sqlalchemy import inspect

from celery_dynbeat.api.columns import ScheduleColumns
from celery_dynbeat.db.models import Schedule


def test_schedule_columns_has_each_column_of_the_model():
    columns = {attribute.key for attribute in inspect(Schedule).column_attrs}

    assert {field.name for field in fields(ScheduleColumns)} == columns
