"""Alerts about beats and workers: they open once for any number of beats, and end."""

import os
from datetime import timedelta
from functools import partial

import pytest

from celery_dynbeat.alerts.alert_pass import DELAYS_EVERY
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.store import nodes
from tests.contract.alerting.conftest import evaluation

MINUTE = timedelta(minutes=1)


@pytest.fixture
def cluster(alerting, clock):
    """Give an application whose nodes send heartbeats while time passes."""
    made = alerting()
    made.alive = {}
    passes = [made.alerts, evaluation(made.dynbeat)]
    database = made.dynbeat.context.database

    def heartbeat(name):
        kind, offset = made.alive[name]
        values = nodes.NodeHeartbeat(
            kind=kind, name=name, pid=os.getpid(), seen_at=clock.now(), clock_offset=offset
        )
        if not database.run(partial(nodes.refresh, heartbeat=values)):
            database.run(partial(nodes.register, heartbeat=values, started_at=clock.now()))

    def start(name, kind=NodeKind.BEAT, offset=None):
        made.alive[name] = (kind, offset)

    def live_for(duration, every=DELAYS_EVERY):
        end = clock.now() + duration
        while clock.now() < end:
            clock.advance(every)
            for name in made.alive:
                heartbeat(name)
            for each in passes:
                each.run()

    def stop(name):
        kind, _ = made.alive.pop(name)
        identity = {"kind": kind, "name": name, "pid": os.getpid()}
        database.run(partial(nodes.deregister, **identity, now=clock.now()))

    made.start, made.stop, made.live_for = start, stop, live_for
    made.kill = made.alive.pop
    for name in ("b1", "b2"):
        start(name)
    start("w1", NodeKind.WORKER)
    live_for(10 * MINUTE, every=MINUTE)
    return made


def test_a_killed_beat_is_an_alert_until_another_one_starts(cluster, reported):
    cluster.kill("b2")
    cluster.live_for(3 * MINUTE)

    (row,) = cluster.stored()
    assert (row.kind, row.owner, row.name, row.target) == ("beats_missing", "", "", "default")
    assert (row.fact_count, row.unsent, row.value) == (1, "opened", 1)
    assert "b2 (last heartbeat" in row.detail
    cluster.start("b3")
    cluster.live_for(MINUTE)

    assert cluster.open() == []
    assert [(name, event.kind) for name, event in reported] == [
        ("alert_opened", "beats_missing"),
        ("alert_recovered", "beats_missing"),
    ]


def test_a_clean_stop_and_a_rolling_restart_are_no_alert(cluster):
    cluster.start("b3")
    cluster.stop("b1")
    cluster.live_for(5 * MINUTE)
    cluster.stop("w1")
    cluster.live_for(5 * MINUTE)

    assert cluster.stored() == []


def test_an_outage_of_the_database_is_no_alert(cluster, clock):
    clock.advance(10 * MINUTE)
    beats = [cluster.alerts, evaluation(cluster.dynbeat)]
    # Their alerts are evaluated before the first heartbeats.
    for each in beats:
        each.run()
    cluster.live_for(5 * MINUTE)

    assert cluster.stored() == []


def test_a_worker_that_died_long_ago_ends_its_alert_without_a_message(cluster):
    cluster.start("w2", NodeKind.WORKER)
    cluster.live_for(MINUTE)
    cluster.kill("w2")
    cluster.live_for(3 * MINUTE)
    (row,) = cluster.stored()
    assert (row.kind, row.recovered_at) == (AlertKind.WORKERS_MISSING, None)
    cluster.dynbeat.context.database.run(mark_sent)
    cluster.live_for(65 * MINUTE, every=5 * MINUTE)

    (row,) = cluster.stored()
    assert row.recovered_at is not None
    assert row.unsent is None


def mark_sent(session):
    session.connection().exec_driver_sql("UPDATE dynbeat_alert SET unsent=NULL, unsent_at=NULL")


def test_a_wrong_clock_is_an_alert_until_it_is_right(cluster):
    cluster.start("w1", NodeKind.WORKER, offset=120.0)
    cluster.live_for(2 * MINUTE)
    (row,) = cluster.stored()
    assert row.kind == "clocks_differ"
    assert "w1 (+120.0 s)" in row.detail
    cluster.start("w1", NodeKind.WORKER, offset=0.1)
    cluster.live_for(MINUTE)

    assert cluster.open() == []


def test_a_snoozed_alert_about_nodes_is_reported_once_when_the_snooze_ends(cluster, clock):
    calls = cluster.dynbeat.schedules
    cluster.kill("b2")
    cluster.live_for(3 * MINUTE)
    (alert,) = calls.alerts()
    calls.snooze_alert(alert.id, until=clock.now() + MINUTE)

    cluster.live_for(MINUTE - DELAYS_EVERY)
    assert calls.alerts()[0].message_status is None
    cluster.live_for(DELAYS_EVERY)
    assert calls.alerts()[0].message_status == "unsent"
    calls.acknowledge_alert(alert.id)
    cluster.live_for(MINUTE)
    assert calls.alerts()[0].message_status is None
    assert [each.action for each in calls.changes(limit=2)] == ["acknowledge_alert", "snooze_alert"]
