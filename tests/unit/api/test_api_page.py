"""docs/reference/api.md has each call and each field of the API."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from celery_dynbeat import (
    BatchInfo,
    BulkResult,
    CalendarInfo,
    ChangeInfo,
    Explanation,
    FireTime,
    ForecastInfo,
    HoldInfo,
    RunInfo,
    ScheduleInfo,
)
from celery_dynbeat.api import Calendars, OwnerSchedules, Schedules
from celery_dynbeat.api.results import BulkFailure, ForecastRow

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "api.md").read_text()


def public(kind):
    return [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]


@pytest.mark.parametrize("kind", [OwnerSchedules, Schedules, Calendars])
def test_the_page_has_each_call(kind):
    missing = [name for name in public(kind) if f"`{name}(" not in PAGE and f"`{name}`" not in PAGE]

    assert missing == []


@pytest.mark.parametrize(
    "kind",
    [
        *(Explanation, ScheduleInfo, RunInfo, ChangeInfo, FireTime, CalendarInfo),
        *(ForecastInfo, ForecastRow),
        *(HoldInfo, BatchInfo, BulkResult, BulkFailure),
    ],
)
def test_the_page_has_each_attribute(kind):
    missing = [each.name for each in dataclasses.fields(kind) if f"`{each.name}`" not in PAGE]

    assert missing == []
