"""Limits by plan: dynbeat_owner_limits."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from celery_dynbeat import Every, LimitError, Usage
from celery_dynbeat.db.models import Owner
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, application
from tests.support.suites import each_database

OWNER, OTHER = "org:7/user:42", "org:7/user:43"


def new(owner, name, *, trigger=MINUTELY, task="t"):
    return {"owner": owner, "name": name, "task": task, "trigger": trigger}


def create(dynbeat, owner, name):
    return dynbeat.schedules.for_owner(owner).create(name, task="t", trigger=MINUTELY)


def test_a_function_gives_each_owner_the_limits_of_its_plan(limited):
    plans = {"user:1": {"max_schedules": 1}, "user:2": {"max_schedules": 2}, "user:3": None}
    dynbeat = limited(owner_limits=plans.get)

    create(dynbeat, "user:1", "a")
    with pytest.raises(LimitError, match="'user:1' has 1 schedules"):
        create(dynbeat, "user:1", "b")
    plans["user:1"] = {"max_schedules": 3}
    for name in "bc":
        create(dynbeat, "user:1", name)
    with pytest.raises(LimitError, match="= 2"):
        dynbeat.schedules.create_many(new("user:2", name) for name in "abc")
    dynbeat.schedules.create_many(new("user:3", name) for name in "abc")


@each_database
def test_create_many_locks_all_owners_in_one_order_also_those_that_need_no_zone(limited):
    dynbeat, results = limited(owner_limits={"*": {"max_schedules": 9}}), []
    # Only the trigger of the second owner needs its zone.
    many = [new("b", "n"), new("a", "n", trigger=Every(60))]

    def create_both():
        results.append(len(dynbeat.schedules.create_many(many)))

    both = threading.Thread(target=create_both)
    with Session(dynbeat.context.database.engine) as holder:
        for owner in "ab":
            mine = dynbeat.schedules.for_owner(owner)
            mine.bound(session=holder).create("first", task="t", trigger=MINUTELY)
            if owner == "a":
                both.start()
                both.join(1)
                assert both.is_alive()
        holder.commit()
    both.join(30)

    assert results == [2]


@each_database
def test_only_owners_with_a_limit_on_their_schedules_are_locked(limited):
    dynbeat = limited(owner_limits={"a": {"max_schedules": 9}, "b": {"min_interval": 1}})
    create(dynbeat, "a", "n")
    create(dynbeat, "b", "n")

    with Session(dynbeat.context.database.engine) as session:
        assert session.scalars(select(Owner.owner)).all() == ["a"]


def test_usage_shows_used_and_limit_of_the_owner(limited):
    dynbeat = limited(owner_limits={"*": {"max_schedules": 3}, OTHER: {"max_schedules": 5}})
    for name in "ab":
        create(dynbeat, OWNER, name)

    usage = dynbeat.schedules.for_owner(OWNER).usage()

    assert usage == dynbeat.schedules.usage(OWNER)
    assert usage == Usage(owner=OWNER, schedules=2, max_schedules=3)
    assert usage.remaining == 1
    assert usage.to_dict()["remaining"] == 1
    assert dynbeat.schedules.usage(OTHER).max_schedules == 5


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


def test_owners_are_compared_by_code_point_whatever_the_collation_of_the_database(postgresql_url):
    with application(postgresql_url) as dynbeat:
        dynbeat.context.prepare()
        query = text(
            "SELECT DISTINCT collation_name FROM information_schema.columns"
            " WHERE column_name = 'owner' AND table_name LIKE 'dynbeat%'"
        )
        assert dynbeat.context.database.read(lambda session: session.scalars(query).all()) == ["C"]
