"""The grouping of the page "Runs" by task and error."""

from datetime import timedelta
from html import unescape

import pytest
from sqlalchemy import insert

from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.db.models import Run

PAGE = "/dynbeat/runs?group=error"
HOSTILE = '"><script>alert(1)</script>\u202e'
HOUR = timedelta(hours=1)


@pytest.fixture
def fail(dynbeat, clock):
    """Return a function that inserts failed runs, an hour before now or at ``at``."""

    def add(*errors, at=None, owner="user:42", name="n", task="t"):
        at = at or clock.now() - HOUR
        rows = [
            {
                "id": new_run_id(at),
                "owner": owner,
                "name": name,
                "task": task,
                "status": "failed",
                "origin": "schedule",
                "fire_at": at,
                "created_at": at,
                "finished_at": at,
                "error": error,
            }
            for error in errors
        ]
        with dynbeat.context.database.engine.begin() as connection:
            connection.execute(insert(Run), rows)
        return [row["id"] for row in rows]

    return add


def links(text, start):
    """Return the URLs of the links that begin with ``start``."""
    return [unescape(each.partition('"')[0]) for each in text.split('href="') if start in each[:80]]


def test_an_error_is_one_row_that_leads_to_its_runs(fail, pages):
    ids = fail("KeyError: 1\nmore", "KeyError: 2") + fail("KeyError: 3", owner="user:7", name="m")
    fail("other", task="u")

    text = pages.get(PAGE).text
    assert text.count("KeyError") == 1
    assert ">3</td>" in text.partition("KeyError")[2].partition("</tr>")[0]
    # The largest group comes first.
    assert links(text, "/dynbeat/run/")[0].rpartition("/")[2] in ids
    runs = next(each for each in links(text, "status=failed") if "task=t" in each)
    assert all(run in pages.get(runs).text for run in ids)


@pytest.mark.parametrize("query", ["worker=w", "q=customer:13", "owner=&name=n", "origin=manual"])
def test_a_filter_that_groups_do_not_have_is_refused(fail, pages, query):
    fail("a")

    answer = pages.get(f"{PAGE}&{query}")
    if answer.location:
        answer = pages.get(answer.location)

    assert answer.status == 400
    assert "Groups of errors cannot be filtered by" in answer.text


def test_names_and_errors_are_escaped(fail, pages):
    fail(HOSTILE, owner=HOSTILE, name=HOSTILE, task=HOSTILE)
    text = pages.get(PAGE).text

    assert "<script>alert" not in text
    assert "\u202e" not in text
