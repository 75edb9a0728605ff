"""The facts behind an explanation are read from the tables of any database."""

import json
from datetime import timedelta

import pytest

from celery_dynbeat import InvalidTriggerError, NotFoundError
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.insights.explain.reading import explain
from celery_dynbeat.store import nodes
from tests.support.applications import MINUTELY, START, execute

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@pytest.fixture
def node(dynbeat, clock):
    """Return a function that registers a node that works."""

    def register(kind, name, **fields):
        heartbeat = nodes.NodeHeartbeat(
            kind=kind, name=name, pid=1, seen_at=clock.now(), progressed_at=clock.now(), **fields
        )
        dynbeat.context.database.run(
            lambda session: nodes.register(session, heartbeat=heartbeat, started_at=clock.now())
        )

    return register


@pytest.fixture
def why(dynbeat, node):
    """Return a function that explains a schedule while a beat works."""

    def explained(name="n", **options):
        node(NodeKind.BEAT, "beat@a")
        return explain(dynbeat.context, owner="user:42", name=name, **options)

    return explained


def test_a_schedule_before_its_first_fire_time(mine, why):
    mine.create("n", task="t", trigger=MINUTELY)

    found = why()

    assert (found.cause, found.runs) == ("not_fired_yet", [])
    assert [each.fire_at for each in found.next] == [START + n * MINUTE for n in range(1, 6)]
    assert [each.name for each in found.beats] == ["beat@a"]


def test_who_paused_it_comes_from_the_audit(dynbeat, mine, clock, why):
    mine.create("n", task="t", trigger=MINUTELY)
    with dynbeat.acting(actor="alice"):
        mine.pause("n", reason="holiday")
    clock.advance(2 * timedelta(hours=1))

    assert why().sentence == "It does not run: alice paused it 2 h ago because of 'holiday'."


def test_a_hold_of_the_owner_or_of_everything(dynbeat, mine, why):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="a")
    dynbeat.schedules.for_owner("other").hold(reason="b")

    assert [hold.reason for hold in why().holds] == ["a"]
    mine.release()
    dynbeat.schedules.hold(reason="c")
    assert (why().cause, why().holds[0].owner) == ("held", None)


def test_a_message_in_a_queue_without_a_worker(mine, clock, beat, node, why):
    mine.create("n", task="t", trigger=MINUTELY, queue="reports")
    clock.advance(MINUTE)
    beat.run_until_idle()
    node(NodeKind.WORKER, "celery@a", queues=json.dumps(["celery"]), tasks=json.dumps(["t"]))

    found = why()

    assert (found.cause, found.queue, found.workers) == ("no_worker_for_queue", "reports", [])
    node(NodeKind.WORKER, "celery@b", queues=json.dumps(["reports"]), tasks=json.dumps(["u"]))
    assert why().cause == "task_not_registered"
    node(NodeKind.WORKER, "celery@c", queues=json.dumps(["reports"]), tasks=json.dumps(["t"]))
    assert why().cause == "waits_in_queue"
    assert {each.name for each in why().workers} == {"celery@c", "celery@b"}


@pytest.mark.parametrize("window", ["abc", "NaN"])
def test_a_damaged_window_is_named_until_an_update_replaces_it(dynbeat, mine, why, window):
    mine.create("n", task="t", trigger=MINUTELY, window=60)
    column = dynbeat.context.database.engine.dialect.identifier_preparer.quote("window")
    execute(dynbeat, f"UPDATE dynbeat_schedule SET {column} = '{window}'")

    found = why()

    assert (found.cause, found.next) == ("trigger_unreadable", [])
    assert f"window = '{window}'" in found.sentence
    with pytest.raises(InvalidTriggerError, match=r"another window with update\(\)"):
        mine.upcoming("n")
    mine.update("n", window=5)
    assert len(why(count=2).next) == 2


def test_an_unknown_name_and_another_owner_are_not_found(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    for owner, name in (("user:42", "x"), ("user:7", "n")):
        with pytest.raises(NotFoundError):
            explain(dynbeat.context, owner=owner, name=name)
