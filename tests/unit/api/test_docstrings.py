"""The examples in the docstrings of the calls return what they say."""

import doctest
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery

from celery_dynbeat import Cron, Dynbeat, Every, QuietHours
from celery_dynbeat.api import OwnerSchedules
from celery_dynbeat.testing import FrozenClock

#: docs/reference/python.md says so.
MONDAY_AT_NINE = datetime(2026, 1, 5, 9, tzinfo=UTC)
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def examples():
    found = {}
    for name in dir(OwnerSchedules):
        if not name.startswith("_"):
            (test,) = doctest.DocTestFinder(recurse=False).find(
                getattr(OwnerSchedules, name), name, globs={}
            ) or [None]
            if test is not None and test.examples:
                found[name] = test
    return found


EXAMPLES = examples()


@pytest.fixture
def mine(tmp_path):
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.dynbeat_database_url = f"sqlite:///{tmp_path}/test.sqlite3"
    dynbeat = Dynbeat(app, clock=FrozenClock(MONDAY_AT_NINE))
    mine = dynbeat.schedules.for_owner("user:42")
    mine.create("digest", task="mail.digest", trigger="0 9 * * mon-fri")
    yield mine
    dynbeat.context.database.dispose()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_returns_what_its_docstring_says(name, mine):
    test, report = EXAMPLES[name], []
    test.globs = {"mine": mine, "UTC": UTC, "datetime": datetime, "timedelta": timedelta}
    test.globs |= {"Cron": Cron, "Every": Every, "QuietHours": QuietHours}

    results = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)

    assert results.attempted
    assert not results.failed, "".join(report)


def test_the_calls_that_change_a_schedule_have_examples():
    edits = {"create", "update", "upsert", "pause", "resume", "delete", "skip", "run_now"}
    edits |= {"pause_many", "resume_many", "update_many", "delete_many", "rename"}

    assert edits - set(EXAMPLES) == set()
