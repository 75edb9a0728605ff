"""The page "Timeline"."""

import re
from datetime import timedelta
from html import unescape
from xml.etree import ElementTree as ET

from celery_dynbeat import Every
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START

PAGE = "/dynbeat/timeline"
HOSTILE = '"><script>alert(1)</script>\u202e'
MINUTE = timedelta(minutes=1)


def chart_of(text):
    start = text.index('<div class="db-timeline-chart">')
    inner = text[start:].split("\n", 1)[0].removeprefix('<div class="db-timeline-chart">')
    return ET.fromstring(inner.removesuffix("</div>"))  # noqa: S314 - our own text


def marks(chart, name):
    return [each for each in chart.iter() if name in (each.get("class") or "").split()]


def test_past_runs_are_bars_and_fire_times_to_come_are_ticks(dynbeat, mine, clock, pages):
    mine.create("n", task="t", trigger=MINUTELY)
    beat = ManualBeat(dynbeat)
    for _ in range(3):
        clock.advance(MINUTE)
        beat.run_until_idle()
    clock.advance(timedelta(seconds=1))

    chart = chart_of(pages.get(f"{PAGE}?window=15m").text)

    bars, ticks = marks(chart, "dynbeat-bar"), marks(chart, "dynbeat-fire-time")
    [run, *_] = mine.runs("n")
    assert [bar.get("href") for bar in bars][-1] == f"/dynbeat/run/{run.id}"
    # Each minute until 7.5 minutes from now.
    assert (len(bars), len(ticks)) == (3, 7)
    assert len(marks(chart, "dynbeat-now")) == 1


def test_many_schedules_are_a_histogram_that_shows_a_herd(dynbeat, pages):
    new = {"task": "t", "trigger": Every(timedelta(hours=2), anchor=START)}
    dynbeat.schedules.create_many(
        {"owner": f"user:{number}", "name": "n", **new} for number in range(300)
    )
    window = "since=2026-11-21T10:30:00Z&until=2026-11-21T11:30:00Z"

    text = pages.get(f"{PAGE}?{window}").text

    chart = chart_of(text)
    [planned] = marks(chart, "dynbeat-bar-planned")
    del planned
    [mark] = marks(chart, "dynbeat-bin")
    assert "300 planned" in mark[0].text
    opened = pages.get(mark.get("href").partition("#")[0])
    assert opened.text.count("data-row-link") == 50
    assert "Only the schedules with the most runs are shown." in opened.text


def test_names_of_users_are_text(dynbeat, pages):
    mine = dynbeat.schedules.for_owner(HOSTILE)
    mine.create(HOSTILE, task=HOSTILE, trigger=MINUTELY, tags=[HOSTILE])

    for group in ("owner", "task", "tag"):
        text = pages.get(f"{PAGE}?group={group}").text
        assert "<script>alert" not in text
        assert "\u202e" not in text
        assert "<script>alert(1)</script>\\u202e" in unescape(text)


def test_the_page_loads_a_forecast_with_its_busiest_minute(dynbeat, pages):
    new = {"name": "n", "task": "t", "trigger": START + 90 * MINUTE}
    for owner in ("a", "b", "c", "d", HOSTILE):
        dynbeat.schedules.for_owner(owner).create(**new)

    assert 'data-fragment="/dynbeat/forecast"' in pages.get(PAGE).text
    text = pages.get("/dynbeat/forecast").text

    assert "5 runs become due until" in text
    assert "<script>alert" not in text
    [link] = re.findall(r'<a href="([^"]+)">5</a>', text)
    opened = pages.get(unescape(link))
    assert opened.text.count("data-row-link") == 5
