"""The page of one owner, and the links to it."""

from datetime import timedelta
from html import unescape
from urllib.parse import urlencode

import pytest

from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY

PAGE = "/dynbeat/owner"
MINUTE = timedelta(minutes=1)
#: Owners whose characters have a meaning in a URL or in HTML.
OWNERS = ["a/b", "50% &=?#+", "ñ ☃ 名前", '"><script>alert(1)</script>', ".."]


def page_of(pages, owner):
    return pages.get(f"{PAGE}?{urlencode({'owner': owner})}")


def test_an_owner_has_its_schedules_usage_limits_and_changes(dynbeat, mine, clock, pages):
    for number in range(30):
        mine.create(f"n{number:02}", task="t", trigger=MINUTELY)
    mine.set_timezone("Asia/Seoul")
    mine.set_quiet_hours(["22:00-07:00"])
    dynbeat.schedules.for_owner("user:7").create("other", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    ManualBeat(dynbeat).run_until_idle()

    text = page_of(pages, "user:42").text

    assert text.count("data-row-link") == 25
    assert "25 of 30" in text
    assert "22:00-07:00 on the clock of Asia/Seoul" in text
    assert "Asia/Seoul" in text
    assert "dynbeat_min_interval" in text
    assert "other" not in text.partition("db-section")[2]
    assert ">30</a>" in text.partition("Runs, 24 h")[2].partition("</dd>")[0]
    assert text.count("db-change") == 10
    assert "/dynbeat/schedules?owner=user%3A42" in text


@pytest.mark.parametrize("owner", OWNERS)
def test_each_link_to_an_owner_leads_to_its_page(dynbeat, clock, pages, owner):
    mine = dynbeat.schedules.for_owner(owner)
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    ManualBeat(dynbeat).run_until_idle()
    run = mine.runs("n").items[0]
    given = urlencode({"owner": owner})

    for path in (
        "/dynbeat/schedules",
        "/dynbeat/runs",
        f"/dynbeat/run/{run.id}",
        f"/dynbeat/schedule?{given}&name=n",
    ):
        text = pages.get(path).text
        (url, *_) = [each.partition('"')[0] for each in text.split('href="') if PAGE in each[:20]]
        shown = pages.get(unescape(url))
        assert shown.status == 200, path
        assert "1 of 1" in shown.text, path
        assert "<script>alert" not in shown.text
