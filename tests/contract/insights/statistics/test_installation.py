"""The page of beats and workers: nodes, lag, holds and requests."""

from datetime import timedelta

import pytest

from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.nodes import NodeState
from celery_dynbeat.insights import installation
from celery_dynbeat.insights.installation import banners
from celery_dynbeat.store import nodes
from tests.support.applications import START

MINUTE = timedelta(minutes=1)


@pytest.fixture
def node(dynbeat, clock):
    """Return a function that registers a node that works."""

    def register(kind, name, **fields):
        now = clock.now()
        values = {"pid": 1, "seen_at": now, "progressed_at": now, **fields}
        heartbeat = nodes.NodeHeartbeat(kind=kind, name=name, **values)
        dynbeat.context.database.run(
            lambda session: nodes.register(session, heartbeat=heartbeat, started_at=now)
        )

    return register


def nodes_of(dynbeat):
    return installation.nodes(dynbeat.context)


def test_nodes_have_their_state(dynbeat, clock, node):
    outage = '[{"kind": "queue", "name": "q", "since": "2026-11-21", "error": "no"}]'
    node(NodeKind.BEAT, "old", error="broken")
    node(NodeKind.WORKER, "stopped", queues='["mail", "celery"]')
    dynbeat.context.database.run(
        lambda session: nodes.deregister(
            session, kind=NodeKind.WORKER, name="stopped", pid=1, now=clock.now()
        )
    )
    clock.advance(10 * MINUTE)
    node(NodeKind.BEAT, "new", notifier="postgresql", outages=outage)
    node(NodeKind.BEAT, "starting", progressed_at=None)
    node(NodeKind.WORKER, "w", queues=None)

    found = nodes_of(dynbeat)

    states = {each.row.name: (each.state, each.is_alive) for each in found}
    assert states == {
        "new": (NodeState.WORKING, True),
        "starting": (NodeState.STARTING, True),
        "old": (NodeState.GONE, False),
        "w": (NodeState.WORKING, True),
        "stopped": (NodeState.STOPPED, False),
    }
    new, _, old, *workers = found
    assert [each.name for each in new.outages] == ["q"]
    assert (new.row.notifier, old.row.error, old.row.seen_at) == ("postgresql", "broken", START)
    assert [each.queues for each in workers] == [None, {"mail", "celery"}]
    clock.advance(61 * MINUTE)
    assert nodes_of(dynbeat) == []


def test_the_banner_says_since_when_no_beat_is_alive(dynbeat, clock, node):
    node(NodeKind.WORKER, "w")
    node(NodeKind.BEAT, "killed")
    clock.advance(MINUTE)
    node(NodeKind.BEAT, "stopped")
    clock.advance(timedelta(seconds=5))
    assert banners(dynbeat.context).is_any_beat_alive
    stopped_at = clock.now()
    dynbeat.context.database.run(
        lambda session: nodes.deregister(
            session, kind=NodeKind.BEAT, name="stopped", pid=1, now=stopped_at
        )
    )
    clock.advance(10 * MINUTE)

    found = banners(dynbeat.context)

    assert (found.is_any_beat_alive, found.last_beat_seen_at) == (False, stopped_at)


def test_the_banner_names_a_beat_that_died_while_another_works(dynbeat, clock, node):
    node(NodeKind.BEAT, "one")
    node(NodeKind.BEAT, "other")
    clock.advance(10 * MINUTE)
    send_heartbeat(dynbeat, clock, "one")
    found = banners(dynbeat.context)

    assert [(each.name, each.seen_at) for each in found.dead_beats] == [("other", START)]
    assert found.is_any_beat_alive
    clock.advance(timedelta(hours=2))
    send_heartbeat(dynbeat, clock, "one")
    assert banners(dynbeat.context).dead_beats == []


def send_heartbeat(dynbeat, clock, name):
    """Write a heartbeat of a beat that was registered before."""
    now = clock.now()
    heartbeat = nodes.NodeHeartbeat(
        kind=NodeKind.BEAT, name=name, pid=1, seen_at=now, progressed_at=now
    )
    dynbeat.context.database.run(lambda session: nodes.refresh(session, heartbeat=heartbeat))
