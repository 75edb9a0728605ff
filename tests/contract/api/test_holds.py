"""hold(), release() and holds(): rows, actors, scopes, errors, transactions."""

from datetime import timedelta

import pytest

from celery_dynbeat import HeldByOthersError, HoldInfo, InvalidScheduleError
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import one_database

HOUR = timedelta(hours=1)


def test_a_hold_returns_its_row_and_holds_lists_it(dynbeat, mine):
    with dynbeat.acting(actor="alice"):
        made = mine.hold(reason="ticket 12", until=START + HOUR)

    assert made == HoldInfo(
        id=made.id,
        owner="user:42",
        actor="alice",
        reason="ticket 12",
        created_at=START,
        until_at=START + HOUR,
    )
    assert mine.holds() == [made]
    assert dynbeat.schedules.holds() == [made]
    assert made.to_dict()["until_at"] == "2026-11-21T10:00:00+00:00"


def test_two_actors_hold_the_same_owner_and_both_see_both(dynbeat, mine):
    with dynbeat.acting(actor="alice"):
        first = mine.hold(reason="a")
    with dynbeat.acting(actor="bob"):
        second = mine.hold(reason="b")

    assert mine.holds() == [first, second]


def test_a_second_hold_of_an_actor_changes_its_reason_and_end(dynbeat, mine, clock):
    with dynbeat.acting(actor="alice"):
        first = mine.hold(reason="a")
        clock.advance(HOUR)
        second = mine.hold(reason="b", until=START + 2 * HOUR)

    assert (second.id, second.created_at) == (first.id, START)
    assert mine.holds() == [second]
    assert (second.reason, second.until_at) == ("b", START + 2 * HOUR)


def test_release_ends_the_holds_of_the_actor_only(dynbeat, mine):
    with dynbeat.acting(actor="alice"):
        first = mine.hold(reason="a")
    with dynbeat.acting(actor="bob"):
        second = mine.hold(reason="b")
        assert mine.release() == (second,)

    assert mine.holds() == [first]


def test_release_by_an_actor_without_a_hold_names_the_others_and_the_fix(dynbeat, mine):
    with dynbeat.acting(actor="alice"):
        held = mine.hold(reason="a")

    with pytest.raises(HeldByOthersError, match=r"held by 'alice'.*all_actors=True") as raised:
        mine.release()

    assert (raised.value.owner, raised.value.actors) == ("user:42", ["alice"])
    assert mine.holds() == [held]
    assert mine.release(all_actors=True) == (held,)
    assert mine.holds() == []


def test_release_without_a_hold_returns_nothing(dynbeat, mine):
    assert mine.release() == ()
    assert dynbeat.schedules.release(all_actors=True) == ()


def test_an_owner_sees_its_holds_and_those_of_everything_only(dynbeat, mine):
    other = dynbeat.schedules.for_owner("user:43")
    everything = dynbeat.schedules.hold(reason="incident")
    of_mine, of_other = mine.hold(reason="a"), other.hold(reason="b")

    assert mine.holds() == [everything, of_mine]
    assert other.holds() == [everything, of_other]
    assert dynbeat.schedules.holds() == [everything, of_mine, of_other]


def test_a_release_of_one_scope_leaves_the_others(dynbeat, mine):
    everything, of_mine = dynbeat.schedules.hold(reason="i"), mine.hold(reason="a")

    assert mine.release(all_actors=True) == (of_mine,)
    mine.hold(reason="a")
    assert dynbeat.schedules.release() == (everything,)
    assert [hold.owner for hold in dynbeat.schedules.holds()] == ["user:42"]


def test_holds_returns_pages(dynbeat):
    made = [dynbeat.schedules.for_owner(f"user:{n}").hold(reason="r") for n in range(5)]

    first = dynbeat.schedules.holds(limit=2)
    second = dynbeat.schedules.holds(limit=2, after=first.cursor)
    third = dynbeat.schedules.holds(limit=2, after=second.cursor)

    assert [*first, *second, *third] == made
    assert third.cursor is None


def test_the_holds_of_an_owner_are_pages_of_its_own_and_of_everything(dynbeat, mine):
    made = [mine.hold(reason="r", actor="ann"), dynbeat.schedules.hold(actor="bob")]
    dynbeat.schedules.for_owner("user:7").hold()
    made += [mine.hold(actor="cat")]

    first = mine.holds(limit=2)

    assert [*first, *mine.holds(limit=2, after=first.cursor)] == made
    assert [(hold.actor, hold.reason) for hold in made] == [("ann", "r"), ("bob", ""), ("cat", "")]


def test_a_hold_is_not_listed_after_its_end(mine, clock):
    mine.hold(reason="r", until=START + HOUR)

    clock.advance(HOUR)

    assert mine.holds() == []
    assert mine.release() == ()


def test_a_new_hold_of_the_actor_after_the_end_of_the_old_one(mine, clock):
    old = mine.hold(reason="r", until=START + HOUR)
    clock.advance(2 * HOUR)

    new = mine.hold(reason="s")

    assert new.id != old.id
    assert mine.holds() == [new]


@one_database
@pytest.mark.parametrize(
    ("given", "field", "rule"),
    [
        ({"reason": 1}, "reason", "must be a string"),
        ({"reason": "x" * 1025}, "reason", "at most 1024"),
        ({"reason": "r", "until": START}, "until", "later than now"),
        ({"reason": "r", "until": START.replace(tzinfo=None)}, "until", "aware datetime"),
        ({"reason": "r", "until": 3600}, "until", "aware datetime"),
    ],
)
def test_an_invalid_hold_is_rejected(mine, given, field, rule):
    with pytest.raises(InvalidScheduleError, match=rule) as raised:
        mine.hold(**given)

    assert raised.value.field == field
    assert mine.holds() == []


@one_database
@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda schedules: schedules.for_owner("user:42").release(all_actors="yes"), "all_actors"),
        (lambda schedules: schedules.holds(limit=0), "limit"),
        (lambda schedules: schedules.holds(after="1"), "after"),
    ],
)
def test_an_invalid_argument_is_named(dynbeat, call, field):
    with pytest.raises(InvalidScheduleError) as raised:
        call(dynbeat.schedules)

    assert raised.value.field == field


def test_a_hold_and_a_release_join_the_callers_transaction(dynbeat, mine):
    with dynbeat.context.database._session() as session:
        mine.hold(reason="r", session=session)
        assert len(mine.holds(session=session)) == 1
        session.rollback()
    assert mine.holds() == []

    made = mine.hold(reason="r")
    with dynbeat.context.database._session() as session:
        assert mine.release(session=session) == (made,)
        session.rollback()
    assert mine.holds() == [made]


def test_delete_owner_deletes_its_holds(dynbeat, mine):
    everything = dynbeat.schedules.hold(reason="i")
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="r")

    dynbeat.schedules.delete_owner("user:42")

    assert dynbeat.schedules.holds() == [everything]


def test_a_hold_changes_no_schedule(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    before = mine.get("n")

    mine.hold(reason="r")

    assert mine.get("n") == before
    assert execute(dynbeat, "UPDATE dynbeat_schedule SET id = id WHERE held_at IS NOT NULL") == 0


def test_a_hold_replaces_the_second_one_of_two_calls_at_the_same_time(dynbeat, mine):
    first = mine.hold(reason="a")
    execute(dynbeat, "INSERT INTO dynbeat_hold (owner, reason) VALUES ('user:42', 'b')")

    changed = mine.hold(reason="c", until=START + HOUR)

    assert mine.holds() == [changed]
    assert (changed.id, changed.until_at) == (first.id, START + HOUR)
