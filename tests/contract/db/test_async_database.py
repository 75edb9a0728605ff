"""The engine of AsyncDynbeat: its driver, its options, its retries."""

import asyncio

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool
from sqlalchemy.util import greenlet_spawn

from celery_dynbeat import AsyncDynbeat, ConfigurationError
from celery_dynbeat.db.async_engine import AsyncDatabase
from tests.support.applications import MINUTELY, application, async_application
from tests.support.databases import pool_of


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg"),
        ("postgres://h/d", "postgresql+psycopg"),
        ("postgresql+psycopg2://h/d", "postgresql+psycopg"),
        ("mysql+pymysql://h/d?read_timeout=5", "mysql+aiomysql"),
        ("mariadb+pymysql://h/d", "mariadb+aiomysql"),
        ("sqlite:///file", "sqlite+aiosqlite"),
    ],
)
def test_the_asynchronous_driver_of_the_url_is_chosen(url, expected):
    engine = AsyncDatabase(url).engine

    assert engine.url.drivername == expected
    assert engine.dialect.is_async
    assert not engine.url.query


def test_the_options_of_the_settings_apply():
    database = AsyncDatabase("postgresql+psycopg://h/d", engine_options={"pool_size": 3})

    assert pool_of(database.engine).size() == 3


@pytest.mark.parametrize("engine", [create_engine("sqlite://"), "sqlite+aiosqlite://"])
def test_an_engine_that_is_not_asynchronous_is_refused(engine):
    with (
        application("sqlite://") as dynbeat,
        pytest.raises(ConfigurationError, match="create_async_engine"),
    ):
        AsyncDynbeat(dynbeat.app, engine=engine)


def test_an_engine_of_the_application_is_shared_and_stays_open(database_url):
    async def main():
        url = AsyncDatabase(database_url).engine.url
        # SQLAlchemy 2.0 would open a connection for each use of a SQLite file.
        engine = create_async_engine(url, poolclass=AsyncAdaptedQueuePool)
        async with async_application(database_url, engine=engine) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            async with AsyncSession(engine) as session, session.begin():
                await mine.create("n", task="t", trigger=MINUTELY, session=session)
            await mine.pause("n")
            await dynbeat.dispose()
            assert pool_of(engine).checkedin() >= 1
        await engine.dispose()

    asyncio.run(main())


def test_a_transient_error_repeats_the_transaction(postgresql_url):
    """Two transactions lock two rows in opposite order: the server ends one with a deadlock."""

    async def main():
        async with async_application(postgresql_url) as dynbeat:
            database = dynbeat.context.database
            for name in ("a", "b"):
                mine = dynbeat.schedules.for_owner("user:42")
                await mine.create(name, task="t", trigger=MINUTELY)
            attempts = []

            def lock(session, name):
                update = "UPDATE dynbeat_schedule SET run_count = run_count + 1 WHERE name = :name"
                session.execute(text(update), {"name": name})

            def work(first, second, session):
                attempts.append(first)
                lock(session, first)
                # Both hold their first lock, because a wait gives way to the other task.
                session.execute(text("SELECT pg_sleep(0.1)"))
                lock(session, second)

            def run(first, second):
                database.run(lambda session: work(first, second, session))

            await asyncio.gather(greenlet_spawn(run, "a", "b"), greenlet_spawn(run, "b", "a"))

            assert len(attempts) == 3
            assert [each.run_count for each in await mine.list()] == [2, 2]

    asyncio.run(main())


def test_the_error_of_a_statement_is_raised(postgresql_url):
    async def main():
        async with async_application(postgresql_url) as dynbeat:
            database = dynbeat.context.database
            with pytest.raises(DBAPIError):
                await greenlet_spawn(
                    database.run, lambda session: session.execute(text("nonsense"))
                )

    asyncio.run(main())
