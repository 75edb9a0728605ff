"""Calls that join the caller's transaction, also as the first call of the process."""

from datetime import timedelta

import pytest
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, InvalidArgumentError, Once, ScheduleExistsError
from celery_dynbeat.api import NewSchedule
from celery_dynbeat.common.errors import SchemaError
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database
from tests.support.applications import MINUTELY, START, application
from tests.support.databases import pool_of
from tests.support.suites import each_database


@pytest.fixture
def engine(database_url):
    made = create_engine(database_url)
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE customer (name VARCHAR(20))"))
    yield made
    assert pool_of(made).checkedout() == 0
    made.dispose()


def customers(session):
    return session.execute(text("SELECT count(*) FROM customer")).scalar_one()


def test_the_first_call_of_a_process_may_follow_a_write_in_the_same_transaction(
    engine, database_url
):
    schema.upgrade(Database(engine=engine))
    with application(database_url, engine=engine) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")

        with Session(engine) as session, session.begin():
            session.execute(text("INSERT INTO customer VALUES ('ann')"))
            mine.bound(session=session).create("welcome", task="t", trigger=MINUTELY)

        assert mine.get("welcome").task == "t"
        with Session(engine) as session:
            assert customers(session) == 1


@pytest.mark.empty_database
def test_missing_tables_are_an_error_within_a_transaction_and_are_not_created(engine, database_url):
    with application(database_url, engine=engine) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")

        with Session(engine) as session, pytest.raises(SchemaError, match="schema upgrade"):
            mine.bound(session=session).create("welcome", task="t", trigger=MINUTELY)


def test_an_engine_with_a_single_connection_keeps_the_callers_transaction():
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customer (name VARCHAR(20))"))
    schema.upgrade(Database(engine=engine))
    with application("sqlite://", engine=engine) as dynbeat, Session(engine) as session:
        session.execute(text("INSERT INTO customer VALUES ('ann')"))

        dynbeat.schedules.for_owner("u", session=session).create("n", task="t", trigger=MINUTELY)

        session.commit()
        assert customers(session) == 1
    engine.dispose()


def test_an_existing_name_is_reported_from_an_old_snapshot_too(mariadb_url):
    # At MariaDB's default isolation level, a plain read after the failed INSERT does not see the
    # row of the other transaction.
    engine = create_engine(mariadb_url, isolation_level="REPEATABLE READ")
    with application(mariadb_url, engine=engine) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        dynbeat.context.prepare()
        with Session(engine) as session:
            mine.bound(session=session).list()
            mine.create("n", task="t", trigger=MINUTELY)

            with pytest.raises(ScheduleExistsError):
                mine.bound(session=session).create("n", task="t", trigger=MINUTELY)
    engine.dispose()


@each_database
def test_a_rejected_edit_changes_nothing_in_the_callers_transaction(dynbeat, mine, clock):
    before = mine.create("n", task="t", trigger=Once(START + timedelta(hours=1)))
    clock.advance(timedelta(minutes=1))

    with Session(dynbeat.context.database.engine) as session:
        with pytest.raises(InvalidArgumentError, match="never fire"):
            mine.bound(session=session).update("n", trigger=Once(START), args=[1])
        session.commit()

    assert mine.get("n") == before


@pytest.mark.parametrize("how", ["delete", "delete_owner"])
@each_database
def test_a_new_schedule_does_not_inherit_the_history_of_a_deleted_one(
    engine, database_url, clock, how
):
    # The application's own engine does not enforce foreign keys on SQLite, and SQLite reuses ids.
    with application(database_url, engine=engine, clock=clock) as dynbeat:
        mine, theirs = (dynbeat.schedules.for_owner(owner) for owner in ("ann", "bob"))
        mine.create("n", task="t", trigger=MINUTELY)
        mine.run_now("n")
        if how == "delete":
            mine.delete("n")
        else:
            dynbeat.schedules.delete_owner("ann")

        theirs.create("m", task="t", trigger=MINUTELY)
        run = theirs.run_now("m")

        assert run.fire_at == clock.now()
        assert [run.schedule_id for run in mine.runs()] == [None]


class RoutedSession(Session):
    """A session that chooses its database by the mapped class."""

    def __init__(self, tables):
        super().__init__()
        self._tables = tables

    def get_bind(self, mapper=None, **_):
        if mapper is None:
            raise AssertionError("the statement names no mapped class")
        return self._tables


@each_database
def test_a_session_may_choose_its_database_by_the_mapped_class(dynbeat, mine):
    with RoutedSession(dynbeat.context.database.engine) as session:
        bound = mine.bound(session=session)
        bound.create("n", task="t", trigger=MINUTELY)
        bound.create_many([NewSchedule(name="m", task="t", trigger=Cron("* * * * *"))])
        bound.update("n", trigger=Once(START + timedelta(hours=1)))
        bound.rename("m", "k")
        bound.pause("n")
        bound.resume("n")
        bound.run_now("n")
        bound.backfill("k", since=START - timedelta(hours=1), until=START)
        bound.hold(reason="maintenance")
        bound.release()
        bound.set_timezone("Asia/Seoul")
        assert [each.name for each in bound.list()] == ["k", "n"]
        assert bound.runs("n").items
        bound.delete("n")
        session.commit()

    assert [each.name for each in mine.list()] == ["k"]
