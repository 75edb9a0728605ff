"""The page "Beats and workers", and its actions."""

from datetime import timedelta

import pytest

from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.store import nodes
from tests.support.applications import START, execute

PAGE = "/dynbeat/nodes"
HOSTILE = '"><script>alert(1)</script>\u202e'
HOUR = timedelta(hours=1)


def register(dynbeat, kind, name, **fields):
    heartbeat = nodes.NodeHeartbeat(
        **{"kind": kind, "name": name, "pid": 7, "seen_at": START, "progressed_at": START, **fields}
    )
    dynbeat.context.database.run(
        lambda session: nodes.register(session, heartbeat=heartbeat, started_at=START)
    )


def test_an_empty_installation_says_what_to_start(pages):
    text = pages.get(PAGE).text

    assert "celery -A proj beat" in text
    assert "celery -A proj worker" in text
    assert "Nothing is held." in text


def test_each_node_has_a_card(dynbeat, pages):
    register(dynbeat, NodeKind.BEAT, "beat@a", notifier="polling")
    register(dynbeat, NodeKind.BEAT, "beat@b", error=HOSTILE, progressed_at=START - HOUR)
    register(dynbeat, NodeKind.WORKER, "w@a", queues='["mail", "default"]')

    text = pages.get(PAGE).text

    assert "<h3>beat@a</h3>" in text
    assert "db-chip-no_progress" in text
    assert "default, mail" in text
    assert "<script>alert" not in text
    assert "\u202e" not in text


def test_everything_is_held_after_a_confirmation_with_a_reason(dynbeat, pages):
    asked = pages.post("/dynbeat/hold", {"next": PAGE})
    assert "Hold all schedules?" in asked.text
    assert list(dynbeat.schedules.holds()) == []

    form = {"next": PAGE, "confirmed": "yes", "reason": " migration ", "until": "4 h"}
    answer = pages.post("/dynbeat/hold", form)

    [hold] = dynbeat.schedules.holds()
    assert (answer.status, answer.location) == (303, PAGE)
    assert (hold.owner, hold.actor, hold.reason) == (None, "alice", "migration")
    assert hold.until_at == START + 4 * HOUR
    assert "Everything is held until Sat 21 Nov 2026 13:00:00 +00." in pages.get(PAGE).text


@pytest.mark.parametrize(
    ("typed", "error"),
    [("tomorrow", "is not a time: write"), ("2020-01-01T00:00", "must be later than now")],
)
def test_a_wrong_end_is_an_error_and_holds_nothing(dynbeat, pages, typed, error):
    form = {"confirmed": "yes", "until_at": typed, "next": PAGE}

    pages.post("/dynbeat/hold", form)

    assert list(dynbeat.schedules.holds()) == []
    assert error in pages.get(PAGE).text


def test_a_release_ends_the_hold_of_one_scope(dynbeat, pages):
    dynbeat.schedules.hold(reason="all")
    dynbeat.schedules.for_owner("user:1", actor="bob").hold(reason="one")

    pages.post("/dynbeat/release", {"owner": "user:1"})

    assert [each.owner for each in dynbeat.schedules.holds()] == [None]
    assert "user:1 is released." in pages.get(PAGE).text
    pages.post("/dynbeat/release", {"owner": "user:1"})
    assert "user:1 was not held." in pages.get(PAGE).text


@pytest.mark.parametrize("prefix", ["", "monitor"])
@pytest.mark.parametrize("path", ["/dynbeat", "/dynbeat/"])
def test_the_address_without_a_page_leads_to_the_schedules(serve, prefix, path):
    pages = serve(url_prefix=prefix)
    before = f"/{prefix}" if prefix else ""

    answer = pages.get(f"{before}{path}")

    assert (answer.status, answer.location) == (302, f"{before}/dynbeat/schedules")
    assert pages.get(f"{before}/dynbeatx").status == 404


def test_problems_of_nodes_lead_to_their_cards(dynbeat, clock, pages):
    for kind, name in ((NodeKind.BEAT, "beat@a"), (NodeKind.WORKER, "w@a")):
        register(dynbeat, kind, name)
    clock.advance(HOUR / 2)
    register(dynbeat, NodeKind.BEAT, "beat@b", **alive(clock))
    register(dynbeat, NodeKind.WORKER, "w@b", **alive(clock), clock_offset=-120.04)
    register(dynbeat, NodeKind.WORKER, "w@c", **alive(clock), clock_offset=2.0)
    execute(dynbeat, f"UPDATE dynbeat_node SET started_at = '{START - HOUR:%Y-%m-%d %H:%M:%S}'")

    health, page = pages.get("/dynbeat/health").text, pages.get(PAGE).text

    for part in ("db-beats", "db-workers", "db-clock"):
        assert health.count(f'href="/dynbeat/nodes#{part}"') == 1
        assert page.count(f'id="{part}"') == 1
    card = page.partition('id="db-clock"')[2].partition("</section>")[0]
    assert "<h3>w@b</h3>" in card
    assert "120.0 s behind the clock of the database" in card
    assert page.count("the clock of the database") == 1


def alive(clock):
    return {"seen_at": clock.now(), "progressed_at": clock.now()}
