"""What surrounds each page: banners, messages, errors."""

import threading
from datetime import timedelta

import pytest

from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.store import nodes
from tests.support.applications import START, execute

PAGE = "/dynbeat/schedules"
HOSTILE = "<script>alert(1)</script>\u202e&"


def register_beat(dynbeat, at):
    heartbeat = nodes.NodeHeartbeat(
        kind=NodeKind.BEAT, name="beat@a", pid=1, seen_at=at, progressed_at=at
    )
    dynbeat.context.database.run(
        lambda session: nodes.register(session, heartbeat=heartbeat, started_at=at)
    )


def test_a_page_says_since_when_no_beat_is_alive(dynbeat, pages, clock):
    register_beat(dynbeat, START)
    assert "No beat" not in pages.get(PAGE).text

    clock.advance(timedelta(hours=2))

    assert "No beat has been alive since" in pages.get(PAGE).text
    assert "Sat 21 Nov 2026 09:00:00 +00" in pages.get(PAGE).text


def test_a_page_shows_who_holds_everything_and_why(dynbeat, pages):
    with dynbeat.acting(actor=HOSTILE):
        dynbeat.schedules.hold(reason=HOSTILE)

    text = pages.get(PAGE).text

    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;\\u202e&amp;") == 2


def test_a_message_is_shown_once(dynbeat, pages):
    dynbeat.schedules.hold(reason="x")
    pages.post("/dynbeat/release", {"confirmed": "yes"})

    assert "Everything is released." in pages.get(PAGE).text
    assert "Everything is released." not in pages.get(PAGE).text


def test_a_message_cannot_be_forged(pages):
    pages.get(PAGE)
    pages.cookies["dynbeat_message"] = '{"text": "forged", "kind": "danger"}'

    assert "forged" not in pages.get(PAGE).text


def test_a_database_that_fails_is_a_page_without_details(dynbeat, pages):
    execute(dynbeat, "ALTER TABLE dynbeat_hold RENAME TO gone")

    answer = pages.get(PAGE)

    assert answer.status == 503
    assert "The database cannot be used." in answer.text
    assert "dynbeat_hold" not in answer.text


def test_a_slow_database_call_ends_in_an_error_and_others_go_through(dynbeat, serve, monkeypatch):
    blocked, release = threading.Event(), threading.Event()
    now = dynbeat.context.clock.now

    def hanging():
        if not blocked.is_set():
            blocked.set()
            release.wait(30)
        return now()

    client = serve(dynbeat_query_timeout=0.5)
    monkeypatch.setattr(dynbeat.context.clock, "now", hanging)
    try:
        assert client.get(PAGE).status == 503
        assert client.get(PAGE).status == 200
    finally:
        release.set()


def test_an_action_that_times_out_says_that_it_may_be_carried_out(dynbeat, serve, monkeypatch):
    started, release = threading.Event(), threading.Event()
    now = dynbeat.context.clock.now

    def hanging():
        started.set()
        release.wait(30)
        return now()

    client = serve(dynbeat_query_timeout=0.5, dynbeat_unauthenticated_writes=True)
    client.token()
    monkeypatch.setattr(dynbeat.context.clock, "now", hanging)
    try:
        answer = client.post("/dynbeat/hold", {"confirmed": "yes", "next": "/dynbeat/nodes"})
    finally:
        release.set()

    assert (started.is_set(), answer.status) == (True, 503)
    assert "Check whether the action took effect" in answer.text
    assert 'href="/dynbeat/nodes">Back</a>' in answer.text


ATTACKS = (
    "&".join(f"a{number}=" for number in range(980)),
    f"a={'x' * 10_000}",
    f"zone={'x' * 60_000}",
    f"size=100&zone={'x' * 250}",
    f"size={'x' * 250}",
    "&".join(["owner=user:1"] * 500),
    f"after={'x' * 14_000}",
)


@pytest.mark.parametrize("query", ATTACKS, ids=range(len(ATTACKS)))
@pytest.mark.parametrize("path", [PAGE, "/dynbeat/timeline", "/dynbeat/runs"])
def test_no_argument_of_a_url_makes_a_page_large(dynbeat, pages, path, query):
    for number in range(30):
        dynbeat.schedules.for_owner("user:1").create(
            f"digest {number}", task="t", trigger="0 9 * * *", tags=["a", "b"]
        )
    usual = len(pages.get(f"{path}?owner=user:1").text)

    answer = pages.get(f"{path}?{query}&owner=user:1")

    assert answer.status in {200, 400}
    assert len(answer.text) < 2 * usual + 250_000


@pytest.mark.parametrize("name", ["page.js%00", "..%2fhandler.py", "no.js"])
def test_an_unknown_static_file_is_not_found(pages, name):
    assert pages.get(f"/dynbeat/static/{name}").status == 404
    assert pages.get("/dynbeat/static/page.js").status == 200


@pytest.mark.parametrize(
    ("fetch", "query", "status"),
    [
        ({"Site": "cross-site", "Dest": "image"}, "", 403),
        ({"Site": "same-site", "Dest": "iframe"}, "", 403),
        ({"Site": "cross-site", "Dest": "document"}, "owner=user:1", 200),
        ({"Site": "cross-site", "Dest": "document"}, f"owner={'x' * 2_000}", 403),
        ({"Site": "same-origin", "Dest": "empty"}, "owner=user:1", 200),
        ({"Site": "none", "Dest": "document"}, "", 200),
    ],
)
def test_another_site_can_only_link_to_a_page(pages, fetch, query, status):
    headers = {f"Sec_Fetch_{name}": value for name, value in fetch.items()}

    assert pages.get(f"{PAGE}?{query}", **headers).status == status
