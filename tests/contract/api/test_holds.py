"""hold(), release() and holds(): rows, actors, scopes, errors, transactions."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event

from celery_dynbeat import HoldInfo
from celery_dynbeat.store import holds
from tests.support.applications import MINUTELY, START
from tests.support.ended_runs import end, start
from tests.support.suites import each_database

HOUR = timedelta(hours=1)


def without_counts(found):
    return [replace(hold, schedules=None, waiting_runs=None) for hold in found]


def test_a_hold_returns_its_row_and_holds_lists_it(dynbeat, mine):
    with dynbeat.acting(actor="alice"):
        made = mine.hold(reason="ticket 12", until=START + HOUR)

    assert made == HoldInfo(
        owner="user:42",
        actor="alice",
        reason="ticket 12",
        created_at=START,
        until_at=START + HOUR,
    )
    assert without_counts(mine.holds()) == [made]
    assert without_counts(dynbeat.schedules.holds()) == [made]
    assert made.to_dict()["until_at"] == "2026-11-21T10:00:00+00:00"


@pytest.mark.parametrize("scope", ["owner", "everything"])
def test_a_second_hold_replaces_the_reason_the_end_and_the_actor(dynbeat, mine, clock, scope):
    calls = mine if scope == "owner" else dynbeat.schedules
    calls.bound(actor="alice").hold(reason="a")
    clock.advance(HOUR)

    second = calls.bound(actor="bob").hold(reason="b", until=START + 2 * HOUR)

    assert (second.actor, second.reason, second.until_at) == ("bob", "b", START + 2 * HOUR)
    assert second.created_at == START
    assert without_counts(calls.holds()) == [second]
    change = calls.changes(action="hold")[0]
    assert (change.before["actor"], change.after["actor"]) == ("alice", "bob")


@pytest.mark.parametrize("scope", ["owner", "everything"])
@each_database
def test_two_first_calls_at_the_same_time_make_one_hold(dynbeat, mine, scope):
    calls = mine if scope == "owner" else dynbeat.schedules
    callers = range(8)
    ready = threading.Barrier(len(callers))

    def hold(number):
        ready.wait(10)
        calls.hold(reason=f"r{number}")

    with ThreadPoolExecutor(len(callers)) as threads:
        list(threads.map(hold, callers))

    assert len(calls.holds()) == 1
    assert calls.release() is not None
    assert calls.holds() == []


def test_holds_counts_the_schedules_and_the_runs_that_a_hold_holds(dynbeat, mine, clock, beat):
    other = dynbeat.schedules.for_owner("user:43")
    for name in ("a", "b", "paused"):
        mine.create(name, task="t", trigger=MINUTELY)
    mine.pause("paused")
    other.create("n", task="t", trigger=MINUTELY)
    run = mine.run_now("a")
    beat.run_until_idle()
    start(dynbeat, run.id)
    end(dynbeat, run.id, "failed")
    dynbeat.schedules.hold(reason="incident")
    mine.hold(reason="r")
    mine.rerun(run.id)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    counts = {
        hold.owner: (str(hold.schedules), str(hold.waiting_runs))
        for hold in dynbeat.schedules.holds()
    }

    assert counts == {None: ("3", "1"), "user:42": ("2", "1")}


@each_database
def test_the_number_of_statements_does_not_depend_on_the_number_of_holds(dynbeat):
    def statements_of(number):
        for each in range(number):
            owner = dynbeat.schedules.for_owner(f"team:{number}, {each}")
            owner.create("n", task="t", trigger=MINUTELY)
            owner.hold(reason="r")
        executed = []
        engine = dynbeat.context.database.engine

        def note(_connection, _cursor, statement, *_):
            executed.append(statement)

        event.listen(engine, "before_cursor_execute", note)
        found = dynbeat.schedules.holds()
        event.remove(engine, "before_cursor_execute", note)
        assert {str(hold.schedules) for hold in found} == {"1"}
        return len(executed)

    assert statements_of(1) == statements_of(8)


def test_the_counts_of_a_hold_are_bounded(dynbeat, mine, monkeypatch):
    monkeypatch.setattr(holds, "COUNT_LIMIT", 2)
    for name in ("a", "b", "c"):
        mine.create(name, task="t", trigger=MINUTELY)
    mine.hold(reason="r")
    dynbeat.schedules.hold(reason="s")

    assert [str(hold.schedules) for hold in mine.holds()] == ["2+", "2+"]


def test_holds_returns_pages(dynbeat):
    made = [dynbeat.schedules.for_owner(f"user:{n}").hold(reason="r") for n in range(5)]

    first = dynbeat.schedules.holds(limit=2)
    second = dynbeat.schedules.holds(limit=2, after=first.cursor)
    third = dynbeat.schedules.holds(limit=2, after=second.cursor)

    assert without_counts([*first, *second, *third]) == made
    assert third.cursor is None


def test_a_hold_is_not_listed_after_its_end(mine, clock):
    mine.hold(reason="r", until=START + HOUR)

    clock.advance(HOUR)

    assert mine.holds() == []
    assert mine.release() is None
