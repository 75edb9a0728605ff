"""Fragments of HTML show instants, durations and states of end users as text."""

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

from celery_dynbeat.flower.base import fragments

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
SEOUL = ZoneInfo("Asia/Seoul")


def parsed(html):
    element = ET.fromstring(html)  # noqa: S314 - our own text
    return element.tag, element.text, element.attrib


def test_an_exact_time_is_in_the_zone_with_utc_on_hover():
    tag, text, attributes = parsed(fragments.exact_time(NOW, SEOUL))

    assert (tag, text) == ("time", "Sun 22 Nov 2026 18:00:00 +09")
    assert attributes == {
        "datetime": "2026-11-22T09:00:00+00:00",
        "title": "Sun 22 Nov 2026 09:00:00 +00",
    }


def test_a_relative_time_has_the_exact_time_on_hover():
    html = fragments.relative_time(NOW + timedelta(minutes=5), SEOUL, now=NOW)

    tag, text, attributes = parsed(html.replace(" data-relative", ' data-relative=""'))
    assert (tag, text) == ("time", "in 5 min")
    assert attributes["title"] == "Sun 22 Nov 2026 18:05:00 +09 (Asia/Seoul)"


def test_a_next_time_that_passed_reads_overdue():
    _, text, attributes = parsed(fragments.next_time(NOW - timedelta(seconds=42), SEOUL, now=NOW))

    assert (text, attributes["class"]) == ("overdue 42 s", "db-overdue")


def test_a_state_that_sql_wrote_is_text():
    assert "<script>" not in fragments.chip('"><script>')
