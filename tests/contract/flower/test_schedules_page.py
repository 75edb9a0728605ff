"""The page "Schedules": filters, order, pages, numbers."""

import json
import re
from html import unescape
from urllib.parse import urlencode

import pytest

from celery_dynbeat import Every
from tests.support.applications import MINUTELY, execute

PAGE = "/dynbeat/schedules"
HOSTILE = "<script>alert(1)</script>\u202e=cmd"


def create(dynbeat, *names, owner="", **fields):
    mine = dynbeat.schedules.for_owner(owner)
    fields = {"task": "report.build", "trigger": Every(3600), **fields}
    return [mine.create(name, **fields) for name in names]


def names(answer):
    found = re.findall(r'name="schedule" value="([^"]*)"', answer.text)
    return [json.loads(unescape(each))[1] for each in found]


def link(answer, rel):
    found = re.search(rf'href="([^"]*)" rel="{rel}"', answer.text)
    return None if found is None else unescape(found[1])


def page(pages, **query):
    return pages.get(f"{PAGE}?{urlencode(query, doseq=True)}")


def test_hostile_texts_are_text(dynbeat, pages):
    create(dynbeat, HOSTILE.replace("\u202e", ""), owner=HOSTILE, task=HOSTILE, tags=[HOSTILE])

    answer = pages.get(PAGE)

    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text
    [key] = re.findall(r'name="schedule" value="([^"]*)"', answer.text)
    assert json.loads(unescape(key)) == [HOSTILE, HOSTILE.replace("\u202e", "")]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["app", "dig a", "dig b", "other"]),
        ({"owner": ""}, ["app"]),
        ({"owner": "user:1"}, ["dig a", "other"]),
        ({"owner_prefix": "user:"}, ["dig a", "dig b", "other"]),
        ({"name": "dig"}, ["dig a", "dig b"]),
        ({"task": "mail.send"}, ["dig b"]),
        ({"tag": "vip"}, ["dig a", "dig b"]),
        ({"tag": "vip", "owner": "user:1"}, ["dig a"]),
        ({"state": "paused"}, ["other"]),
        ({"state": "active", "owner": "user:1"}, ["dig a"]),
        ({"order": "next_run_at"}, ["dig b", "app", "dig a"]),
    ],
)
def test_the_url_filters_and_orders(dynbeat, pages, query, found):
    create(dynbeat, "app")
    create(dynbeat, "dig a", owner="user:1", tags=["vip"])
    create(dynbeat, "other", owner="user:1", enabled=False)
    soon = {"task": "mail.send", "trigger": Every(60)}
    create(dynbeat, "dig b", owner="user:2", tags=["vip"], **soon)

    assert sorted(names(page(pages, **query))) == sorted(found)
    if "order" in query:
        assert names(page(pages, **query))[0] == found[0]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"q": "x:1 y:1 <b>"}, "text: occurs twice"),
        ({"q": '"open'}, "The quotes in"),
        ({"owner": "x" * 256}, "must have at most 255 characters"),
        ({"tag": " a"}, "must not begin or end with white space"),
    ],
)
def test_an_error_of_the_search_is_under_the_box(dynbeat, pages, query, error):
    create(dynbeat, "app")

    answer = page(pages, **query)

    assert answer.status == 200
    [shown] = re.findall(r'id="db-search-error" role="alert">(.*)</p>', answer.text)
    assert error in shown
    assert "<b>" not in answer.text
    assert names(answer) == []


def test_a_list_has_pages_in_both_directions(dynbeat, pages):
    create(dynbeat, *(f"n{number:02}" for number in range(60)))

    first = pages.get(PAGE)
    second = pages.get(link(first, "next"))
    third = pages.get(link(second, "next"))

    assert [len(names(each)) for each in (first, second, third)] == [25, 25, 10]
    assert "25 of 60" in first.text
    assert "10 of 60" in third.text
    assert link(third, "next") is None
    assert names(pages.get(link(third, "prev"))) == names(second)
    assert names(pages.get(link(second, "prev"))) == names(first)
    assert link(first, "prev") is None
    assert len(names(page(pages, size=100))) == 60


def test_without_write_access_there_are_no_controls(dynbeat, serve):
    create(dynbeat, "a")

    text = serve().get(PAGE).text

    assert 'type="checkbox"' not in text
    assert "formaction" not in text


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tags", '["\\ud800", 5, null]'),
        ("args", "[" + "1" * 5_000 + "]"),
        ("trigger_spec", "x"),
    ],
)
def test_a_damaged_row_does_not_hide_the_other_schedules(dynbeat, pages, column, value):
    mine = dynbeat.schedules.for_owner("user:1")
    for name in ("damaged", "intact"):
        mine.create(name, task="t", trigger=MINUTELY)
    damage = f"UPDATE dynbeat_schedule SET {column} = :value WHERE name = 'damaged'"
    execute(dynbeat, damage, value=value)

    for page in ("schedules", "timeline", "schedule?owner=user:1&name=damaged"):
        assert pages.get(f"/dynbeat/{page}").status == 200
    assert "intact" in pages.get("/dynbeat/schedules").text
