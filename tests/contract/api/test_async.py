"""AsyncDynbeat on each database: its transactions, its errors, its cancellation, its pool."""

import asyncio
import inspect
import threading
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_dynbeat import (
    AsyncDynbeat,
    ConflictError,
    Dynbeat,
    InvalidArgumentError,
    NotFoundError,
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

PAST = START - timedelta(minutes=5)


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


class Caller:
    """Calls the API and notes the names of the calls."""

    def __init__(self, calls):
        self.calls, self.called = calls, {"bound", "for_owner"}

    async def __call__(self, name, *args, **kwargs):
        self.called.add(name)
        return await getattr(self.calls, name)(*args, **kwargs)

    @property
    def missing(self):
        kind = type(self.calls)
        return {name for name, _ in inspect.getmembers(kind) if name[0] != "_"} - self.called


async def call_each_of_owner(call):
    await call("create", "a", task="t", trigger=MINUTELY)
    await call("upsert", "a", task="t", trigger=timedelta(minutes=2))
    await call("update", "a", description="d", start_at=PAST)
    assert (await call("rename", "a", "b")).name == "b"
    await call("rename", "b", "a")
    await call("pause", "a", reason="r")
    await call("resume", "a")
    fire_time = (await call("upcoming", "a"))[0].fire_at
    assert (await call("explain", "a")).text
    await call("skip", "a", fire_time)
    assert (await call("upcoming", "a", with_skipped=True))[0].fire_at == fire_time
    await call("unskip", "a", fire_time)
    await call("preview", "0 9 * * *", "b")
    assert await call("set_timezone", "Asia/Seoul") == 0
    assert await call("timezone") == "Asia/Seoul"
    assert await call("set_quiet_hours", ["22:00-07:00"]) == 1
    assert len(await call("quiet_hours")) == 1
    assert await call("clear_quiet_hours") == 1
    run = await call("run_now", "a")
    await call("cancel_run", run.id)
    batch = await call("backfill", "a", since=PAST, until=START, now=True)
    assert (batch.batch_id is not None, batch.total > 0) == (True, True)
    assert (await call("get", "a")).name == "a"
    call.called.add("export")
    records = [line["record"] async for line in call.calls.export()]
    assert records[:2] == ["owner", "schedule"]
    return run.id


async def call_each_of_both(call, run_id):
    assert (await call("get_run", run_id)).id == run_id
    assert [each.id for each in await call("runs", origin="manual")] == [run_id]
    assert (await call("count_runs", origin="manual")).count == 1
    assert await call("cancel_runs", origin="manual") == 0
    with pytest.raises(ConflictError):
        await call("cancel_run", run_id)
    with pytest.raises(InvalidArgumentError):
        await call("rerun", "no run id")
    assert (await call("rerun_many", since=PAST, until=PAST, now=True)).total == 0
    with pytest.raises(NotFoundError):
        await call("get_batch", run_id)
    await call("hold", reason="r")
    assert len(await call("holds")) == 1
    assert (await call("release")).reason == "r"
    assert list(await call("alerts")) == []
    changes = await call("changes")
    assert len(changes) > 5
    assert [each.name for each in await call("list")] == ["a"]
    assert (await call("count")).count == 1
    assert (await call("forecast")).total == 30
    assert (await call("pause_many", until=timedelta(days=1), task="t", expected=1)).changed == 1
    assert (await call("resume_many", everything=True)).changed == 1
    assert (await call("update_many", {"tags": ["x"]}, name_prefix="a")).matched == 1
    assert (await call("delete_many", tag="y")).matched == 0


async def call_each_of_calendars(calendars, mine):
    made = await calendars("upsert", "holidays", dates=[START.date()])
    assert await calendars("get", "holidays") == made
    assert [each.name for each in await calendars("list")] == ["holidays"]
    trigger = MINUTELY.excluding(calendar="holidays")
    await mine("create", "dated", task="t", trigger=trigger)
    assert (await mine("get", "dated")).next_run_at > START + timedelta(hours=1)
    with pytest.raises(ConflictError, match="is used by"):
        await calendars("delete", "holidays")
    await mine("delete", "dated")
    await calendars("delete", "holidays")
    assert calendars.missing == set()


@each_database
def test_each_call_works(database_url):
    async def main():
        async with async_application(database_url) as dynbeat:
            every = Caller(dynbeat.schedules)
            mine = Caller(dynbeat.schedules.for_owner("user:42"))
            run_id = await call_each_of_owner(mine)
            await call_each_of_both(mine, run_id)
            await call_each_of_both(every, run_id)
            await mine("delete", "a")
            new = {"name": "n", "task": "t", "trigger": MINUTELY}
            assert len(await mine("create_many", [new])) == 1
            assert len(await every("create_many", [{**new, "owner": "user:7"}])) == 1
            assert await every("delete_owner", "user:7", erase_history=True) == 1
            assert (await mine("usage")).schedules == 1
            assert (await every("usage", "user:42")).schedules == 1
            assert (await every("explain", "n", owner="user:42")).text
            await call_each_of_calendars(Caller(dynbeat.calendars), mine)
            assert every.missing == mine.missing == set()

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
