"""The examples in the docstrings of the triggers are correct."""

import doctest
from datetime import UTC, date, datetime, timedelta

import pytest

import celery_dynbeat
from celery_dynbeat import triggers

TRIGGERS = ["AnyOf", "Cron", "Every", "Excluding", "OnBusinessDay", "Once", "RRule", "Solar"]
#: The names that an example uses without an import.
NAMES = {
    name: getattr(celery_dynbeat, name)
    for name in [*TRIGGERS, "CalendarDays"]
    if name not in {"Excluding", "OnBusinessDay"}
}
TIMES = {"UTC": UTC, "date": date, "datetime": datetime, "timedelta": timedelta}


@pytest.mark.parametrize("name", TRIGGERS)
def test_an_example_returns_what_its_docstring_says(name):
    trigger = getattr(triggers, name)
    [example] = doctest.DocTestFinder(recurse=False).find(trigger, name, globs=NAMES | TIMES)
    report: list[str] = []

    results = doctest.DocTestRunner().run(example, out=report.append)

    assert results.attempted
    assert not results.failed, "".join(report)
