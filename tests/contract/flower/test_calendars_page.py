"""The pages of the shared calendars."""

from datetime import timedelta
from html import unescape

import pytest

from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.triggers import Cron
from tests.support.applications import START, execute

LIST, PAGE = "/dynbeat/calendars", "/dynbeat/calendar?name="
HOSTILE = '"><script>alert(1)</script>\u202e'
TODAY = START.date()
DAY = timedelta(days=1)
DAILY = Cron("0 9 * * *", timezone="UTC")


@pytest.fixture
def put(dynbeat):
    return dynbeat.calendars.put


def rows_of(text):
    """Return the texts of the rows of the table."""
    return [each.partition("</tr>")[0] for each in text.split("<tr data-row")[1:]]


def test_without_calendars_the_page_says_so(pages):
    assert "There are no shared calendars." in pages.get(LIST).text


def test_a_row_has_the_definition_of_a_calendar(dynbeat, put, pages):
    with dynbeat.acting(actor=HOSTILE):
        put("b", trigger="0 0 * * sun", timezone="Asia/Seoul", weekend=["fri", "sat"])
        put("a", dates=[TODAY])
        put("a", dates=[TODAY, TODAY + DAY], weekend=[])

    text = pages.get(LIST).text
    first, second = rows_of(text)

    assert "/dynbeat/calendar?name=a" in first
    assert "2 dates" in first
    assert ">2</td>" in first
    assert ">none</td>" in first
    assert "Sunday" in second
    assert "Asia/Seoul" in second
    assert "fri, sat" in second
    assert "&lt;script&gt;alert(1)" in second
    assert "<script>alert" not in text
    assert "\u202e" not in text
    # No part of the list changes anything.
    assert "<form" not in text.partition("<h1")[2]


@pytest.mark.parametrize(
    ("trigger", "timezone", "shown", "zone"),
    [
        (DAILY, None, "At 09:00 every day, UTC", "UTC"),
        ("0 9 * * *", None, "At 09:00 every day", "of each schedule"),
        ("0 9 * * *", "Asia/Seoul", "At 09:00 every day, Asia/Seoul", "Asia/Seoul"),
    ],
)
def test_a_trigger_is_described_in_its_zone(put, pages, trigger, timezone, shown, zone):
    put("c", trigger=trigger, timezone=timezone)

    for path in (LIST, f"{PAGE}c"):
        text = pages.get(path).text
        assert f">{shown}\n<" in text
        assert f">{zone}\n<" in text


def test_the_list_has_pages(put, pages):
    for number in range(30):
        put(f"c{number:02}", dates=[TODAY])

    text = pages.get(LIST).text
    following = unescape(text.partition('" rel="next"')[0].rpartition('href="')[2])

    assert len(rows_of(text)) == 25
    assert "c00" in rows_of(text)[0]
    last = rows_of(pages.get(following).text)
    assert len(last) == 5
    assert "c25" in last[0]
    assert len(rows_of(pages.get(f"{LIST}?size=50").text)) == 30
    assert pages.get(f"{LIST}?after=x").status == 400


def test_an_edit_shows_how_many_schedules_wait_until_beat_has_planned_them(
    dynbeat, mine, put, pages
):
    put("c", dates=[TODAY + DAY])
    for name in ("x", "y"):
        mine.create(name, task="t", trigger=DAILY.excluding(calendar="c"))
    put("c", dates=[TODAY + 2 * DAY])

    for path in (LIST, f"{PAGE}c"):
        assert "2 schedules wait" in pages.get(path).text

    ManualBeat(dynbeat).run_until_idle()

    for path in (LIST, f"{PAGE}c"):
        text = pages.get(path).text
        assert "wait" not in text.partition("<h1")[2]
        assert "now" in text.partition("In force since")[2]


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


@pytest.mark.parametrize(
    ("trigger", "zone", "first", "count"),
    [
        ("0 0 * * sun", "Asia/Seoul", "Sun 22 Nov 2026", 12),
        ("* * * * *", None, "Sat 21 Nov 2026", 12),
        ("0 0 24 12 *", None, "Thu 24 Dec 2026", 12),
        ("DTSTART:20261101T000000Z\nRRULE:FREQ=MONTHLY;COUNT=3", None, "Tue 1 Dec 2026", 2),
        ("DTSTART:20251101T000000Z\nRRULE:FREQ=DAILY;COUNT=3", None, None, 0),
    ],
)
def test_the_next_days_of_a_trigger(put, pages, trigger, zone, first, count):
    put("c", trigger=trigger, timezone=zone)

    text = pages.get(f"{PAGE}c").text

    assert len(days_of(text)) == count
    assert days_of(text)[:1] == ([first] if first else [])
    assert ("has no days from today on" in text) == (first is None)
    assert zone is None or zone in text


def test_a_zone_that_the_tz_database_has_lost_is_replaced_by_the_default(dynbeat, put, pages):
    put("c", dates=[TODAY], timezone="Asia/Seoul")
    execute(dynbeat, "UPDATE dynbeat_calendar SET timezone = 'Asia/Lost'")

    assert days_of(pages.get(f"{PAGE}c").text) == ["Sat 21 Nov 2026"]


def test_an_unknown_calendar_is_not_found(pages):
    assert pages.get(f"{PAGE}missing").status == 404
    assert pages.get(f"{PAGE}not+a+name").status == 400
    assert pages.get("/dynbeat/calendar").status == 400
