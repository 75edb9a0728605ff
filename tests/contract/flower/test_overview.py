"""The strip above each page."""

import re
from datetime import timedelta
from html import unescape

from celery_dynbeat import Every
from tests.support.applications import execute

STRIP = "/dynbeat/overview"


def items(pages):
    text = pages.get(STRIP).text
    links = re.findall(r'<a href="([^"]*)"( class="db-alarm")?>(.*?)</a>', text, re.DOTALL)
    shown = [(re.sub(r"<[^>]*>|\s+", " ", text), href, bool(alarm)) for href, alarm, text in links]
    return [(" ".join(text.split()), unescape(href), alarm) for text, href, alarm in shown]


def test_the_strip_says_what_is_late_and_what_to_do(dynbeat, pages, clock):
    dynbeat.schedules.for_owner("").create("a", task="t", trigger=Every(60))
    clock.advance(timedelta(minutes=5))

    found = {text.partition(" ")[0].lstrip("▲ "): text for text, _, _ in items(pages)}
    alarms = [text for text, _, alarm in items(pages) if alarm]

    assert found["due"] == "due 1"
    assert alarms == ["▲ overdue 1 (oldest 4 min): check beats"]


def test_pending_runs_are_an_alarm_when_status_has_a_problem_with_them(dynbeat, pages, clock):
    mine = dynbeat.schedules.for_owner("")
    mine.create("a", task="t", trigger=Every(86_400))
    mine.run_now("a")
    clock.advance(timedelta(minutes=5))
    assert execute(dynbeat, "UPDATE dynbeat_run SET status = 'sent', sent_at = created_at") == 1
    assert not any(alarm for text, _, alarm in items(pages) if "pending" in text)

    banners = pages.get("/dynbeat/problems").text

    assert [text for text, _, alarm in items(pages) if alarm and "pending" in text] == [
        "▲ pending 1 (oldest 5 min): check workers"
    ]
    assert "No worker is alive; waiting runs: 1." in banners
    assert '<a href="/dynbeat/runs?status=pending&amp;status=sent">Show</a>' in banners
    # Each page has its own banner for it.
    assert "No beat" not in banners
