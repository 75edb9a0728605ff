"""The pages of the shared calendars."""

from datetime import timedelta

import pytest

from celery_dynbeat.triggers import Cron
from tests.support.applications import START

LIST, PAGE = "/dynbeat/calendars", "/dynbeat/calendar?name="
HOSTILE = '"><script>alert(1)</script>\u202e'
TODAY = START.date()
DAY = timedelta(days=1)
DAILY = Cron("0 9 * * *", timezone="UTC")


@pytest.fixture
def put(dynbeat):
    return dynbeat.calendars.upsert


def rows_of(text):
    """Return the texts of the rows of the table."""
    return [each.partition("</tr>")[0] for each in text.split("<tr data-row")[1:]]


def test_a_row_has_the_definition_of_a_calendar(dynbeat, put, pages):
    with dynbeat.acting(actor=HOSTILE):
        put("b", dates=[TODAY], weekend=["fri", "sat"])
        put("a", dates=[TODAY])
        put("a", dates=[TODAY, TODAY + DAY], weekend=[])

    text = pages.get(LIST).text
    first, second = rows_of(text)

    assert "/dynbeat/calendar?name=a" in first
    assert "2 dates" in first
    assert ">2</td>" in first
    assert ">none</td>" in first
    assert "1 date" in second
    assert "fri, sat" in second
    assert "&lt;script&gt;alert(1)" in second
    assert "<script>alert" not in text
    assert "\u202e" not in text
    # No part of the list changes anything.
    assert "<form" not in text.partition("<h1")[2]


def test_a_calendar_has_its_next_days_and_its_schedules(dynbeat, mine, put, pages):
    put("c", dates=[TODAY - DAY, TODAY, TODAY + DAY])
    put("other", dates=[TODAY])
    mine.create("digest", task="t", trigger=DAILY.excluding(calendar="c"))
    mine.create("unrelated", task="t", trigger=DAILY)
    theirs = dynbeat.schedules.for_owner(HOSTILE)
    theirs.create(HOSTILE, task="t", trigger=DAILY.excluding(calendar="c"))

    text = pages.get(f"{PAGE}c").text

    assert days_of(text) == ["Sat 21 Nov 2026", "Sun 22 Nov 2026"]
    assert len(rows_of(text)) == 2
    assert "2 of 2" in text
    assert "digest" in text
    assert "unrelated" not in text
    assert "<script>alert" not in text
    assert "/dynbeat/owner?owner=user%3A42" in text
    assert "No schedule uses this calendar." in pages.get(f"{PAGE}other").text
    assert f"{PAGE}c" in pages.get("/dynbeat/schedule?owner=user%3A42&name=digest").text
    assert LIST in pages.get("/dynbeat/schedules").text


def days_of(text):
    listed = text.partition("Next days")[2].partition("</section>")[0]
    return [each.partition("</li>")[0] for each in listed.split("<li>")[1:]]
