"""What is written by hand for static types equals the table of fields, and so does the page."""

import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from celery_dynbeat.api.fields import FIELDS, Changes, Fields, NewFields
from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.db.models import SCHEDULES

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "generate_fields.py"))
REQUIRED = {name for name, field in FIELDS.items() if field.is_required}
COLUMNS = {name for name, field in FIELDS.items() if not field.in_options}
#: What a call can set and another mechanism checks.
PAUSE = {"enabled"}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Fields, FIELDS.keys() - REQUIRED),
        (NewFields, (FIELDS.keys() - REQUIRED) | PAUSE),
        (Changes, FIELDS.keys() | {"trigger"}),
    ],
)
def test_the_arguments_of_the_calls_are_the_fields(kind, names):
    assert kind.__optional_keys__ == names


def test_each_field_is_a_column_and_an_attribute_of_the_result():
    assert set(SCHEDULES.columns.keys()) >= COLUMNS
    assert {each.name for each in fields(ScheduleInfo)} >= COLUMNS


def test_the_page_is_written_by_make_docs():
    assert SCRIPT["PAGE"].read_text() == SCRIPT["page"](), "run `make docs`"
