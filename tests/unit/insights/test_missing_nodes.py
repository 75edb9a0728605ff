"""Which beats and workers are missing, and whose clocks differ."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.common.infos import ZERO
from celery_dynbeat.db.models import Node, NodeKind
from celery_dynbeat.health.checks import HealthReport, evaluate
from celery_dynbeat.health.nodes import Limits, missing_nodes, seen
from celery_dynbeat.store.health import Tables

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
OLD = 60


def node(name, *, started=OLD, seen=0, stopped=None, kind=NodeKind.BEAT, offset=None):
    """Return a node; its instants are in minutes before NOW."""
    return Node(
        kind=kind,
        name=name,
        started_at=NOW - started * MINUTE,
        seen_at=NOW - (seen if stopped is None else stopped) * MINUTE,
        stopped_at=None if stopped is None else NOW - stopped * MINUTE,
        clock_offset=offset,
    )


def limits(expected=None):
    numbers = {NodeKind.BEAT: expected}
    return Limits(node_timeout=MINUTE, lag=MINUTE, overdue=MINUTE, expected=numbers)


def missing(nodes, expected=None):
    states = seen(nodes, now=NOW, timeout=MINUTE)
    return missing_nodes(states, NodeKind.BEAT, now=NOW, limits=limits(expected))


KILLED = node("killed", seen=5)
CASES = {
    "a killed beat": (None, [node("a"), KILLED], 1),
    "all are killed": (None, [KILLED, node("w", kind=NodeKind.WORKER)], 1),
    "a killed worker is no beat": (None, [node("a"), node("w", kind=NodeKind.WORKER, seen=5)], 0),
    "a killed beat that was replaced": (None, [node("a"), KILLED, node("b", started=4)], 0),
    "one replacement of two": (
        None,
        [node("a"), KILLED, node("second", seen=6), node("b", started=4)],
        1,
    ),
    "started before the kill": (None, [node("a", started=6), node("old"), KILLED], 1),
    "replaced, then scaled down": (
        None,
        [node("a"), KILLED, node("b", started=4, stopped=3)],
        0,
    ),
    "a clean stop": (None, [node("a"), node("b", stopped=30)], 0),
    "a heartbeat is a little late": (None, [node("a"), node("b", seen=1)], 0),
    "all nodes have just started": (None, [node("a", started=1), KILLED], 0),
    "fewer than expected": (2, [node("a"), node("b", stopped=30)], 1),
    "fewer than expected, killed": (3, [node("a"), KILLED], 2),
    "a rolling restart": (2, [node("a"), node("b", stopped=1)], 0),
    "as many as expected": (2, [node("a"), node("b"), KILLED], 0),
    "no expectation of beats": (0, [node("a"), KILLED], 0),
    "expected nodes that start": (2, [node("a", started=1)], 0),
}


@pytest.mark.parametrize(("expected", "nodes", "number"), CASES.values(), ids=CASES)
def test_the_number_of_missing_beats(expected, nodes, number):
    found = missing(nodes, expected)

    assert (0 if found is None else found.number) == number


def test_a_wrong_clock_of_a_living_node_is_a_warning():
    worker = NodeKind.WORKER
    nodes = [
        node("ahead", kind=worker, offset=120.0),
        node("behind", offset=-6.0),
        node("right", offset=0.5),
        node("unknown"),
        node("dead", offset=99.0, seen=5),
    ]

    assert clock_warnings(nodes) == [
        "clocks differ from the clock of the database: behind (-6.0 s), ahead (+120.0 s)"
    ]
    assert clock_warnings(nodes[2:]) == []


def clock_warnings(nodes):
    tables = Tables(
        **{
            **dict.fromkeys(Tables.__slots__, ()),
            "nodes": nodes,
            "runs": defaultdict(lambda: ZERO),
            **dict.fromkeys(("due", "quarantined", "overdue", "refused", "failing"), ZERO),
            **dict.fromkeys(("oldest_due_at", "overdue_since", "application", "tz_release")),
            "holds": ZERO,
        }
    )
    report = HealthReport(now=NOW, tables=tables, limits=limits())
    return [each.text for each in evaluate(report).warnings if each.code == "clocks_differ"]
