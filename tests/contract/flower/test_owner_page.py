"""The page of one owner, and the links to it."""

from contextlib import ExitStack
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode

import pytest

from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY
from tests.support.flower_pages import flower_pages

PAGE = "/dynbeat/owner"
MINUTE = timedelta(minutes=1)
#: Owners whose characters have a meaning in a URL or in HTML.
OWNERS = ["a/b", "50% &=?#+", "ñ ☃ 名前", '"><script>alert(1)</script>', ".."]


def create(dynbeat, owner, name):
    dynbeat.schedules.for_owner(owner).create(name, task="t", trigger=MINUTELY)


def page_of(pages, owner):
    return pages.get(f"{PAGE}?{urlencode({'owner': owner})}")


def test_an_owner_has_its_schedules_usage_limits_and_changes(dynbeat, mine, clock, pages):
    for number in range(30):
        mine.create(f"n{number:02}", task="t", trigger=MINUTELY)
    mine.set_timezone("Asia/Seoul")
    mine.set_quiet_hours(["22:00-07:00"], policy="skip")
    dynbeat.schedules.for_owner("user:7").create("other", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    ManualBeat(dynbeat).run_until_idle()

    text = page_of(pages, "user:42").text

    assert text.count("data-row-link") == 25
    assert "25 of 30" in text
    assert "22:00-07:00, skipped" in text
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


def test_the_page_holds_and_releases_the_owner(mine, pages):
    mine.create("n", task="t", trigger=MINUTELY)
    fields = {"owner": "user:42", "confirmed": "yes", "next": f"{PAGE}?owner=user%3A42"}

    answer = pages.post("/dynbeat/hold", {**fields, "reason": "ticket 12"})

    assert answer.location == fields["next"]
    text = pages.get(fields["next"]).text
    assert "ticket 12" in text
    assert "Release owner" in text


def test_an_owner_without_schedules_has_a_page(pages):
    answer = page_of(pages, "nobody")

    assert answer.status == 200
    assert "This owner has no schedules." in answer.text


def test_the_quota_of_an_owner_is_shown_and_the_application_has_none(limited, serve_of):
    pages = serve_of(limited(max_schedules_per_owner=3))

    assert '0 <span class="db-muted">of 3</span>' in page_of(pages, "user:1").text
    assert "dynbeat_max_schedules_per_owner" not in page_of(pages, "").text


def test_the_limits_of_the_owner_and_its_groups_are_shown_with_what_is_used(limited, serve_of):
    table = {
        "org:7/": {"max_schedules": 5, "min_interval": 300, "allowed_tasks": ["mail.*"]},
        "org:7/user:1": {"max_schedules": 2},
    }
    create(limited(), "org:7/user:2", "n")
    pages = serve_of(limited(owner_limits=table))

    text = page_of(pages, "org:7/user:1").text

    assert '0 <span class="db-muted">of 2</span>' in text
    for shown in ("1 of 5 (group org:7/)", "0 of 2", "5 min (group org:7/)"):
        assert f"<dd>{shown}</dd>" in text
    assert "<dd>mail.* (group org:7/)</dd>" in text


def test_a_hold_of_the_group_is_shown_and_the_owner_can_still_be_held(dynbeat, pages):
    create(dynbeat, "org:7/user:1", "n")
    fields = {"owner": "org:7/", "confirmed": "yes", "reason": "unpaid", "next": PAGE}
    assert pages.post("/dynbeat/hold", fields).status == 303

    text = page_of(pages, "org:7/user:1").text

    assert "Group org:7/ has been held since" in text
    assert "Hold owner" in text
    assert '"/dynbeat/schedules?owner=org%3A7%2F"' in pages.get("/dynbeat/nodes").text
    assert pages.post("/dynbeat/release", fields).status == 303
    assert "held since" not in page_of(pages, "org:7/user:1").text


def test_a_group_has_no_page_and_leads_to_its_schedules(dynbeat, pages):
    create(dynbeat, "org:7/user:1", "of-the-group")
    create(dynbeat, "org:70", "of-another-owner")

    answer = page_of(pages, "org:7/")

    assert answer.location == "/dynbeat/schedules?owner=org%3A7%2F"
    text = pages.get(answer.location).text
    assert "of-the-group" in text
    assert "of-another-owner" not in text


def test_a_function_of_limits_that_fails_does_not_hide_the_page(limited, serve_of):
    def fail(name):
        raise LookupError(name)

    assert page_of(serve_of(limited(owner_limits=fail)), "user:1").status == 200


@pytest.fixture
def serve_of():
    """Return a function that serves the pages of an application."""
    with ExitStack() as stack:
        yield lambda dynbeat: stack.enter_context(flower_pages(dynbeat))


GROUP_PAGE = f"/dynbeat/schedules?{urlencode({'owner': 'org:7/'})}"


def test_the_list_of_a_group_holds_and_releases_it(dynbeat, pages):
    create(dynbeat, "org:7/a", "n")
    assert ">Hold group</button>" in pages.get(GROUP_PAGE).text
    fields = {"next": GROUP_PAGE, "owner": "org:7/", "confirmed": "yes", "reason": "unpaid"}

    answer = pages.post("/dynbeat/hold", fields)

    assert (answer.status, answer.location) == (303, GROUP_PAGE)
    (hold,) = dynbeat.schedules.holds()
    assert (hold.owner, hold.actor, hold.reason) == ("org:7/", "alice", "unpaid")
    text = pages.get(GROUP_PAGE).text
    assert ">Release group</button>" in text
    assert "Group org:7/ has been held since" in text
    assert "unpaid" in text

    assert pages.post("/dynbeat/release", {**fields, "reason": ""}).status == 303
    assert dynbeat.schedules.holds() == []


def test_a_hold_of_a_larger_group_does_not_release_the_group_of_the_list(dynbeat, pages):
    create(dynbeat, "org:7/team:1/a", "n")
    dynbeat.schedules.for_group("org:7/").hold(actor="bob", reason="unpaid")
    dynbeat.schedules.hold(actor="bob")

    text = pages.get(f"/dynbeat/schedules?{urlencode({'owner': 'org:7/team:1/'})}").text

    assert ">Hold group</button>" in text
    assert "Group org:7/ has been held since" in text


def test_an_owner_leads_to_its_groups(dynbeat, pages):
    create(dynbeat, "org:7/team:1/a", "n")
    text = page_of(pages, "org:7/team:1/a").text

    for group in ("org:7/", "org:7/team:1/"):
        assert f"/dynbeat/schedules?{urlencode({'owner': group})}" in text


@pytest.mark.parametrize("owner", ["", "org:7", "org:7/a"])
def test_the_list_of_an_owner_has_no_button_for_a_group(dynbeat, pages, owner):
    create(dynbeat, owner, "n")
    text = pages.get(f"/dynbeat/schedules?{urlencode({'owner': owner})}").text

    assert "group</button>" not in text
    assert "New schedule" in text


@pytest.mark.parametrize("path", ["/dynbeat/hold", "/dynbeat/release"])
def test_a_group_is_not_held_without_the_rights_for_changes(dynbeat, serve, path):
    create(dynbeat, "org:7/a", "n")
    dynbeat.schedules.for_group("org:7/").hold(actor="bob")
    before = list(dynbeat.schedules.holds())
    fields = {"owner": "org:7/", "confirmed": "yes", "reason": "x"}
    read_only = serve(basic_auth=["alice:secret"], read_only=True)
    writing = serve(basic_auth=["alice:secret"])
    for client in (read_only, writing):
        client.user, client.password = "alice", "secret"

    assert "group</button>" not in read_only.get(GROUP_PAGE).text
    assert read_only.post(path, fields).status == 403
    assert writing.post(path, fields, token="").status == 403
    writing.password = "wrong"
    assert writing.post(path, fields, token="x").status == 401
    assert list(dynbeat.schedules.holds()) == before


def test_a_deleted_schedule_is_restored_by_the_list_of_changes(mine, pages):
    mine.create("n", task="t", trigger=MINUTELY, description="kept")
    mine.delete("n")
    change = mine.changes("n")[0]
    path = f"{PAGE}?owner=user%3A42"
    text = page_of(pages, "user:42").text
    assert text.count(">Restore</button>") == 1
    assert f'name="change" value="{change.id}"' in text
    fields = {"next": path, "owner": "user:42", "name": "n", "change": str(change.id)}

    asked = pages.post("/dynbeat/restore", fields)
    assert "Restore “n” as it was before this edit?" in asked.text
    assert not mine.list().items
    answer = pages.post("/dynbeat/restore", {**fields, "confirmed": "yes", "reason": "ticket 12"})

    assert (answer.status, answer.location) == (303, path)
    assert mine.get("n").description == "kept"
    restored = mine.changes("n")[0]
    assert (restored.action, restored.actor, restored.reason) == ("restore", "alice", "ticket 12")
    assert "“n” is restored." in page_of(pages, "user:42").text


def test_an_edit_is_not_restored_for_another_owner_or_without_the_rights(mine, pages, serve):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", description="new")
    change = mine.changes("n")[0]
    fields = {"owner": "user:7", "name": "n", "change": str(change.id), "confirmed": "yes"}
    read_only = serve(basic_auth=["alice:secret"], read_only=True)
    read_only.user, read_only.password = "alice", "secret"

    assert "has no edit" in pages.post("/dynbeat/restore", fields).text
    assert pages.post("/dynbeat/restore", {**fields, "change": "x"}).status == 400
    assert "Restore</button>" not in page_of(read_only, "user:42").text
    assert read_only.post("/dynbeat/restore", {**fields, "owner": "user:42"}).status == 403
    assert mine.get("n").description == "new"


def test_a_restore_that_is_refused_shows_why(mine, pages):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.delete("n")
    mine.create("n", task="t", trigger=MINUTELY)
    change = mine.changes("n", action="delete")[0]
    fields = {"owner": "user:42", "name": "n", "change": str(change.id), "confirmed": "yes"}

    answer = pages.post("/dynbeat/restore", {**fields, "next": f"{PAGE}?owner=user%3A42"})

    assert answer.status == 303
    assert "already has a schedule named" in page_of(pages, "user:42").text
