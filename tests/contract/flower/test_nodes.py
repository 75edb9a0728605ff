"""The page "Beats and workers", and its actions."""

from datetime import timedelta

from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.store import nodes
from tests.support.applications import START

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


def test_a_release_ends_the_hold_of_one_scope(dynbeat, pages):
    dynbeat.schedules.hold(reason="all")
    dynbeat.schedules.for_owner("user:1", actor="bob").hold(reason="one")

    pages.post("/dynbeat/release", {"owner": "user:1"})

    assert [each.owner for each in dynbeat.schedules.holds()] == [None]
    assert "user:1 is released." in pages.get(PAGE).text
    pages.post("/dynbeat/release", {"owner": "user:1"})
    assert "user:1 was not held." in pages.get(PAGE).text
