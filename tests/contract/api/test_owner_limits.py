"""Limits by plan: dynbeat_owner_limits for owners and for groups of owners."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from celery_dynbeat import Every, InvalidScheduleError, LimitUsage, OwnerLimitError, Usage
from celery_dynbeat.db.models import Owner
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, application

GROUP, OWNER, OTHER = "org:7/", "org:7/user:42", "org:7/user:43"
SETTING = "dynbeat_owner_limits: max_schedules"
#: Owners that are near the group by code point or in a collation of a language, and not in it.
NEAR = ("org:7", "org:70", "org:7.", "org:7!/a", "org:7-a", "Org:7/a", "org:77/a", "org:6/a")


def new(owner, name, *, trigger=MINUTELY, task="t"):
    return {"owner": owner, "name": name, "task": task, "trigger": trigger}


def create(dynbeat, owner, name):
    return dynbeat.schedules.for_owner(owner).create(name, task="t", trigger=MINUTELY)


def test_a_group_counts_the_schedules_of_all_its_owners_and_no_others(limited):
    dynbeat = limited(owner_limits={GROUP: {"max_schedules": 2}})
    for owner in NEAR:
        create(dynbeat, owner, "near")
    create(dynbeat, OWNER, "a")
    create(dynbeat, OTHER, "a")

    for owner in (OWNER, OTHER, "org:7/x/y"):
        with pytest.raises(OwnerLimitError) as caught:
            create(dynbeat, owner, "b")
        error = caught.value
        assert (error.owner, error.limit_owner) == (owner, GROUP)
        assert (error.used, error.wanted, error.limit, error.setting) == (2, 1, 2, SETTING)
        assert f"group 'org:7/' has 2 schedules and would create 1 more, but {SETTING} = 2" in str(
            error
        )

    dynbeat.schedules.for_owner(OTHER).delete("a")
    assert create(dynbeat, OWNER, "b").name == "b"


def test_the_limits_of_each_group_and_of_the_owner_apply(limited):
    dynbeat = limited(
        max_schedules_per_owner=1,
        owner_limits={"a/": {"max_schedules": 3}, "a/b/": {"max_schedules": 2}},
    )
    create(dynbeat, "a/b/1", "n")
    with pytest.raises(OwnerLimitError, match="dynbeat_max_schedules_per_owner") as caught:
        create(dynbeat, "a/b/1", "m")
    assert caught.value.limit_owner == "a/b/1"
    create(dynbeat, "a/b/2", "n")
    with pytest.raises(OwnerLimitError, match="'a/b/'"):
        create(dynbeat, "a/b/3", "n")
    create(dynbeat, "a/c", "n")
    with pytest.raises(OwnerLimitError, match="'a/' has 3"):
        create(dynbeat, "a/d", "n")


def test_a_function_gives_each_owner_the_limits_of_its_plan(limited):
    plans = {"user:1": {"max_schedules": 1}, "user:2": None}
    dynbeat = limited(max_schedules_per_owner=2, owner_limits=plans.get)

    create(dynbeat, "user:1", "a")
    with pytest.raises(OwnerLimitError, match="'user:1' has 1 schedules"):
        create(dynbeat, "user:1", "b")
    plans["user:1"] = {"max_schedules": 3}
    for name in "bc":
        create(dynbeat, "user:1", name)
    with pytest.raises(OwnerLimitError, match="= 2"):
        dynbeat.schedules.create_many(new("user:2", name) for name in "abc")


def test_create_many_counts_all_owners_of_a_group_together(limited):
    dynbeat = limited(owner_limits={GROUP: {"max_schedules": 2}})

    with pytest.raises(OwnerLimitError) as caught:
        dynbeat.schedules.create_many(new(owner, "n") for owner in (OWNER, OTHER, "org:7/z", "x"))

    assert (caught.value.owner, caught.value.limit_owner) == ("org:7/z", GROUP)
    assert (caught.value.used, caught.value.wanted) == (0, 3)
    assert not dynbeat.schedules.list().items
    assert len(dynbeat.schedules.create_many([new(OWNER, "n"), new(OTHER, "n")])) == 2


@pytest.mark.parametrize("name", ["create", "upsert", "create_many"])
def test_concurrent_creates_of_different_owners_cannot_exceed_the_limit_of_their_group(
    limited, name
):
    dynbeat, results = limited(owner_limits={GROUP: {"max_schedules": 5}}), []
    start = threading.Barrier(16)

    def make(number):
        owner = f"{GROUP}user:{number}"
        start.wait(30)
        try:
            if name == "create_many":
                other = new(f"{GROUP}other", f"n{number}", trigger=Every(60))
                dynbeat.schedules.create_many([new(owner, "n"), other])
            else:
                mine = dynbeat.schedules.for_owner(owner)
                getattr(mine, name)("n", task="t", trigger=MINUTELY)
            results.append("made")
        except OwnerLimitError:
            results.append("refused")

    threads = [threading.Thread(target=make, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    made = 2 if name == "create_many" else 5
    assert sorted(results) == ["made"] * made + ["refused"] * (16 - made)
    assert dynbeat.schedules.usage(GROUP).schedules == (4 if name == "create_many" else 5)


def test_a_create_waits_for_the_uncommitted_create_of_another_owner_of_the_group(limited):
    dynbeat, results = limited(owner_limits={GROUP: {"max_schedules": 1}}), []

    def create_second():
        try:
            create(dynbeat, OTHER, "second")
        except OwnerLimitError as error:
            results.append(error.used)

    second = threading.Thread(target=create_second)
    with Session(dynbeat.context.database.engine) as holder:
        mine = dynbeat.schedules.for_owner(OWNER)
        mine.create("first", task="t", trigger=MINUTELY, session=holder)
        second.start()
        second.join(1)
        assert second.is_alive()
        holder.commit()
    second.join(30)

    assert results == [1]


def test_create_many_locks_all_owners_in_one_order_also_those_that_need_no_zone(limited):
    dynbeat, results = limited(max_schedules_per_owner=9), []
    # Only the trigger of the second owner needs its zone.
    many = [new("b", "n"), new("a", "n", trigger=Every(60))]

    def create_both():
        results.append(len(dynbeat.schedules.create_many(many)))

    both = threading.Thread(target=create_both)
    with Session(dynbeat.context.database.engine) as holder:
        for owner in "ab":
            mine = dynbeat.schedules.for_owner(owner)
            mine.create("first", task="t", trigger=MINUTELY, session=holder)
            if owner == "a":
                both.start()
                both.join(1)
                assert both.is_alive()
        holder.commit()
    both.join(30)

    assert results == [2]


def test_only_owners_and_groups_with_a_limit_are_locked(limited):
    dynbeat = limited(owner_limits={"a/b/": {"max_schedules": 9}, "a/": {"min_interval": 1}})
    create(dynbeat, "a/b/c", "n")
    create(dynbeat, "a/c", "n")

    with Session(dynbeat.context.database.engine) as session:
        assert session.scalars(select(Owner.owner)).all() == ["a/b/"]


def test_usage_shows_used_and_limit_of_the_owner_and_of_each_group(limited):
    dynbeat = limited(max_schedules_per_owner=3, owner_limits={GROUP: {"max_schedules": 5}})
    for name in "ab":
        create(dynbeat, OWNER, name)
    for name in "abc":
        create(dynbeat, OTHER, name)

    usage = dynbeat.schedules.for_owner(OWNER).usage()

    assert usage == dynbeat.schedules.usage(OWNER)
    assert usage == Usage(
        owner=OWNER,
        schedules=2,
        limits=(
            LimitUsage(owner=GROUP, used=5, limit=5, setting=SETTING),
            LimitUsage(owner=OWNER, used=2, limit=3, setting="dynbeat_max_schedules_per_owner"),
        ),
    )
    assert (usage.remaining, usage.limits[1].remaining) == (0, 1)
    assert usage.to_dict()["limits"][0]["remaining"] == 0
    of_group = dynbeat.schedules.usage(GROUP)
    assert (of_group.schedules, [each.limit for each in of_group.limits]) == (5, [5])


def test_without_limits_usage_only_counts(limited):
    dynbeat = limited()
    create(dynbeat, "", "n")

    usage = dynbeat.schedules.for_owner("").usage()

    assert (usage.schedules, usage.limits, usage.remaining) == (1, (), None)


def test_usage_needs_the_name_of_an_owner_and_only_the_own_one(limited):
    schedules = limited().schedules

    for call in (schedules.usage, lambda: schedules.for_owner(OWNER).usage(OTHER)):
        with pytest.raises(InvalidScheduleError) as caught:
            call()
        assert caught.value.field == "owner"


def test_an_owner_must_not_have_the_name_of_a_group(limited):
    dynbeat = limited()

    for call in (
        lambda: dynbeat.schedules.for_owner(GROUP),
        lambda: dynbeat.schedules.create_many([new(GROUP, "n")]),
        lambda: dynbeat.schedules.delete_owner(GROUP),
    ):
        with pytest.raises(InvalidScheduleError, match="for_group") as caught:
            call()
        assert caught.value.field == "owner"


def test_the_longest_interval_of_owner_and_group_is_checked_and_named(limited):
    dynbeat = limited(owner_limits={GROUP: {"min_interval": 300}})
    mine = dynbeat.schedules.for_owner(OWNER)

    with pytest.raises(InvalidScheduleError) as caught:
        mine.create("n", task="t", trigger=MINUTELY)

    assert "dynbeat_owner_limits: min_interval of group 'org:7/' = 300 s" in str(caught.value)
    assert mine.create("n", task="t", trigger=Every(300)).name == "n"
    assert create(dynbeat, "user:1", "n").name == "n"
    with pytest.raises(InvalidScheduleError, match="of group 'org:7/'"):
        mine.update("n", trigger=Every(299))


def test_beat_skips_fire_times_that_are_closer_than_the_owners_limit(limited, clock):
    for owner in (OWNER, "user:1"):
        create(limited(), owner, "n")
    beat = ManualBeat(limited(owner_limits={GROUP: {"min_interval": 120}}))

    for _ in range(4):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()

    assert [run.owner for run in beat.publisher.sent].count(OWNER) == 2
    assert [run.owner for run in beat.publisher.sent].count("user:1") == 4


def test_beat_quarantines_a_task_that_the_plan_no_longer_allows(limited, clock):
    create(limited(), OWNER, "n")
    dynbeat = limited(owner_limits={GROUP: {"allowed_tasks": ["mail.*"]}})
    clock.advance(timedelta(minutes=1))

    ManualBeat(dynbeat).run_until_idle()

    error = dynbeat.schedules.for_owner(OWNER).get("n").error
    assert "dynbeat_owner_limits: allowed_tasks of group 'org:7/' = ['mail.*']" in error
    with pytest.raises(InvalidScheduleError, match="of group 'org:7/'"):
        dynbeat.schedules.for_owner(OWNER).run_now("n")


def test_a_function_that_fails_quarantines_nothing_and_fails_the_call(limited, clock):
    def fail(name):
        raise LookupError(name)

    create(limited(), OWNER, "n")
    dynbeat = limited(owner_limits=fail)
    beat = ManualBeat(dynbeat)
    clock.advance(timedelta(minutes=1))

    beat.run_until_idle()

    assert [run.name for run in beat.publisher.sent] == ["n"]
    assert dynbeat.schedules.for_owner(OWNER).get("n").error is None
    with pytest.raises(LookupError):
        create(dynbeat, OWNER, "m")


def test_beat_asks_for_an_owner_once_in_a_claim(limited, clock):
    asked = []
    create(limited(), OWNER, "first")
    create(limited(), OWNER, "second")
    beat = ManualBeat(limited(owner_limits=asked.append))
    clock.advance(timedelta(minutes=1))

    beat.run_until_idle()

    assert len(beat.publisher.sent) == 2
    assert asked == [GROUP, OWNER]


def test_owners_are_compared_by_code_point_whatever_the_collation_of_the_database(postgresql_url):
    with application(postgresql_url) as dynbeat:
        dynbeat.context.prepare()
        query = text(
            "SELECT DISTINCT collation_name FROM information_schema.columns"
            " WHERE column_name = 'owner' AND table_name LIKE 'dynbeat%'"
        )
        assert dynbeat.context.database.read(lambda session: session.scalars(query).all()) == ["C"]
