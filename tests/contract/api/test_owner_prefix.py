"""The filter by the beginning of the owner: list, count and the edits of many."""

import pytest

from celery_dynbeat import InvalidArgumentError
from celery_dynbeat.api import many
from tests.support.applications import MINUTELY
from tests.support.suites import each_database

PREFIX, INNER = "org:7/", "org:7/team:1/"
#: The owners that begin with the prefix, by code point.
OWNERS = ("org:7/a", "org:7/team:1/b", "org:7/team:1/c", "org:7/z")
#: Owners near the prefix by code point or in a collation of a language.
OTHERS = ("Org:7/a", "org:7", "org:7.", "org:70", "org:70/a", "org:6/a")


@pytest.fixture
def schedules(dynbeat):
    dynbeat.schedules.create_many(
        {"owner": owner, "name": name, "task": "t", "trigger": MINUTELY}
        for owner in (*OWNERS, *OTHERS)
        for name in ("x", "y")
    )
    return dynbeat.schedules


@pytest.mark.parametrize(
    ("prefix", "owners"),
    [
        (PREFIX, OWNERS),
        (INNER, OWNERS[1:3]),
        ("org:8/", ()),
        ("org:70", ("org:70", "org:70/a")),
        ("Org", ("Org:7/a",)),
        ("\U0010ffff", ()),
    ],
)
@each_database
def test_a_list_and_a_count_have_the_schedules_of_the_owners_with_the_prefix(
    schedules, prefix, owners
):
    found = schedules.list(owner_prefix=prefix)

    assert [(each.owner, each.name) for each in found] == [
        (owner, name) for owner in owners for name in "xy"
    ]
    assert schedules.count(owner_prefix=prefix).count == len(found)
    by_time = schedules.list(owner_prefix=prefix, order="next_run_at")
    assert sorted({each.owner for each in by_time}) == sorted(owners)
    both = {"owner_prefix": prefix, "name_prefix": "y"}
    assert [(each.owner, each.name) for each in schedules.list(**both)] == [
        (owner, "y") for owner in owners
    ]
    assert schedules.count(**both).count == len(owners)


@each_database
def test_the_states_are_listed_and_counted(schedules):
    for owner in ("org:7/a", "org:70/a"):
        schedules.for_owner(owner).pause("x")
    for owner in ("org:7/z", "org:6/a"):
        schedules.for_owner(owner).hold()

    expected = {"paused": [("org:7/a", "x")], "held": [("org:7/z", "x"), ("org:7/z", "y")]}
    for state, keys in expected.items():
        found = schedules.list(state=state, owner_prefix=PREFIX)
        assert [(each.owner, each.name) for each in found] == keys
        assert schedules.count(state=state, owner_prefix=PREFIX).count == len(keys)
    assert schedules.count(state="active", owner_prefix=PREFIX).count == 7


@pytest.mark.parametrize("batch", [3, 500])
@each_database
def test_the_edits_of_many_reach_the_owners_with_the_prefix_and_no_others(
    schedules, monkeypatch, batch
):
    monkeypatch.setattr(many, "BATCH_SIZE", batch)
    others = {owner: list(schedules.for_owner(owner).list()) for owner in OTHERS}
    how, number = {"owner_prefix": PREFIX}, 2 * len(OWNERS)

    assert schedules.pause_many(**how, expected=number).changed == number
    assert schedules.resume_many(**how).changed == number
    assert schedules.update_many({"queue": "slow"}, **how).changed == number
    with pytest.raises(InvalidArgumentError) as caught:
        schedules.delete_many(**how, expected=1)
    assert caught.value.field == "expected"
    assert schedules.delete_many(**how).changed == number

    assert schedules.count(**how).count == 0
    assert {owner: list(schedules.for_owner(owner).list()) for owner in OTHERS} == others


def test_a_prefix_and_an_owner_cannot_be_combined(schedules):
    for call in (
        lambda: schedules.list(owner="org:7/a", owner_prefix=PREFIX),
        lambda: schedules.for_owner("org:7/a").list(owner_prefix=PREFIX),
        lambda: schedules.for_owner("org:7/a").delete_many(owner_prefix=PREFIX),
    ):
        with pytest.raises(InvalidArgumentError, match="cannot be combined with owner 'org:7/a'"):
            call()


def test_an_owner_that_ends_with_a_slash_is_an_owner_like_others(schedules):
    mine = schedules.for_owner(PREFIX)
    mine.create("x", task="t", trigger=MINUTELY)
    before = schedules.for_owner("org:7/a").get("x")

    assert mine.set_quiet_hours(["09:00-12:00"]) == 1
    assert mine.set_timezone("Asia/Seoul") == 0
    mine.hold()
    assert [each.owner for each in mine.list()] == [PREFIX]
    assert schedules.count(owner_prefix=PREFIX).count == 2 * len(OWNERS) + 1
    assert schedules.for_owner("org:7/a").get("x") == before
    assert schedules.delete_owner(PREFIX, erase_history=True) == 1
    assert schedules.count(owner_prefix=PREFIX).count == 2 * len(OWNERS)
