"""No owner waits for all runs of another owner."""

from collections import Counter
from datetime import timedelta

import pytest

from celery_dynbeat import AnyOf, Cron, Once, RRule
from celery_dynbeat.beat import fairness, refused
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, application
from tests.support.suites import each_database

DUE = START + timedelta(minutes=1)
BATCH = 20
SECOND = timedelta(seconds=1)


def due(owner, count, *, at=DUE):
    return [
        {"owner": owner, "name": f"n{number}", "task": "t", "trigger": Once(at)}
        for number in range(count)
    ]


@pytest.fixture
def dynbeat(database_url, clock, monkeypatch):
    monkeypatch.setattr(refused, "BATCH_SIZE", BATCH)
    with application(database_url, clock=clock) as made:
        made.context.prepare()
        yield made


def passes(beat, count):
    """Return the owners of the runs that each of the next passes sends."""
    shares = []
    for _ in range(count):
        before = len(beat.publisher.sent)
        beat.tick()
        shares.append(Counter(run.owner for run in beat.publisher.sent[before:]))
    return shares


def test_other_owners_come_after_one_batch_of_a_large_owner(dynbeat, clock):
    beat = ManualBeat(dynbeat)
    dynbeat.schedules.create_many(due("one", 200))
    dynbeat.schedules.create_many([each for n in range(8) for each in due(f"other:{n}", 1)])
    clock.move_to(DUE)

    first, second, *rest = passes(beat, 12)

    assert first == {"one": BATCH}
    assert {owner: second[owner] for owner in second if owner != "one"} == {
        f"other:{n}": 1 for n in range(8)
    }
    assert second["one"] == BATCH - 8
    assert sum(sum(share.values()) for share in rest) == 200 - 2 * BATCH + 8


def test_a_large_owner_keeps_half_of_the_batch_under_a_steady_load_of_others(dynbeat, clock):
    beat = ManualBeat(dynbeat)
    dynbeat.schedules.create_many(due("one", 200))
    many = [
        each for n in range(100) for each in due(f"other:{n}", 1, at=DUE + timedelta(seconds=1))
    ]
    dynbeat.schedules.create_many(many)
    clock.move_to(DUE + timedelta(seconds=1))

    shares = passes(beat, 6)

    assert [share["one"] for share in shares] == [BATCH] + [BATCH // 2] * 5


def test_without_a_backlog_the_oldest_come_first_of_any_owner(dynbeat, clock):
    beat = ManualBeat(dynbeat)
    dynbeat.schedules.create_many(due("one", BATCH - 1))
    dynbeat.schedules.create_many(due("other", 1, at=DUE - timedelta(seconds=1)))
    clock.move_to(DUE)

    passes(beat, 1)

    assert beat.publisher.sent[0].owner == "other"
    assert len(beat.publisher.sent) == BATCH


@pytest.fixture
def _no_time(monkeypatch):
    """Give each claim the time for one row only."""
    for limit in ("PLANNING_NS", "COSTLY_PLANNING_NS"):
        monkeypatch.setattr(fairness, limit, 0)


@pytest.mark.usefixtures("_no_time")
def test_rows_that_a_claim_has_no_time_to_plan_stay_unchanged_for_the_next_claim(dynbeat, clock):
    beat = ManualBeat(dynbeat)
    mine = dynbeat.schedules.for_owner("one")
    dynbeat.schedules.create_many(due("one", 5))
    before = {each.name: each for each in mine.list()}
    clock.move_to(DUE)

    pause = beat.tick()

    assert pause == timedelta(0)
    assert [run.name for run in beat.publisher.sent] == ["n0"]
    assert {each.name: each for each in mine.list() if each.name != "n0"} == {
        name: each for name, each in before.items() if name != "n0"
    }
    # The rows are unlocked as well.
    mine.delete("n4")
    assert [sum(share.values()) for share in passes(beat, 4)] == [1, 1, 1, 0]
    assert [run.name for run in beat.publisher.sent] == ["n0", "n1", "n2", "n3"]


def costly(number):
    """Return a trigger that takes milliseconds to plan unless its cache is warm."""
    rules = "\n".join(f"RRULE:FREQ=DAILY;BYHOUR={hour}" for hour in range(12))
    parts = (f"DTSTART:20200101T00{number:02}{second:02}Z\n{rules}" for second in range(19))
    return AnyOf(Cron("* * * * * *"), *map(RRule, parts))


def test_other_owners_come_before_one_whose_schedules_take_long_to_plan(
    sqlite_url, clock, monkeypatch
):
    # One claim for each of the first two bursts, on a slow machine too. A second claim in the first
    # burst would find the owner costly already.
    monkeypatch.setattr(fairness, "PLANNING_NS", 60_000_000_000)
    with application(sqlite_url, clock=clock, min_interval=0) as dynbeat:
        dynbeat.context.prepare()
        beat = ManualBeat(dynbeat)
        mine = dynbeat.schedules.for_owner("one")
        for number in range(16):
            mine.create(f"n{number}", task="t", trigger=costly(number), start_at=DUE)
        for number in range(3):
            other = dynbeat.schedules.for_owner(f"other:{number}")
            other.create("n", task="t", trigger=Cron("* * * * * *"), start_at=DUE)

        def order(at):
            clock.move_to(at)
            before = len(beat.publisher.sent)
            beat.run_until_idle()
            return [
                "one" if run.owner == "one" else "other" for run in beat.publisher.sent[before:]
            ]

        bursts = [order(DUE + n * SECOND) for n in range(3)]
        later = order(DUE + 3 * SECOND + fairness.COSTLY_FOR)

    # How many runs of the first burst come before the others depends on the planning time.
    assert [burst[0] for burst in (*bursts[:2], later)] == ["one"] * 3
    assert bursts[2] == ["other"] * 3 + ["one"] * 16


@pytest.mark.usefixtures("_no_time")
@pytest.mark.parametrize("second", [frozenset(), frozenset({"one"})], ids=["first", "second"])
@each_database
def test_left_rows_of_costly_owners_are_no_backlog_that_prevents_pruning(dynbeat, clock, second):
    dynbeat.schedules.create_many(due("one", 3))
    clock.move_to(DUE)
    context = dynbeat.context

    claimed = context.database.run(
        lambda session: claim(session, now=DUE, settings=context.settings, costly_owners=second)
    )

    assert claimed.handled == 1
    assert claimed.is_full is not bool(second)
