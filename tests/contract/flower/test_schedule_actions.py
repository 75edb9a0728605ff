"""Pause, resume, run, delete and skip: one schedule, and several of a list."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest

from celery_dynbeat import Every
from celery_dynbeat.flower.actions import encode
from tests.support.applications import START, instants

LIST = "/dynbeat/schedules?state=active"


@pytest.fixture
def mine(dynbeat):
    made = dynbeat.schedules.for_owner("user:1")
    for name in ("a", "b", "c"):
        made.create(name, task="t", trigger=Every(3600))
    return made


def post(pages, action, *names, **fields):
    selected = [encode("user:1", name) for name in names]
    return pages.post(f"/dynbeat/{action}", {"schedule": selected, "next": LIST, **fields})


def message(pages, answer):
    assert (answer.status, answer.location) == (303, LIST)
    [found] = re.findall(r'db-message" role="\w+">(.*)</div>', pages.get(answer.location).text)
    return unescape(found)


def states(mine):
    return {info.name: info.state for info in mine.list()}


def test_one_schedule_is_paused_and_resumed_at_once(mine, pages):
    assert message(pages, post(pages, "pause", "a")) == "Paused “a of user:1”."
    assert states(mine) == {"a": "paused", "b": "active", "c": "active"}
    [change] = mine.changes("a", limit=1)
    assert (change.action, change.actor) == ("pause", "alice")

    assert message(pages, post(pages, "resume", "a")) == "Resumed “a of user:1”."
    assert states(mine)["a"] == "active"


@pytest.mark.parametrize(
    ("action", "question"),
    [
        ("pause", "Pause 2 schedules?"),
        ("resume", "Resume 2 schedules?"),
        ("run_now", "Run 2 schedules?"),
        ("delete", "Delete 2 schedules?"),
    ],
)
def test_several_schedules_are_confirmed_with_their_number(mine, pages, action, question):
    before = [info.version for info in mine.list()]

    answer = post(pages, action, "a", "b")

    assert answer.status == 200
    assert question in answer.text
    assert "a of user:1" in answer.text
    assert answer.text.count('name="schedule"') == 2
    assert [info.version for info in mine.list()] == before
    assert mine.runs("a") == []


def test_a_schedule_that_vanished_is_reported_and_the_others_are_done(mine, pages):
    mine.delete("b")

    answer = post(pages, "pause", "a", "b", "c", confirmed="yes")

    text = message(pages, answer)
    assert text.startswith("Paused 2 of 3 schedules. “b of user:1”: owner 'user:1' has no schedule")
    assert states(mine) == {"a": "paused", "c": "paused"}


def test_run_now_records_manual_runs(mine, pages):
    answer = post(pages, "run_now", "a", "b", confirmed="yes")

    assert message(pages, answer) == "Requested a run of 2 schedules."
    assert [run.origin for run in mine.runs("a")] == ["manual"]


def test_someone_who_was_faster_wins(mine, pages):
    version = mine.get("a").version
    mine.update("a", priority=1)

    text = message(pages, post(pages, "pause", "a", version=str(version)))

    assert "another caller has changed it" in text
    assert states(mine)["a"] == "active"


@pytest.mark.parametrize("values", [[], ["x"], ["[1, 2]"]])
@pytest.mark.usefixtures("mine")
def test_an_invalid_selection_is_a_message(pages, values):
    answer = pages.post("/dynbeat/pause", {"schedule": values, "next": LIST, "confirmed": "yes"})

    assert re.search("No schedule is selected|must be a JSON array", message(pages, answer))


def test_the_fire_time_that_the_viewer_saw_is_skipped_or_none(mine, pages, clock):
    [seen] = instants(mine.upcoming("a", count=1))
    clock.advance(timedelta(hours=1, minutes=1))

    text = message(pages, post(pages, "skip_next", "a", fire_at=seen.isoformat()))

    assert "has passed or is due" in text
    assert not any(each.is_skipped for each in mine.upcoming("a", count=3, with_skipped=True))


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({"until": "4 h"}, START + timedelta(hours=4)),
        ({"until_at": "2026-11-23T08:30"}, datetime(2026, 11, 23, 8, 30, tzinfo=UTC)),
    ],
)
def test_a_pause_ends_when_the_form_says(mine, pages, given, end):
    assert 'name="until_at"' in post(pages, "pause", "a", ask="yes").text

    answer = post(pages, "pause", "a", "b", confirmed="yes", **given)

    assert message(pages, answer).startswith("Paused 2 schedules. Until ")
    assert [mine.get(name).paused_until for name in ("a", "b", "c")] == [end, end, None]
