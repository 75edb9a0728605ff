"""AsyncDynbeat on each database: its transactions, its errors, its cancellation, its pool."""

import asyncio
import threading

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_dynbeat import (
    AsyncDynbeat,
    Dynbeat,
    InvalidArgumentError,
)
from celery_dynbeat.process.async_context import MAX_THREADS
from celery_dynbeat.testing import FrozenClock
from tests.support.applications import (
    MINUTELY,
    START,
    application,
    async_application,
    async_engine,
)
from tests.support.databases import pool_of
from tests.support.suites import each_database
from tests.support.waiting import wait_until


def test_a_call_commits(database_url):
    async def main():
        async with async_application(database_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            made = await mine.create("digest", task="t", trigger=MINUTELY)

            assert await mine.get("digest") == made
            assert dynbeat.sync.schedules.for_owner("user:42").get("digest") == made

    asyncio.run(main())


def test_a_call_joins_the_transaction_of_the_callers_session(database_url):
    async def main():
        async with async_application(database_url) as dynbeat, async_engine(database_url) as engine:
            mine = dynbeat.schedules.for_owner("user:42")
            async with AsyncSession(engine) as session:
                await mine.bound(session=session).create("rolled-back", task="t", trigger=MINUTELY)
                assert [each.name for each in await mine.bound(session=session).list()] == [
                    "rolled-back"
                ]
                await session.rollback()
                await mine.bound(session=session).create("kept", task="t", trigger=MINUTELY)
                await session.commit()

            assert [each.name for each in await mine.list()] == ["kept"]

    asyncio.run(main())


def test_a_scoped_session_is_joined(sqlite_url):
    async def main():
        async with async_application(sqlite_url) as dynbeat, async_engine(sqlite_url) as engine:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.list()
            scoped = async_scoped_session(
                async_sessionmaker(engine), scopefunc=asyncio.current_task
            )
            await mine.bound(session=scoped).create("n", task="t", trigger=MINUTELY)
            await scoped.rollback()
            await scoped.remove()

            assert list(await mine.list()) == []

    asyncio.run(main())


def test_a_synchronous_session_is_refused(sqlite_url):
    async def main():
        async with async_application(sqlite_url) as dynbeat:
            with Session() as session, pytest.raises(InvalidArgumentError) as error:
                await dynbeat.schedules.for_owner("u", session=session).list()

            assert error.value.field == "session"

    asyncio.run(main())


def test_acting_names_the_actor_of_each_task(sqlite_url):
    async def main():
        async with async_application(sqlite_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")

            async def create(actor):
                with dynbeat.acting(actor=actor):
                    await mine.create(actor, task="t", trigger=MINUTELY)

            await asyncio.gather(create("ann"), create("bob"))

            changes = {(each.name, each.actor) for each in await mine.changes()}
            assert changes == {("ann", "ann"), ("bob", "bob")}

    asyncio.run(main())


@each_database
def test_a_call_continues_to_its_end_after_a_cancellation(database_url):
    """The lock of another transaction holds the call."""

    async def main():
        async with async_application(database_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            with dynbeat.sync.context.database.engine.connect() as blocker:
                blocker.execute(text("UPDATE dynbeat_schedule SET description = 'x'"))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await mine.pause("n")
                assert pool_of(dynbeat.context.database.engine).checkedout() == 2
                blocker.rollback()
            own = dynbeat.sync.schedules.for_owner("user:42")
            await asyncio.to_thread(wait_until, lambda: not own.get("n").enabled, within=20)

    asyncio.run(main())


def test_a_cancelled_call_that_waits_for_a_thread_is_not_made(sqlite_url):
    async def main():
        async with async_application(sqlite_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            may_end = threading.Event()
            waits = [dynbeat.context.in_thread(may_end.wait) for _ in range(MAX_THREADS)]
            busy = [asyncio.create_task(each) for each in waits]
            call = asyncio.create_task(mine.create("n", task="t", trigger=MINUTELY))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            may_end.set()
            await asyncio.gather(*busy)

            assert list(await mine.list()) == []

    asyncio.run(main())


def test_a_call_joins_no_session_of_a_thread(sqlite_url):
    """``current_session`` would give the thread a session that no code commits."""

    async def main():
        with application(sqlite_url) as dynbeat:
            given = scoped_session(sessionmaker(dynbeat.context.database.engine))
            sync = Dynbeat(dynbeat.app, clock=FrozenClock(START), current_session=given)
            made = AsyncDynbeat(dynbeat.app)
            assert made.sync is sync
            await made.schedules.for_owner("u").create("n", task="t", trigger=MINUTELY)
            assert [each.name for each in dynbeat.schedules.for_owner("u").list()] == ["n"]
            await made.dispose()

    asyncio.run(main())


@each_database
def test_a_cancelled_call_leaves_the_callers_session_to_the_caller(database_url):
    async def main():
        async with async_application(database_url) as dynbeat, async_engine(database_url) as engine:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            with dynbeat.sync.context.database.engine.connect() as blocker:
                blocker.execute(text("UPDATE dynbeat_schedule SET description = 'x'"))

                async def edit():
                    async with AsyncSession(engine) as session, session.begin():
                        await mine.bound(session=session).pause("n")

                call = asyncio.create_task(edit())
                await asyncio.wait({call}, timeout=0.2)
                call.cancel()
                blocker.rollback()
            with pytest.raises(asyncio.CancelledError):
                await call

            assert (await mine.get("n")).enabled is True

    asyncio.run(main())


@each_database
def test_500_concurrent_calls_share_a_pool_of_ten(database_url):
    async def main():
        options = {"pool_size": 10, "max_overflow": 0, "pool_timeout": 100}
        async with async_application(database_url, engine_options=options) as dynbeat:
            dynbeat.context.given_clock = None
            owners = [dynbeat.schedules.for_owner(f"user:{n}") for n in range(500)]
            await asyncio.gather(*(each.create("n", task="t", trigger=MINUTELY) for each in owners))

            assert (await dynbeat.schedules.count()).count == 500
            assert pool_of(dynbeat.context.database.engine).checkedin() <= 10

    asyncio.run(main())
