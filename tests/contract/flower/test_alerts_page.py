"""The page "Alerts" lists what is open and what has ended."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Alert
from tests.support.applications import MINUTELY, START

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def add_alert(dynbeat, mine):
    def add(name, *, kind="failing", cause="KeyError: 'x'", recovered_at=None):
        schedule = mine.create(name, task="t", trigger=MINUTELY)
        with Session(dynbeat.context.database.engine) as session, session.begin():
            session.add(
                Alert(
                    schedule_id=schedule.id,
                    owner=mine.owner,
                    name=name,
                    task="t",
                    kind=kind,
                    opened_at=START,
                    cause=cause,
                    recovered_at=recovered_at,
                )
            )

    return add


def test_alerts_of_one_error_are_one_row(add_alert, pages):
    for number in range(7):
        add_alert(f"n{number}", cause=f"KeyError: {number}")
    add_alert("other", cause="ValueError: y")

    text = pages.get("/dynbeat/alerts").text

    assert text.count("db-alert-detail") == 2
    assert "and 2 more" in text
    assert "8 open" in text
    assert "read the error and the traceback of the run" in text


def test_the_page_shows_what_has_ended(add_alert, pages, clock):
    clock.advance(timedelta(minutes=5))
    add_alert("over", recovered_at=clock.now())

    text = pages.get("/dynbeat/alerts").text

    assert "No alerts are open." in text or "Alerts are off." in text
    assert "over" in text


def test_hostile_texts_are_escaped(add_alert, pages):
    add_alert(HOSTILE, cause=HOSTILE)

    assert HOSTILE not in pages.get("/dynbeat/alerts").text
