"""The pages of runs: filters, pages, bulk actions, and one run."""

import json
import re
from datetime import timedelta
from html import unescape

import pytest

from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, execute

PAGE = "/dynbeat/runs"
HOSTILE = '"><script>alert(1)</script>\u202e'
MINUTE = timedelta(minutes=1)
STARTED = "UPDATE dynbeat_run SET started_at = sent_at, status = 'running', overdue_at = NULL"


@pytest.fixture
def made(dynbeat, mine, clock):
    """Return a function that makes runs of a schedule in a status, the oldest first."""

    def make(count, status, *, name="n", owner=None, **fields):
        calls = mine if owner is None else dynbeat.schedules.for_owner(owner)
        calls.upsert(name, task=fields.pop("task", "t"), trigger=MINUTELY)
        known = {run.id for run in calls.runs(name, limit=1_000)}
        for _ in range(count):
            clock.advance(MINUTE)
            ManualBeat(dynbeat).run_until_idle()
        new = [run for run in calls.runs(name, limit=1_000) if run.id not in known]
        ended = status not in {"pending", "sent", "running", "retrying"}
        for run in new:
            values = {"status": status, "overdue_at": None, **fields}
            if ended:
                values |= {"finished_at": str(clock.now().replace(tzinfo=None))}
            columns = ", ".join(f"{column} = :{column}" for column in values)
            statement = f"UPDATE dynbeat_run SET {columns} WHERE id = :id"
            execute(dynbeat, statement, id=run.id, **values)
        # No more runs while other schedules make theirs.
        calls.update(name, trigger="0 0 1 1 *")
        return [run.id for run in reversed(new)]

    return make


def shown(text):
    """Return the ids of the runs in the table."""
    return [part.partition('"')[0] for part in text.split('name="run" value="')[1:]]


def test_pages_follow_each_other_without_gaps(made, pages):
    ids = made(60, "succeeded")
    seen, url = [], PAGE
    while url:
        text = pages.get(url).text
        seen += shown(text)
        following = [each for each in text.split("<a ") if 'rel="next"' in each.partition(">")[0]]
        url = unescape(following[0].split('href="')[1].partition('"')[0]) if following else None

    assert seen == ids[::-1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("status=failed", "failed"),
        ("status=failed&status=lost", "failed"),
        ("owner=user:42&name=n", "failed"),
        ("owner=other", "other"),
        ("task=u", "other"),
        ("origin=manual", "manual"),
        ("since=2026-11-21T09:03&until=2026-11-21T09:06", "other"),
    ],
)
def test_a_filter_shows_the_runs_that_match(made, dynbeat, clock, pages, query, expected):
    groups = {"failed": made(2, "failed"), "other": made(3, "succeeded", owner="other", task="u")}
    clock.advance(MINUTE)
    groups["manual"] = [dynbeat.schedules.for_owner("user:42").run_now("n").id]

    found = set(shown(pages.get(f"{PAGE}?{query}").text))

    wanted = set(groups[expected])
    assert found == (wanted | set(groups["manual"]) if "name=n" in query else wanted)


@pytest.mark.parametrize("field", ["worker", "text"])
@pytest.mark.parametrize("action", ["rerun_runs", "cancel_runs"])
def test_no_action_on_all_runs_ignores_a_filter_of_the_list(made, mine, pages, field, action):
    status = "failed" if action == "rerun_runs" else "sent"
    [run_id] = made(1, status, worker="w1@host")
    form = {field: "other", "since": "1h", "confirmed": "yes", "next": PAGE}

    answer = pages.post(f"/dynbeat/{action}?all=yes", form)

    assert "cannot filter by" in answer.text + pages.get(PAGE).text
    assert mine.get_run(run_id).status == status
    assert not list(mine.runs(origin="rerun"))


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("q=who:me+what:it", "text: occurs twice"),
        ("name=n", "a schedule has an owner"),
        ("status=bad", "must be one or several of pending, sent"),
        ("since=yesterday", "is not a time: write"),
        ("origin=bad", "origin"),
        ("after=bad", "after"),
    ],
)
def test_a_wrong_filter_is_named_on_the_page(pages, query, error):
    answer = pages.get(f"{PAGE}?{query}")

    assert (answer.status, error in answer.text) == (400, True)


def test_selected_runs_run_again_after_a_question(made, mine, pages):
    ids = made(2, "failed")
    form = {"run": ids, "next": PAGE, "ask": "yes"}

    assert "Rerun 2 runs?" in pages.post("/dynbeat/rerun_runs", form).text
    assert list(mine.runs(origin="rerun")) == []
    pages.post("/dynbeat/rerun_runs", {**form, "confirmed": "yes"})

    assert {run.rerun_of for run in mine.runs(origin="rerun")} == set(ids)
    assert "Recorded 2 of 2 reruns." in pages.get(PAGE).text


def test_all_failed_runs_of_a_filter_run_again_with_their_number(made, dynbeat, mine, pages):
    made(3, "failed")
    made(2, "succeeded")
    made(1, "failed", owner="other")
    form = {"owner": mine.owner, "since": START.isoformat(), "all": "yes", "next": PAGE}

    asked = pages.post("/dynbeat/rerun_runs", form).text
    assert "3 failed and lost of 5 runs match the filter." in asked
    assert '<input type="hidden" name="all" value="yes">' in asked
    pages.post("/dynbeat/rerun_runs", {**form, "confirmed": "yes"})

    assert {run.owner for run in dynbeat.schedules.runs(origin="rerun")} == {mine.owner}
    assert len(mine.runs(origin="rerun")) == 3


def test_a_batch_shows_its_counts_and_can_be_cancelled(dynbeat, mine, pages):
    mine.create("n", task="t", trigger="* * * * *")
    minute = timedelta(minutes=1)
    batch = mine.backfill("n", since=START - 3 * minute, until=START)
    other = mine.backfill("n", since=START - 5 * minute, until=START - 3 * minute)
    mine.cancel_run(mine.runs(batch_id=batch.batch_id)[0].id)
    page = f"{PAGE}?batch={batch.batch_id}"

    run = mine.runs(batch_id=batch.batch_id, status="pending")[0]
    link = f'href="/dynbeat/runs?batch={batch.batch_id}"'
    assert link in pages.get(f"/dynbeat/run/{run.id}").text
    text = pages.get(page).text
    counts = text.partition("Batch of 3 runs:")[2].partition("</p>")[0]
    words = re.sub("<[^>]*>", " ", counts).split()
    assert words == ["pending", "2", "revoked", "1"]
    assert "All 3 matching runs" in text
    form = {"batch": batch.batch_id, "all": "yes", "next": page}
    assert "Cancel 2 matching runs?" in pages.post("/dynbeat/cancel_runs", form).text
    pages.post("/dynbeat/cancel_runs", {**form, "confirmed": "yes"})

    assert mine.get_batch(batch.batch_id).counts == {"revoked": 3}
    assert mine.get_batch(other.batch_id).counts == {"pending": 2}
    assert dynbeat.schedules.changes()[0].action == "cancel"


def test_waiting_runs_of_a_filter_are_cancelled(made, mine, pages):
    waiting = made(2, "sent")
    running = made(1, "running")
    form = {"all": "yes", "owner": mine.owner, "name": "n", "next": PAGE}

    assert "Cancel 2 matching runs?" in pages.post("/dynbeat/cancel_runs", form).text
    pages.post("/dynbeat/cancel_runs", {**form, "confirmed": "yes", "reason": "wrong"})

    statuses = {run.id: run.status for run in mine.runs("n")}
    assert {statuses[each] for each in waiting} == {"revoked"}
    assert {statuses[each] for each in running} == {"running"}
    [change] = mine.changes("n", limit=1)
    assert (change.actor, change.reason) == ("alice", "wrong")


def test_a_run_shows_its_steps_and_its_error(made, dynbeat, mine, pages):
    [run_id] = made(1, "failed", error=f"ValueError: {HOSTILE}", traceback=f"T\n  {HOSTILE}")
    mine.update("n", args=[HOSTILE], kwargs={"a": 1})

    text = pages.get(f"/dynbeat/run/{run_id}").text

    assert "<script>alert" not in text
    assert "\u202e" not in text
    for step in ("due", "recorded", "sent", "failed"):
        assert f'<th scope="row">{step}</th>' in text
    assert "Sat 21 Nov 2026 09:01:00.000 +00" in text
    assert ">Rerun<" in text
    assert dynbeat.schedules.get_run(run_id).error in unescape(text).replace("\\u202e", "\u202e")


def test_the_run_of_a_deleted_schedule_stays_readable(made, mine, pages):
    [run_id] = made(1, "succeeded")
    mine.delete("n")

    text = pages.get(f"/dynbeat/run/{run_id}").text

    assert "The schedule was deleted." in text
    assert ">Rerun<" not in text


@pytest.mark.parametrize("run_id", ["0" * 36, "01a204c2-885a-7ad9-b8aa-ecf40842f378"])
def test_an_unknown_run_is_a_page_of_its_error(pages, run_id):
    answer = pages.get(f"/dynbeat/run/{run_id}")

    assert answer.status in {400, 404}
    assert "All schedules" in answer.text


def test_the_page_of_a_task_can_ask_for_its_run(made, pages):
    [run_id] = made(1, "succeeded")

    assert json.loads(pages.get(f"/dynbeat/run_link/{run_id}").text) == {
        "url": f"/dynbeat/run/{run_id}"
    }
    assert json.loads(pages.get("/dynbeat/run_link/x").text) == {"url": None}
    other = "01a204c2-885a-7ad9-b8aa-ecf40842f378"
    assert json.loads(pages.get(f"/dynbeat/run_link/{other}").text) == {"url": None}
