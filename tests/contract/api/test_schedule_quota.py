"""The quota of schedules for each owner, also with concurrent calls."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat import Every, InvalidArgumentError, LimitError
from celery_dynbeat.db.models import Owner
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, application
from tests.support.suites import each_database

OWNER = "user:42"
LIMIT = "dynbeat_owner_limits: max_schedules"


def owned(dynbeat):
    return dynbeat.schedules.for_owner(OWNER)


def names(dynbeat):
    return [schedule.name for schedule in dynbeat.schedules.list()]


def new(name, *, owner=OWNER, task="t", trigger=MINUTELY):
    return {"owner": owner, "name": name, "task": task, "trigger": trigger}


@pytest.mark.parametrize("name", ["create", "upsert"])
def test_an_owner_at_the_limit_cannot_create_another_schedule(limited, name):
    dynbeat = limited(owner_limits={"*": {"max_schedules": 2}})
    mine = owned(dynbeat)
    for made in ("a", "b"):
        getattr(mine, name)(made, task="t", trigger=MINUTELY)
    mine.pause("a")

    with pytest.raises(LimitError) as caught:
        getattr(mine, name)("c", task="t", trigger=MINUTELY)

    assert (caught.value.owner, caught.value.setting, caught.value.limit) == (OWNER, LIMIT, 2)
    for fact in ("'user:42' has 2 schedules", "dynbeat_owner_limits: max_schedules = 2", "delete"):
        assert fact in str(caught.value)
    assert names(dynbeat) == ["a", "b"]


def test_at_the_limit_an_upsert_updates_and_a_delete_frees_a_place(limited):
    mine = owned(limited(owner_limits={"*": {"max_schedules": 1}}))
    mine.create("a", task="t", trigger=MINUTELY)

    assert mine.upsert("a", task="u", trigger=MINUTELY).task == "u"

    mine.delete("a")
    assert mine.create("b", task="t", trigger=MINUTELY).name == "b"


def test_create_many_creates_nothing_when_one_owner_exceeds_the_limit(limited):
    dynbeat = limited(owner_limits={"*": {"max_schedules": 2}})
    owned(dynbeat).create("a", task="t", trigger=MINUTELY)
    many = [new("a", owner="user:43"), new("b"), new("c"), new("b", owner="user:41")]

    with pytest.raises(LimitError) as caught:
        dynbeat.schedules.create_many(many)

    assert "'user:42' has 1 schedules and would create 2 more" in str(caught.value)
    assert names(dynbeat) == ["a"]
    assert len(dynbeat.schedules.create_many([many[0], *many[2:]])) == 3


def test_a_rejection_leaves_the_callers_transaction_usable_and_unchanged(limited):
    dynbeat = limited(
        min_interval=60, owner_limits={"*": {"max_schedules": 1, "allowed_tasks": ["t"]}}
    )
    mine = owned(dynbeat)
    before = mine.create("a", task="t", trigger=MINUTELY)

    with Session(dynbeat.context.database.engine) as session, session.begin():
        with pytest.raises(LimitError):
            mine.bound(session=session).create("b", task="t", trigger=MINUTELY)
        for wrong in ({"task": "u"}, {"trigger": Every(59)}):
            with pytest.raises(InvalidArgumentError):
                mine.bound(session=session).update("a", description="changed", **wrong)

    assert list(mine.list()) == [before]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@each_database
def test_a_create_waits_for_the_uncommitted_create_of_the_same_owner(limited, ending):
    dynbeat = limited(owner_limits={"*": {"max_schedules": 1}})
    mine, results = owned(dynbeat), []

    def create_second():
        try:
            results.append(mine.create("second", task="t", trigger=MINUTELY).name)
        except LimitError as error:
            results.append(error.limit)

    second = threading.Thread(target=create_second)
    with Session(dynbeat.context.database.engine) as holder:
        mine.bound(session=holder).create("first", task="t", trigger=MINUTELY)
        second.start()
        second.join(1)
        assert second.is_alive()
        getattr(holder, ending)()
    second.join(30)

    assert results == ([1] if ending == "commit" else ["second"])
    assert names(dynbeat) == (["first"] if ending == "commit" else ["second"])


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_an_uncommitted_create_does_not_delay_the_owners_runs(request, clock, kind):
    url = request.getfixturevalue(f"{kind}_url")
    with application(url, clock=clock, owner_limits={"*": {"max_schedules": 2}}) as dynbeat:
        mine, beat = owned(dynbeat), ManualBeat(dynbeat)
        mine.create("due", task="t", trigger=MINUTELY)
        clock.advance(timedelta(minutes=1))

        with Session(dynbeat.context.database.engine) as holder:
            mine.bound(session=holder).create("new", task="t", trigger=MINUTELY)
            beat.run_until_idle()
            holder.rollback()

        assert [run.name for run in beat.publisher.sent] == ["due"]


@pytest.mark.parametrize("name", ["create", "upsert", "create_many"])
@each_database
def test_concurrent_creates_cannot_exceed_the_limit(limited, name):
    dynbeat, results = limited(owner_limits={"*": {"max_schedules": 5}}), []
    start = threading.Barrier(20)

    def make(number):
        start.wait(30)
        try:
            if name == "create_many":
                dynbeat.schedules.create_many([new(f"n{number}"), new("n", owner=f"u{number}")])
            else:
                getattr(owned(dynbeat), name)(f"n{number}", task="t", trigger=MINUTELY)
            results.append("made")
        except LimitError:
            results.append("refused")

    threads = [threading.Thread(target=make, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(results) == ["made"] * 5 + ["refused"] * 15
    assert len(owned(dynbeat).list()) == 5
    assert len(dynbeat.schedules.list()) == (10 if name == "create_many" else 5)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_an_old_snapshot_does_not_hide_the_schedules_of_other_transactions(request, kind):
    url = request.getfixturevalue(f"{kind}_url")
    engine = create_engine(url, isolation_level="REPEATABLE READ")
    with application(url, engine=engine, owner_limits={"*": {"max_schedules": 1}}) as dynbeat:
        mine = owned(dynbeat)
        dynbeat.context.prepare()

        with Session(engine) as session:
            mine.bound(session=session).list()
            mine.create("first", task="t", trigger=MINUTELY)

            # PostgreSQL aborts a transaction that would have to read past its snapshot.
            with pytest.raises((LimitError, DBAPIError)):
                mine.bound(session=session).create("second", task="t", trigger=MINUTELY)

        assert names(dynbeat) == ["first"]
    engine.dispose()


@each_database
def test_without_a_limit_owners_are_not_locked(limited):
    dynbeat = limited()
    owned(dynbeat).upsert("a", task="t", trigger=MINUTELY)
    dynbeat.schedules.create_many([new("b")])

    with Session(dynbeat.context.database.engine) as session:
        assert session.scalars(select(Owner.owner)).all() == []
