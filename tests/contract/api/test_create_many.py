"""Calls that span owners, and calls that join the transaction of the application."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from celery_dynbeat import (
    InvalidArgumentError,
    ScheduleExistsError,
    TransactionRolledBackError,
)
from celery_dynbeat.store import schedules
from tests.support.applications import MINUTELY, application
from tests.support.suites import each_database
from tests.support.waiting import wait_until


def new(number, **fields):
    return {"owner": f"u{number}", "name": "n", "task": "t", "trigger": MINUTELY, **fields}


@pytest.mark.parametrize("text", ["a\x00b", "a\\u0000b", "요약", "\U0001f642"])
@each_database
def test_create_many_stores_text_as_create_does(dynbeat, text):
    given = {"args": [text], "kwargs": {"text": text}}
    dynbeat.schedules.create_many(new(number, **given) for number in range(3))
    theirs = dynbeat.schedules.for_owner("u2")
    alone = theirs.create("alone", task="t", trigger=MINUTELY, **given)

    both = [theirs.get("n"), alone]
    assert [(each.args, each.kwargs) for each in both] == [([text], {"text": text})] * 2


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (new(1), ScheduleExistsError),
        (new(7), ScheduleExistsError),
        (new(9, max_runs=0), InvalidArgumentError),
        ({"name": "n", "task": "t"}, InvalidArgumentError),
    ],
    ids=["twins", "taken", "invalid", "incomplete"],
)
@each_database
def test_all_schedules_are_created_or_none(dynbeat, last, error):
    dynbeat.schedules.for_owner("u7").create("n", task="t", trigger=MINUTELY)

    with pytest.raises(error):
        dynbeat.schedules.create_many([new(1), new(2), last])

    assert [schedule.owner for schedule in dynbeat.schedules.list()] == ["u7"]


def test_an_invalid_schedule_is_named_by_its_index(dynbeat):
    with pytest.raises(InvalidArgumentError, match="schedule 1 of create_many") as caught:
        dynbeat.schedules.create_many([new(0), new(1, catch_up="odd")])

    assert caught.value.field == "catch_up"


def test_a_name_that_occurs_twice_is_named_by_both_indexes(dynbeat):
    twice = "schedules 1 and 3 of create_many are both named 'n' for owner 'u1'"
    with pytest.raises(ScheduleExistsError, match=twice) as caught:
        dynbeat.schedules.create_many([new(0), new(1), new(2), new(1)])

    assert caught.value.indexes == (1, 3)


def test_delete_owner_deletes_the_schedules_and_revokes_unstarted_runs(dynbeat, mine, clock, beat):
    for name in ("a", "b"):
        mine.create(name, task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    mine.run_now("a")

    assert dynbeat.schedules.delete_owner("user:42") == 2

    assert not mine.list()
    assert [run.status for run in mine.runs()] == ["revoked"] * 3
    assert dynbeat.schedules.delete_owner("user:42") == 0


CHANGES = {
    "create": lambda mine, session: mine.bound(session=session).create(
        "m", task="t", trigger=MINUTELY
    ),
    "update": lambda mine, session: mine.bound(session=session).update("n", task="u"),
    "upsert": lambda mine, session: mine.bound(session=session).upsert(
        "n", task="u", trigger=MINUTELY
    ),
    "pause": lambda mine, session: mine.bound(session=session).pause("n"),
    "delete": lambda mine, session: mine.bound(session=session).delete("n"),
    "run_now": lambda mine, session: mine.bound(session=session).run_now("n"),
}


@pytest.mark.parametrize("name", CHANGES)
@each_database
def test_a_change_rolls_back_with_the_callers_transaction(dynbeat, mine, name):
    kept = mine.create("n", task="t", trigger=MINUTELY)

    with Session(dynbeat.context.database.engine) as session:
        CHANGES[name](mine, session)
        session.rollback()

    assert list(mine.list()) == [kept]
    assert mine.runs() == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_through_the_applications_own_engine_commits_with_it(database_url, clock, name):
    engine = create_engine(database_url)
    with application(database_url, clock=clock, engine=engine) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        kept = mine.create("n", task="t", trigger=MINUTELY)

        with Session(engine) as session, session.begin():
            CHANGES[name](mine, session)

        assert list(mine.list()) != [kept] or mine.runs() != []
    engine.dispose()


def test_an_existing_name_leaves_the_callers_transaction_usable(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    with Session(dynbeat.context.database.engine) as session, session.begin():
        with pytest.raises(ScheduleExistsError):
            mine.bound(session=session).create("n", task="t", trigger=MINUTELY)
        mine.bound(session=session).create("m", task="t", trigger=MINUTELY)

    assert [schedule.name for schedule in mine.list()] == ["m", "n"]


@contextlib.contextmanager
def deadlock_of(engine):
    """Let the next INSERT of the name "first" and then "last" be the victim of a deadlock."""
    columns = "owner, name, task, trigger_kind, trigger_spec, timezone, created_at, updated_at"
    select = f"SELECT owner, :name, {columns.partition('name, ')[2]} FROM dynbeat_schedule"
    take = text(
        f"INSERT INTO dynbeat_schedule ({columns}) {select} WHERE owner = 'u' AND name = 'x'"
    )
    with engine.connect() as other, ThreadPoolExecutor(1) as threads:
        # The victim is the transaction with fewer changes.
        other.execute(text("UPDATE dynbeat_schedule SET description = 'x' WHERE owner <> 'u'"))
        other.execute(take, {"name": "last"})

        def take_first():
            # Only the INSERT of the call, not another statement or a session of an earlier test.
            waiting = text(
                "SELECT count(*) FROM information_schema.innodb_trx"
                " JOIN information_schema.processlist ON id = trx_mysql_thread_id"
                " WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()"
                " AND trx_query LIKE 'INSERT INTO dynbeat_schedule%'"
            )
            with engine.connect() as watch:
                # The server refreshes this table after 0.1 seconds without a reading.
                wait_until(lambda: watch.execute(waiting).scalar_one(), within=30, every=0.2)
            other.execute(take, {"name": "first"})
            other.rollback()

        taken = threads.submit(take_first)
        yield
        taken.result()


@pytest.fixture
def crowded(mariadb_url):
    with application(mariadb_url) as dynbeat:
        dynbeat.schedules.create_many([new(number) for number in range(100)])
        dynbeat.schedules.for_owner("u").create("x", task="t", trigger=MINUTELY)
        yield dynbeat


PAIR = [{**new(0), "owner": "u", "name": name} for name in ("first", "last")]


def test_a_deadlock_that_takes_the_savepoint_away_is_repeated(crowded):
    with deadlock_of(crowded.context.database.engine):
        assert len(crowded.schedules.create_many(PAIR)) == 2

    assert [each.name for each in crowded.schedules.list(owner="u")] == ["first", "last", "x"]


def test_a_deadlock_in_the_callers_transaction_says_that_all_of_it_is_rolled_back(crowded):
    engine = crowded.context.database.engine
    with deadlock_of(engine), Session(engine) as session:
        crowded.schedules.for_owner("u", session=session).pause("x")
        with pytest.raises(TransactionRolledBackError, match="run the transaction again") as caught:
            crowded.schedules.bound(session=session).create_many(PAIR)
        session.rollback()

    assert "1213" in str(caught.value.__cause__)
    assert [each.enabled for each in crowded.schedules.list(owner="u")] == [True]


def test_an_owner_creates_only_its_own(mine):
    new = {"name": "n", "task": "t", "trigger": "@daily"}

    (made,) = mine.create_many([new])
    with pytest.raises(InvalidArgumentError, match="schedule 0 of create_many: owner = 'user:7'"):
        mine.create_many([{**new, "name": "m", "owner": "user:7"}])

    assert made == mine.get("n")
    assert mine.create_many([{**new, "name": "o", "owner": mine.owner}])[0].owner == mine.owner


@each_database
def test_an_id_that_is_smaller_than_that_of_an_older_row_is_found(dynbeat, mine):
    made = mine.create_many({"name": f"n{n}", "task": "t", "trigger": "@daily"} for n in range(3))
    keys = [(each.owner, each.name) for each in made]

    with Session(dynbeat.context.database.engine) as session:
        ids = schedules.ids_of(session, keys, after=made[1].id)

    assert [ids[key] for key in keys] == [each.id for each in made]
