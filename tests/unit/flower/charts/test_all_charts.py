"""What holds for every chart: valid, labelled, escaped, and free of inline styles and scripts."""

import re
from datetime import UTC, date, datetime, timedelta

import pytest

from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.flower.charts.heat_map import heat_map
from celery_dynbeat.flower.charts.histogram import histogram
from celery_dynbeat.flower.charts.lines import LineDot, LinePoint, line_chart, sparkline
from celery_dynbeat.flower.charts.run_strip import run_strip
from celery_dynbeat.flower.charts.timeline import TimelineBar, TimelineRow, TimelineTick, timeline
from celery_dynbeat.insights.charts import CalendarDay
from celery_dynbeat.insights.history import RecentRun
from celery_dynbeat.insights.timeline import Bin
from tests.support.chart_elements import parse, with_class

START = datetime(2026, 11, 22, 9, tzinfo=UTC)
END = START + timedelta(hours=1)
SPAN = {"start_at": START, "end_at": END}
HOSTILE = "</title><script>alert(1)</script>\"'&amp; \u202egnp.exe\u202c \x00\x0b \ud800 ]]>"
#: The same with a replacement character for what XML and UTF-8 do not allow.
SHOWN = re.sub("[\x00\x0b\ud800]", "\N{REPLACEMENT CHARACTER}", HOSTILE)


def given(mark):
    """Return the functions that give the title and the link of a mark."""
    return {name: lambda _, value=value: value for name, value in mark.items()}


def strip(text, mark):
    run = RecentRun(
        id="1",
        status="failed",
        attempt=1,
        origin="schedule",
        fire_at=START,
        fire_count=1,
        lag=None,
        queue_time=None,
        duration=timedelta(seconds=1),
        error=None,
    )
    return run_strip([run], label=text, **given(mark))


def line(text, _):
    return sparkline([1, None, 2], label=text)


def lines(text, mark):
    point = LinePoint(start_at=START, end_at=END, p50=1, max=2, title=mark["title"])
    dot = LineDot(at=START, seconds=None, **mark)
    return line_chart([point], dots=[dot], label=text, **SPAN)


def calendar(text, mark):
    day = CalendarDay(
        day=START.date(),
        total=BoundedCount(count=2, exact=True),
        failed=1,
        skipped=0,
        planned=1,
        planned_exact=True,
        **SPAN,
    )
    return heat_map([day], label=text, **given(mark))


def bins(text, mark):
    shown = Bin(past=2, failed=1, planned=1, more=False, **SPAN)
    return histogram([shown], now=START, label=text, **SPAN, **given(mark))


def rows(text, mark):
    bar = TimelineBar(start_at=START, end_at=None, status="failed", **mark)
    tick = TimelineTick(at=END, **mark)
    row = TimelineRow(label=text, href=mark["href"], bars=[bar], ticks=[tick])
    return timeline([row], now=START, label=text, **SPAN)


MARKED = [strip, lines, calendar, bins, rows]
ALL = [*MARKED, line]
NO_MARKS = given({"title": "", "href": None})
EMPTY = {
    "run_strip": run_strip([], label="empty", **NO_MARKS),
    "sparkline": sparkline([], label="empty"),
    "line_chart": line_chart([], label="empty", **SPAN),
    "heat_map": heat_map([], today=date(2026, 11, 22), label="empty", **NO_MARKS),
    "histogram": histogram([], label="empty", **SPAN, **NO_MARKS),
    "timeline": timeline([], now=START, label="empty", **SPAN),
}


def draw(chart, text, href="/runs/1"):
    """Return ``chart`` with one mark of each kind whose titles are ``text``."""
    return chart(text, {"title": text, "href": href})


@pytest.mark.parametrize("chart", ALL)
def test_hostile_text_stays_text(chart):
    root = parse(draw(chart, HOSTILE))

    assert not list(root.iter("script"))
    assert any(element.get("aria-label") == SHOWN for element in root.iter())


@pytest.mark.parametrize("chart", MARKED)
def test_each_mark_has_its_title(chart):
    marks = with_class(parse(draw(chart, HOSTILE)), "dynbeat-mark")

    assert marks
    assert all(mark.findtext("title") == SHOWN for mark in marks)


@pytest.mark.parametrize("text", [*(draw(chart, "text") for chart in ALL), *EMPTY.values()])
def test_a_strict_content_security_policy_allows_a_chart(text):
    for element in parse(text).iter():
        assert not [name for name in element.attrib if name == "style" or name.startswith("on")]
        assert element.tag not in {"style", "script", "foreignObject", "image"}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_chart_is_valid_and_has_no_marks(name):
    root = parse(EMPTY[name])

    assert any(element.get("aria-label") == "empty" for element in root.iter())
    assert not with_class(root, "dynbeat-mark")


@pytest.mark.parametrize("chart", MARKED)
@pytest.mark.parametrize("href", ["javascript:alert(1)", " Java\nScript:x()", "data:text/html,"])
def test_a_link_that_runs_a_script_is_refused(chart, href):
    with pytest.raises(ValueError, match="not a path or an http URL"):
        draw(chart, "text", href)


@pytest.mark.parametrize("chart", MARKED)
def test_a_mark_without_a_page_is_no_link(chart):
    assert not list(parse(draw(chart, "text", None)).iter("a"))
