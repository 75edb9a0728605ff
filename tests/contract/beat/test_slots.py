"""Limits on the runs of an owner: max_running and max_starts_per_minute."""

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Once
from celery_dynbeat.api.usage import usage_of
from celery_dynbeat.beat import maintenance
from celery_dynbeat.beat.admission import admit_waiting
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.db.slot_models import Slot, SlotScope
from celery_dynbeat.insights.explain.collect import explain
from celery_dynbeat.insights.explain.findings import Cause
from celery_dynbeat.planning.admission import LOST_KEPT
from celery_dynbeat.store import nodes, slots
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.ended_runs import end, end_all, start
from tests.support.lock_waits import failing_waits
from tests.support.worker_stub import WorkerStub

DUE = START + timedelta(minutes=1)
SECOND = timedelta(seconds=1)
OWNER = "user:42"
#: No worker of these tests counts as dead.
LONG = timedelta(days=1)


@pytest.fixture
def limited(database_url, clock):
    """Return a function that yields the Dynbeat of an application with these settings."""
    made = []

    def make(**settings):
        context = application(database_url, clock=clock, **settings)
        made.append(context)
        dynbeat = context.__enter__()
        dynbeat.context.prepare()
        return dynbeat

    yield make
    for context in reversed(made):
        context.__exit__(None, None, None)


def create(dynbeat, count, *, owner=OWNER, at=DUE, **fields):
    dynbeat.schedules.create_many(
        [
            {"owner": owner, "name": f"n{n:05}", "task": "t", "trigger": Once(at), **fields}
            for n in range(count)
        ]
    )


def names(beat):
    return [run.name for run in beat.publisher.sent]


def statuses(dynbeat, **filters):
    return Counter(run.status for run in dynbeat.schedules.runs(limit=200, **filters).items)


def end_running(dynbeat):
    for run in dynbeat.schedules.runs(limit=200, status="running").items:
        end(dynbeat, run.id, "succeeded")


def test_runs_over_the_cap_wait_and_start_when_a_run_ends(limited, clock):
    dynbeat = limited(max_running_per_owner=2)
    create(dynbeat, 5)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)

    beat.run_until_idle()
    assert sorted(names(beat)) == ["n00000", "n00001"]
    assert statuses(dynbeat) == {"sent": 2, "pending": 3}

    for ended in range(3):
        run = beat.publisher.sent[ended]
        start(dynbeat, run.run_id)
        clock.advance(SECOND)
        beat.run_until_idle()
        assert len(beat.publisher.sent) == 2 + ended
        end(dynbeat, run.run_id, "succeeded")
        beat.run_until_idle()
        assert len(beat.publisher.sent) == 3 + ended


def test_a_waiting_run_is_never_overdue(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 2)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    for _ in range(5):
        clock.advance(timedelta(hours=1))
        beat.run_until_idle()

    # The run that has the slot is sent again.
    assert set(names(beat)) == {"n00000"}


def test_starts_are_counted_over_a_minute(limited, clock):
    dynbeat = limited(max_starts_per_minute_per_owner=3)
    create(dynbeat, 7)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    sent = []
    for _ in range(3):
        for _ in range(60):
            beat.run_until_idle()
            for run in beat.publisher.sent[sum(sent) :]:
                if start(dynbeat, run.run_id):
                    end(dynbeat, run.run_id, "succeeded")
            clock.advance(SECOND)
        sent.append(len(beat.publisher.sent) - sum(sent))

    assert sent == [3, 3, 1]


def test_other_owners_do_not_wait(limited, clock):
    dynbeat = limited(owner_limits={OWNER: {"max_running": 1}})
    create(dynbeat, 20)
    create(dynbeat, 3, owner="user:43")
    create(dynbeat, 3, owner="")
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)

    beat.run_until_idle()

    assert Counter(run.owner for run in beat.publisher.sent) == {OWNER: 1, "user:43": 3, "": 3}


def test_the_owners_of_a_group_take_turns_within_the_limit_of_the_group(limited, clock):
    limits = {"org:7/": {"max_running": 2}, "org:7/user:1": {"max_running": 1}}
    dynbeat = limited(owner_limits=limits)
    for user in (1, 2, 3):
        create(dynbeat, 4, owner=f"org:7/user:{user}")
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    for number in range(12):
        run = beat.publisher.sent[number]
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "succeeded")
        clock.advance(SECOND)
        beat.run_until_idle()
        assert len(beat.publisher.sent) == min(12, number + 3)

    owners = [run.owner[-1] for run in beat.publisher.sent]
    # Two runs of one pass are sent in any order.
    assert sorted(owners[:2]) == ["1", "2"]
    assert owners[2:] == ["3", *"123" * 3]


def test_a_waiting_run_expires(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 3, expires_after=30)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    start(dynbeat, beat.publisher.sent[0].run_id)
    dynbeat.schedules.for_owner(OWNER).update("n00002", expires_after=600)

    clock.advance(timedelta(seconds=31))
    beat.run_until_idle()

    assert [run.status for run in dynbeat.schedules.for_owner(OWNER).runs("n00001").items] == [
        "expired"
    ]
    assert statuses(dynbeat) == {"running": 1, "expired": 1, "pending": 1}
    end(dynbeat, beat.publisher.sent[0].run_id, "succeeded")
    beat.run_until_idle()
    assert names(beat) == ["n00000", "n00002"]


def test_a_pause_revokes_waiting_runs_and_the_next_one_gets_the_slot(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 4)
    mine = dynbeat.schedules.for_owner(OWNER)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    mine.pause("n00001")
    mine.delete("n00002")
    first = beat.publisher.sent[0]
    start(dynbeat, first.run_id)
    end(dynbeat, first.run_id, "failed")
    beat.run_until_idle()

    assert names(beat) == ["n00000", "n00003"]
    assert statuses(dynbeat) == {"failed": 1, "revoked": 2, "sent": 1}


def test_a_schedule_that_sql_deletes_leaks_no_slot(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 3)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    execute(dynbeat, "DELETE FROM dynbeat_schedule WHERE name IN ('n00000', 'n00001')")
    first = beat.publisher.sent[0]
    start(dynbeat, first.run_id)
    end(dynbeat, first.run_id, "succeeded")
    for _ in range(3):
        beat.run_until_idle()
        clock.advance(SECOND)

    assert names(beat) == ["n00000", "n00002"]


def test_a_manual_run_a_rerun_and_a_backfill_need_a_slot(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    mine = dynbeat.schedules.for_owner(OWNER)
    create(dynbeat, 1)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    first = beat.publisher.sent[0].run_id
    start(dynbeat, first)
    end(dynbeat, first, "failed")
    mine.run_now("n00000")
    mine.rerun(first)
    for number in range(1, 3):
        beat.run_until_idle()
        assert len(beat.publisher.sent) == number + 1
        run_id = beat.publisher.sent[number].run_id
        start(dynbeat, run_id)
        beat.run_until_idle()
        end(dynbeat, run_id, "succeeded")

    assert {run.origin for run in beat.publisher.sent} == {"schedule", "manual", "rerun"}


@pytest.mark.parametrize("left", [{"owner_limits": {}}, {}])
def test_a_removed_limit_lets_all_waiting_runs_start(limited, clock, left):
    dynbeat = limited(owner_limits={OWNER: {"max_running": 1}})
    create(dynbeat, 5)
    clock.move_to(DUE)
    ManualBeat(dynbeat).run_until_idle()

    beat = ManualBeat(limited(**left))
    beat.run_until_idle()

    assert sorted(names(beat)) == ["n00001", "n00002", "n00003", "n00004"]


def test_beat_without_the_setting_sends_the_waiting_runs_of_another_process(limited, clock):
    beat = ManualBeat(limited())
    beat.run_until_idle()
    process = limited(max_running_per_owner=1)
    create(process, 1, at=DUE + timedelta(days=1))
    mine = process.schedules.for_owner(OWNER)
    mine.run_now("n00000")
    mine.run_now("n00000")

    clock.advance(timedelta(seconds=30))
    beat.run_until_idle()

    assert len(beat.publisher.sent) == 2


def test_waiting_runs_keep_waiting_while_the_limits_are_not_known(limited, clock):
    answers = [None]

    def limits_of(name):
        del name
        if answers:
            return {"max_running": 1}
        raise ConnectionError

    dynbeat = limited(owner_limits=limits_of)
    create(dynbeat, 4)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    answers.clear()
    first = beat.publisher.sent[0].run_id
    start(dynbeat, first)
    end(dynbeat, first, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()
    assert len(beat.publisher.sent) == 1

    answers.append(None)
    clock.advance(SECOND)
    beat.run_until_idle()
    assert len(beat.publisher.sent) == 2


def test_a_buffered_run_does_not_wait_for_a_run_that_waits_for_its_slot(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("a", task="t", trigger="PT1M", overlap="buffer_one")
    beat = ManualBeat(dynbeat)
    for _ in range(3):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    for number in range(2):
        assert len(beat.publisher.sent) == number + 1
        run_id = beat.publisher.sent[number].run_id
        start(dynbeat, run_id)
        end(dynbeat, run_id, "succeeded")
        beat.run_until_idle()

    assert len(beat.publisher.sent) == 2


def test_a_scope_that_another_beat_has_locked_admits_nothing(limited, clock, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 2)
    mine = dynbeat.schedules.for_owner(OWNER)
    # Recorded without a pass.
    mine.run_now("n00000")
    mine.run_now("n00001")
    admit_all = partial(admit_waiting, now=clock.now(), settings=dynbeat.context.settings)
    database = dynbeat.context.database
    database.run(partial(slots.lock_scopes, names=[OWNER]))

    def admit_meanwhile(session):
        slots.lock_scopes(session, [OWNER])
        return database.run(admit_all).admitted

    assert database.run(admit_meanwhile) == 0
    assert database.run(admit_all).admitted == 1
    assert database.run(admit_all).admitted == 0


def test_the_owners_of_a_large_group_take_turns(limited, clock, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.beat.admission.MAX_OWNERS", 2)
    dynbeat = limited(owner_limits={"org:7/": {"max_running": 1}})
    for user in "abc":
        create(dynbeat, 3, owner=f"org:7/{user}")
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    for number in range(9):
        clock.advance(SECOND)
        beat.run_until_idle()
        run = beat.publisher.sent[number]
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "succeeded")

    assert [run.owner[-1] for run in beat.publisher.sent] == [*"abc" * 3]


def test_a_backfill_comes_after_the_fire_times_of_its_owner(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("a", task="t", trigger="* * * * *")
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    mine.backfill("a", since=START - timedelta(minutes=5), until=START)
    beat.run_until_idle()
    clock.advance(timedelta(minutes=1))
    for number in range(6):
        clock.advance(SECOND)
        beat.run_until_idle()
        run = beat.publisher.sent[number]
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "succeeded")

    assert [run.origin for run in beat.publisher.sent] == [
        "backfill",
        "schedule",
        *["backfill"] * 4,
    ]


def test_the_batches_of_a_backfill_include_runs_that_wait(limited, clock):
    dynbeat = limited(max_running_per_owner=2)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("n", task="t", trigger=Cron("* * * * *"))
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    hour_ago = START - timedelta(hours=1)
    request = mine.backfill("n", since=hour_ago, until=START, batch_size=5)
    beat.run_until_idle()

    found = mine.get_request(request.id)
    assert (found.total, found.created, found.excluded) == (60, 5, 0)
    assert statuses(dynbeat) == {"sent": 2, "pending": 3}
    mine.cancel_request(request.id)
    clock.advance(10 * SECOND)
    beat.run_until_idle()
    assert statuses(dynbeat) == {"revoked": 5}


def test_the_batches_of_a_rerun_include_runs_that_wait(limited, clock):
    dynbeat = limited()
    create(dynbeat, 20)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    for run in beat.publisher.sent:
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "failed")
    clock.advance(SECOND)
    dynbeat = limited(max_running_per_owner=2)
    beat = ManualBeat(dynbeat)
    mine = dynbeat.schedules.for_owner(OWNER)
    request = mine.rerun_many(since=START, batch_size=5)
    for _ in range(10):
        clock.advance(SECOND)
        beat.run_until_idle()

    found = mine.get_request(request.id)
    assert (found.total, found.created, found.excluded) == (20, 5, 0)
    assert statuses(dynbeat, origin="rerun") == {"sent": 2, "pending": 3}
    mine.cancel_request(request.id)
    assert statuses(dynbeat, origin="rerun") == {"revoked": 5}


def test_owners_at_their_own_limits_do_not_block_the_others_of_a_large_group(
    limited, clock, monkeypatch
):
    monkeypatch.setattr("celery_dynbeat.beat.admission.MAX_OWNERS", 3)
    dynbeat = limited(max_running_per_owner=1, owner_limits={"g/": {"max_running": 100}})
    for number in range(8):
        create(dynbeat, 2, owner=f"g/{number}")
    create(dynbeat, 1, owner="g/6x", at=DUE + SECOND)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    for _ in range(20):
        beat.run_until_idle()
        clock.advance(SECOND)

    # One run of each owner, although none of them has ended.
    assert sorted(run.owner for run in beat.publisher.sent) == [
        *(f"g/{n}" for n in range(7)),
        "g/6x",
        "g/7",
    ]


def test_the_rows_of_ended_slots_are_deleted(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 3)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    for number in range(3):
        beat.run_until_idle()
        run = beat.publisher.sent[number]
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "succeeded")
        clock.advance(SECOND)
    beat.run_until_idle()

    assert execute(dynbeat, "DELETE FROM dynbeat_slot") <= 1


def tables(dynbeat):
    """Return the owners with slots and the names of scopes, and whether slots are in use."""

    def read(session):
        owners = session.execute(select(Slot.owner, Slot.admitted_at.is_not(None)))
        return sorted(map(tuple, owners)), sorted(session.scalars(select(SlotScope.name)))

    return dynbeat.context.database.read(read)


def test_without_waiting_runs_beat_prunes_the_slots_of_ended_runs(limited, clock, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.beat.maintenance.BATCH_SIZE", 2)
    monkeypatch.setattr("celery_dynbeat.beat.maintenance.SCOPE_BATCH_SIZE", 1)
    limits = {"busy/": {"max_running": 1}, "done/": {"max_running": 5}}
    dynbeat = limited(max_running_per_owner=5, owner_limits=limits, node_timeout=LONG)
    for owner in ("busy/a", "done/a", "gone", "u1", "u2"):
        create(dynbeat, 2, owner=owner)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    for run in beat.publisher.sent:
        start(dynbeat, run.run_id)
        if run.owner != "busy/a":
            end(dynbeat, run.run_id, "succeeded")
    execute(dynbeat, "DELETE FROM dynbeat_run WHERE owner = 'gone'")
    assert tables(dynbeat)[1] == ["busy/", "done/", "gone", "u1", "u2"]

    # Other statements do not delete these rows: only runs of a busy owner wait.
    for _ in range(30):
        clock.advance(maintenance.SCAN_INTERVAL / 20)
        beat.run_until_idle()

    assert tables(dynbeat) == ([("busy/a", False), ("busy/a", True)], ["busy/"])


def test_a_waiting_run_that_was_revoked_leaves_no_slot(limited, clock):
    dynbeat = limited(max_running_per_owner=1, node_timeout=LONG)
    create(dynbeat, 3)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    start(dynbeat, beat.publisher.sent[0].run_id)
    dynbeat.schedules.for_owner(OWNER).pause("n00002")

    clock.advance(2 * maintenance.FIRST_DELAY)
    beat.run_until_idle()

    assert tables(dynbeat)[0] == [(OWNER, False), (OWNER, True)]


def test_a_prune_keeps_the_slots_of_recent_starts(limited, clock):
    dynbeat = limited(max_starts_per_minute_per_owner=1)
    create(dynbeat, 1)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    run_id = beat.publisher.sent[0].run_id
    start(dynbeat, run_id)
    end(dynbeat, run_id, "succeeded")
    prune = partial(maintenance.prune_slots, after=maintenance.SlotPosition(0, ""))

    clock.advance(59 * SECOND)
    assert dynbeat.context.database.run(partial(prune, now=clock.now())) is None
    assert tables(dynbeat) == ([(OWNER, True)], [])
    clock.advance(SECOND)
    dynbeat.context.database.run(partial(prune, now=clock.now()))
    assert tables(dynbeat) == ([], [])


def test_a_prune_keeps_the_scope_that_another_beat_has_locked(limited, clock, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    dynbeat = limited(max_running_per_owner=1)
    database = dynbeat.context.database
    database.run(partial(slots.lock_scopes, names=["a", "b", "c", "d"]))

    def prune_meanwhile(session):
        slots.lock_scopes(session, ["a"])
        at_start = maintenance.SlotPosition(0, "")
        database.run(partial(maintenance.prune_slots, now=clock.now(), after=at_start))

    database.run(prune_meanwhile)

    assert tables(dynbeat)[1] == ["a"]


def test_an_admission_does_not_wait_for_a_prune_of_its_scope(limited, clock, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 1)
    dynbeat.schedules.for_owner(OWNER).run_now("n00000")
    database = dynbeat.context.database
    database.run(partial(slots.lock_scopes, names=[OWNER]))
    admit_all = partial(admit_waiting, now=clock.now(), settings=dynbeat.context.settings)

    def admit_meanwhile(session):
        slots.delete_unused_scopes(session, after="", limit=1)
        return database.run(admit_all).admitted

    assert database.run(admit_meanwhile) == 0
    assert database.run(admit_all).admitted == 1


def test_without_limits_a_prune_of_slots_is_one_statement(limited, clock):
    dynbeat = limited()
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    clock.advance(maintenance.FIRST_DELAY)
    statements = []

    def record(_connection, _cursor, statement, *_others):
        statements.append(statement)

    event.listen(dynbeat.context.database.engine, "before_cursor_execute", record)
    beat.run_until_idle()

    assert len([each for each in statements if "dynbeat_slot_scope" in each]) == 1
    assert not [each for each in statements if "dynbeat_slot" in each and "JOIN" in each]


SECOND_ATTEMPT = attempts.AttemptStart(run_id="", expected_attempt=1, retries=0, worker="w2", pid=2)
RETRY = attempts.AttemptEnd(run_id="", attempt=1, worker="w", status=Status.RETRYING, at=START)
#: Each transition from ``lost`` to a status of an unfinished run.
RETURNS = {
    "restarted": lambda session, run_id: attempts.restart(
        session, replace(SECOND_ATTEMPT, run_id=run_id), now=DUE
    ),
    "redelivered": lambda session, run_id: attempts.note_redelivery(
        session, run_id=run_id, attempt=1
    ),
    "not started": lambda session, run_id: attempts.undo_start(
        session, run_id=run_id, worker="w", pid=1, before=DUE
    ),
    "retrying": lambda session, run_id: attempts.finish(session, replace(RETRY, run_id=run_id)),
}


@pytest.mark.parametrize("returns", RETURNS)
def test_a_lost_run_uses_its_slot_again_if_it_is_unfinished_again(limited, clock, returns):
    dynbeat = limited(max_running_per_owner=1, node_timeout=LONG)
    create(dynbeat, 3)
    usage = dynbeat.schedules.for_owner(OWNER).usage
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    lost = beat.publisher.sent[0]
    start(dynbeat, lost.run_id)
    end(dynbeat, lost.run_id, "lost")
    clock.advance(SECOND)
    beat.run_until_idle()
    second = beat.publisher.sent[1]
    start(dynbeat, second.run_id)
    assert usage().running == 1

    # Beat also prunes.
    clock.advance(2 * maintenance.FIRST_DELAY)
    beat.run_until_idle()
    assert dynbeat.context.database.run(partial(RETURNS[returns], run_id=lost.run_id))
    assert usage().running == 2
    end(dynbeat, second.run_id, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()

    assert usage().running == 1
    assert dynbeat.schedules.for_owner(OWNER).runs("n00002").items[0].status == "pending"


def test_the_slot_of_a_lost_run_is_pruned_after_a_day(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 1)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    start(dynbeat, beat.publisher.sent[0].run_id)
    end(dynbeat, beat.publisher.sent[0].run_id, "lost")

    clock.advance(LOST_KEPT - SECOND)
    beat.run_until_idle()
    assert tables(dynbeat)[0] == [(OWNER, True)]
    clock.advance(maintenance.SCAN_INTERVAL)
    beat.run_until_idle()
    assert tables(dynbeat) == ([], [])


def test_the_starts_of_an_owner_count_while_only_others_of_its_group_wait(limited, clock):
    limits = {"org:7/": {"max_running": 1}, "org:7/a": {"max_starts_per_minute": 1}}
    dynbeat = limited(owner_limits=limits)
    create(dynbeat, 1, owner="org:7/a")
    create(dynbeat, 3, owner="org:7/b", at=DUE + SECOND)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    for _ in range(4):
        beat.run_until_idle()
        run = beat.publisher.sent[-1]
        start(dynbeat, run.run_id)
        end(dynbeat, run.run_id, "succeeded")
        clock.advance(SECOND)
    dynbeat.schedules.for_owner("org:7/a").run_now("n00000")
    clock.advance(SECOND)
    beat.run_until_idle()

    assert [run.owner[-1] for run in beat.publisher.sent] == ["a", "b", "b", "b"]
    clock.advance(60 * SECOND)
    beat.run_until_idle()
    assert beat.publisher.sent[-1].owner == "org:7/a"


def test_a_clock_that_was_set_back_blocks_no_owner(limited, clock):
    dynbeat = limited(max_starts_per_minute_per_owner=1)
    create(dynbeat, 1)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    clock.move_to(DUE - timedelta(minutes=30))
    dynbeat.schedules.for_owner(OWNER).run_now("n00000")
    beat.run_until_idle()

    assert len(beat.publisher.sent) == 2


class CrashError(Exception):
    """Beat dies here."""


class Installation:
    """Two beats that crash at any point, and workers that end or lose runs, at random."""

    def __init__(self, dynbeat, seed):
        self.dynbeat = dynbeat
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.beats = [self.new_beat(), self.new_beat()]
        self.sent, self.executed = set(), Counter()

    def new_beat(self):
        return ManualBeat(self.dynbeat, failpoint=self.crash)

    def crash(self, _point):
        if self.rng.random() < 0.15:
            raise CrashError

    def step(self):
        beat = self.rng.choice(self.beats)
        try:
            beat.tick()
        except CrashError:
            self.beats[self.beats.index(beat)] = self.new_beat()
        self.sent |= {run.run_id for run in beat.publisher.sent}
        for run_id in sorted(self.sent - self.executed.keys()):
            if self.rng.random() < 0.5 and start(self.dynbeat, run_id):
                self.executed[run_id] += 1

    def busy(self):
        found = self.dynbeat.schedules.runs(limit=200, status=("sent", "running"))
        return Counter(run.owner for run in found.items)

    def end_some(self):
        for run in self.dynbeat.schedules.runs(limit=200, status="running").items:
            if self.rng.random() < 0.3:
                end(self.dynbeat, run.id, self.rng.choice(["succeeded", "failed", "lost"]))


@pytest.mark.parametrize("seed", range(8))
def test_no_limit_is_exceeded_and_each_run_ends_after_any_crashes(
    limited, clock, seed, database_url, monkeypatch
):
    # Nearly each pass without a backlog prunes slots.
    monkeypatch.setattr(maintenance, "FIRST_DELAY", SECOND)
    monkeypatch.setattr(maintenance, "SCAN_INTERVAL", SECOND)
    if not database_url.startswith("sqlite") and seed > 1:
        pytest.skip("no database affects the other sequences")
    limits = {"org:7/": {"max_running": 3}, "org:7/a": {"max_running": 1}, "b": {"max_running": 2}}
    dynbeat = limited(owner_limits=limits, dispatch_timeout=5, batch_size=4)
    owners = ["org:7/a", "org:7/b", "org:7/c", "b", "free"]
    for owner in owners:
        create(dynbeat, 6, owner=owner)
    clock.move_to(DUE)
    installation = Installation(dynbeat, seed)
    for _ in range(400):
        installation.step()
        clock.advance(SECOND * installation.rng.choice([0, 0, 1, 6]))
        busy = installation.busy()
        assert busy["org:7/a"] <= 1
        assert sum(busy[owner] for owner in owners[:3]) <= 3
        assert busy["b"] <= 2
        installation.end_some()
        found = statuses(dynbeat)
        if sum(found.values()) == 30 and set(found) <= {"succeeded", "failed", "lost"}:
            break
    assert len(installation.executed) == 30
    assert set(installation.executed.values()) == {1}
    assert usage_of(dynbeat.context, None, "b").running == 0


def test_explain_and_usage_show_why_a_run_waits(limited, clock):
    dynbeat = limited(owner_limits={"org:7/": {"max_running": 1, "max_starts_per_minute": 9}})
    owner = "org:7/user:1"
    create(dynbeat, 2, owner=owner)
    clock.move_to(DUE)
    ManualBeat(dynbeat).run_until_idle()
    clock.advance(SECOND)

    heartbeat = nodes.NodeHeartbeat(
        kind=NodeKind.BEAT, name="b", pid=1, seen_at=clock.now(), progressed_at=clock.now()
    )
    dynbeat.context.database.run(
        partial(nodes.register, heartbeat=heartbeat, started_at=clock.now())
    )
    waiting = dynbeat.schedules.runs(status="pending").items
    found = explain(dynbeat, owner=owner, name=waiting[0].name)
    assert found.cause == Cause.WAITS_FOR_SLOT
    assert "group 'org:7/' may have 1 unfinished run (" in found.sentence
    used = dynbeat.schedules.for_owner(owner).usage()
    assert (used.running, used.waiting) == (1, 1)
    assert [(each.owner, each.used, each.limit) for each in used.run_limits] == [
        ("org:7/", 1, 1),
        ("org:7/", 1, 9),
    ]
    assert dynbeat.schedules.usage("org:7/").waiting == 1


def test_the_slots_of_an_erased_owner_are_deleted(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    create(dynbeat, 3)
    clock.move_to(DUE)
    ManualBeat(dynbeat).run_until_idle()

    dynbeat.schedules.delete_owner(OWNER, erase_history=True)

    assert execute(dynbeat, "DELETE FROM dynbeat_slot") == 0


def test_schedules_with_cancel_previous_take_turns(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    mine = dynbeat.schedules.for_owner(OWNER)
    for number in range(4):
        mine.create(f"n{number}", task="t", trigger=MINUTELY, overlap="cancel_previous")
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    beat.run_until_idle()
    started, ends = [], clock.now()
    # Each run takes 25 seconds, so two or three of four runs start in a minute.
    for _ in range(20 * 12):
        clock.advance(5 * SECOND)
        node.heartbeat()
        if started and clock.now() >= ends:
            end(dynbeat, started[-1].run_id, "succeeded")
        beat.run_until_idle()
        for run in beat.publisher.sent:
            if start(dynbeat, run.run_id):
                started.append(run)
                ends = clock.now() + 25 * SECOND

    counts = Counter(run.name for run in started)
    assert len(started) > 40
    assert min(counts[f"n{number}"] for number in range(4)) > len(started) / 6
    # Replaced runs leave no slots behind.
    assert execute(dynbeat, "DELETE FROM dynbeat_slot") <= 4 + 1


def test_a_run_that_replaces_a_run_of_a_backfill_goes_to_the_end_of_the_line(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("a", task="t", trigger="* * * * *", overlap="cancel_previous")
    mine.create("other", task="t", trigger=Once(DUE + timedelta(days=1)))
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    mine.run_now("other")
    mine.backfill("a", since=START - timedelta(minutes=5), until=START)
    beat.run_until_idle()
    mine.run_now("other")
    clock.move_to(DUE)
    beat.run_until_idle()
    end_all(dynbeat, beat.publisher.sent, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()

    assert statuses(dynbeat, origin="backfill") == {"revoked": 1}
    assert names(beat) == ["other", "other"]


def test_a_buffered_run_takes_no_slot_before_the_previous_run_has_ended(limited, clock):
    dynbeat = limited(max_running_per_owner=2, max_starts_per_minute_per_owner=2)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("long", task="t", trigger=MINUTELY, overlap="buffer_one")
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    for _ in range(2):
        clock.advance(timedelta(minutes=1))
        node.heartbeat()
        beat.run_until_idle()
        long = beat.publisher.sent[0].run_id
        start(dynbeat, long)
    mine.create("other", task="t", trigger=Once(clock.now() + SECOND))
    mine.create("third", task="t", trigger=Once(clock.now() + SECOND))
    clock.advance(SECOND)
    beat.run_until_idle()

    assert names(beat)[1:] in (["other"], ["third"])
    assert mine.usage().running == 2
    end(dynbeat, long, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()
    assert len(beat.publisher.sent) == 3
    assert beat.publisher.sent[2].name == "long"


def test_a_buffered_run_starts_although_the_previous_run_hangs(limited, clock):
    dynbeat = limited(max_running_per_owner=2)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("long", task="t", trigger=MINUTELY, overlap="buffer_one", max_run_time=600)
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    for minute in range(1, 12):
        clock.advance(timedelta(minutes=1))
        node.heartbeat()
        beat.run_until_idle()
        start(dynbeat, beat.publisher.sent[0].run_id)
        assert len(beat.publisher.sent) == (1 if minute < 11 else 2)


def test_many_runs_that_wait_for_previous_runs_do_not_hide_the_next_one(limited, clock):
    dynbeat = limited(max_running_per_owner=30)
    create(dynbeat, 1, at=DUE + 2 * timedelta(minutes=1))
    mine = dynbeat.schedules.for_owner(OWNER)
    for number in range(25):
        mine.create(f"long{number}", task="t", trigger=MINUTELY, overlap="buffer_one")
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    for _ in range(4):
        clock.advance(timedelta(minutes=1))
        node.heartbeat()
        beat.run_until_idle()
        for run in beat.publisher.sent:
            start(dynbeat, run.run_id)

    assert names(beat)[25:] == ["n00000"]


def test_fire_times_are_not_skipped_while_a_backfill_waits_for_a_slot(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("a", task="t", trigger="* * * * *", overlap="skip")
    mine.create("crowd", task="t", trigger=Once(DUE + timedelta(days=1)))
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    beat.run_until_idle()
    mine.run_now("crowd")
    mine.backfill("a", since=START - timedelta(minutes=3), until=START)
    beat.run_until_idle()
    for _ in range(4):
        mine.run_now("crowd")
        clock.advance(timedelta(minutes=1))
        node.heartbeat()
        beat.run_until_idle()
        for run in beat.publisher.sent:
            start(dynbeat, run.run_id)
        # Both the crowd and the fire time get slots, and the backfill waits.
        end_running(dynbeat)
        beat.run_until_idle()
        for run in beat.publisher.sent:
            start(dynbeat, run.run_id)
        end_running(dynbeat)

    assert statuses(dynbeat, name="a", origin="backfill") == {"pending": 1}
    found = statuses(dynbeat, name="a", origin="schedule")
    assert found["skipped"] <= 1
    assert found["succeeded"] >= 2


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
def test_a_backfill_that_waited_for_a_slot_does_not_overlap_a_fire_time(limited, clock, overlap):
    dynbeat = limited(max_running_per_owner=2)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("a", task="t", trigger="* * * * *", overlap=overlap)
    mine.create("other", task="t", trigger=Once(DUE + timedelta(days=1)))
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    beat.run_until_idle()
    for _ in range(2):
        mine.run_now("other")
    mine.backfill("a", since=START - timedelta(minutes=3), until=START)
    beat.run_until_idle()
    clock.move_to(DUE)
    node.heartbeat()
    beat.run_until_idle()
    assert statuses(dynbeat, name="a") == {"pending": 2}
    for run in beat.publisher.sent:
        start(dynbeat, run.run_id)
    end_running(dynbeat)
    for _ in range(3):
        clock.advance(SECOND)
        beat.run_until_idle()

    # There is a free slot, which the run of the backfill does not get.
    assert [run.origin for run in beat.publisher.sent[2:]] == ["schedule"]
    start(dynbeat, beat.publisher.sent[2].run_id)
    end_running(dynbeat)
    clock.advance(SECOND)
    beat.run_until_idle()
    assert [run.origin for run in beat.publisher.sent[3:]] == ["backfill"]


def test_two_waiting_runs_of_a_schedule_that_skips_overlaps_start_one_after_the_other(
    limited, clock
):
    dynbeat = limited(max_running_per_owner=2)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("a", task="t", trigger=MINUTELY)
    mine.create("other", task="t", trigger=Once(DUE + timedelta(days=1)))
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    for _ in range(2):
        mine.run_now("other")
    for _ in range(2):
        clock.advance(timedelta(minutes=1))
        node.heartbeat()
        beat.run_until_idle()
    mine.update("a", overlap="skip")
    end_all(dynbeat, beat.publisher.sent, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()

    assert names(beat) == ["other", "other", "a"]
    end_all(dynbeat, beat.publisher.sent, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()
    assert names(beat) == ["other", "other", "a", "a"]


def test_a_slot_that_another_transaction_has_locked_is_not_replaced(limited, clock, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    dynbeat = limited(max_running_per_owner=1)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("first", task="t", trigger=Once(DUE + timedelta(days=1)))
    mine.create("a", task="t", trigger=MINUTELY, overlap="cancel_previous")
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    mine.run_now("first")
    beat.run_until_idle()
    clock.move_to(DUE)
    node.heartbeat()
    beat.run_until_idle()
    clock.advance(timedelta(minutes=1))

    def claim_meanwhile(session):
        session.execute(select(Slot.id).with_for_update()).all()
        beat.run_until_idle()

    dynbeat.context.database.run(claim_meanwhile)

    assert statuses(dynbeat, name="a") == {"revoked": 1, "pending": 1}
    end_all(dynbeat, beat.publisher.sent, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()
    assert names(beat) == ["first", "a"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_claim_that_replaces_waiting_runs_does_not_wait_for_new_slots(limited, clock):
    dynbeat = limited(max_running_per_owner=1)
    for owner in ("a", "b"):
        mine = dynbeat.schedules.for_owner(owner)
        mine.create("first", task="t", trigger=Once(DUE + timedelta(days=1)))
        mine.run_now("first")
        for name in ("x", "y"):
            mine.create(name, task="t", trigger=MINUTELY, overlap="cancel_previous")
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    clock.move_to(DUE)
    node.heartbeat()
    beat.run_until_idle()
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with failing_waits(dynbeat.context.database.engine) as waits, Session(engine) as holder:
        # The run of the application is newer than the runs of the claim.
        clock.move_to(DUE + timedelta(minutes=2))
        dynbeat.schedules.for_owner("c").create(
            "n", task="t", trigger=Once(DUE + timedelta(days=1))
        )
        dynbeat.schedules.for_owner("c").run_now("n", session=holder)
        holder.flush()
        clock.move_to(DUE + timedelta(minutes=1))
        beat.tick()
        holder.rollback()
    engine.dispose()

    assert waits == []
    for name in ("x", "y"):
        assert statuses(dynbeat, name=name, owner="a") == {"revoked": 1, "pending": 1}


def test_a_manual_run_does_not_wait_for_the_previous_run(limited, clock):
    dynbeat = limited(max_running_per_owner=2)
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("a", task="t", trigger=MINUTELY, overlap="buffer_one")
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    start(dynbeat, beat.publisher.sent[0].run_id)
    mine.run_now("a")
    clock.advance(SECOND)
    beat.run_until_idle()

    assert [run.origin for run in beat.publisher.sent] == ["schedule", "manual"]


def test_the_slots_of_deleted_owners_whose_limits_cannot_be_read_are_deleted(
    limited, clock, monkeypatch
):
    monkeypatch.setattr("celery_dynbeat.beat.admission.MAX_OWNERS", 3)
    calls, gone = Counter(), set()

    def limits_of(name):
        calls[name] += 1
        if name in gone:
            raise KeyError(name)
        return {"max_running": 1}

    dynbeat = limited(owner_limits=limits_of)
    owners = [f"user:{number}" for number in range(8)]
    for owner in owners:
        create(dynbeat, 4, owner=owner)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    for owner in owners:
        dynbeat.schedules.delete_owner(owner)
    gone.update(owners)
    for _ in range(10):
        clock.advance(SECOND)
        beat.run_until_idle()

    assert execute(dynbeat, "DELETE FROM dynbeat_slot WHERE admitted_at IS NULL") == 0
    calls.clear()
    for _ in range(10):
        clock.advance(SECOND)
        beat.run_until_idle()
    assert not calls


def test_a_function_that_fails_is_called_twice_a_second_for_each_page_of_owners(
    limited, clock, monkeypatch
):
    monkeypatch.setattr("celery_dynbeat.beat.admission.MAX_OWNERS", 3)
    failed = []

    def limits_of(name):
        if failed:
            failed.append(name)
            raise KeyError(name)
        return {"max_running": 1}

    dynbeat = limited(owner_limits=limits_of)
    for number in range(9):
        create(dynbeat, 2, owner=f"user:{number}")
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    failed.append("")
    ends = clock.now() + 10 * SECOND
    while clock.now() < ends:
        clock.advance(max(beat.tick(), timedelta(milliseconds=50)))

    assert 10 * 2 * 3 * 0.8 <= len(failed) <= 10 * 2 * 3 * 1.2
