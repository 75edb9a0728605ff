"""AsyncDynbeat on each database: its transactions, its errors, its cancellation, its pool."""

import asyncio
import contextlib
import inspect
import sqlite3
import threading
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session

from celery_dynbeat import (
    AlertNotFoundError,
    CalendarInUseError,
    InvalidScheduleError,
    RunNotFoundError,
    ScheduleExistsError,
    ScheduleNotFoundError,
)
from tests.support.applications import MINUTELY, START, async_application
from tests.support.databases import pool_of
from tests.support.waiting import wait_until

PAST = START - timedelta(minutes=5)


def async_engine(dynbeat):
    """Return the AsyncEngine that ``dynbeat`` opened."""
    return AsyncEngine(dynbeat.context.database.engine)


def test_a_call_commits(database_url):
    async def main():
        async with async_application(database_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            made = await mine.create("digest", task="t", trigger=MINUTELY)

            assert await mine.get("digest") == made
            assert dynbeat.sync.schedules.for_owner("user:42").get("digest") == made

    asyncio.run(main())


@pytest.mark.empty_database
def test_the_first_calls_create_the_tables_once(database_url):
    async def main():
        async with async_application(database_url) as dynbeat:
            owners = [dynbeat.schedules.for_owner(f"user:{n}") for n in range(20)]
            await asyncio.gather(*(each.create("n", task="t", trigger=MINUTELY) for each in owners))

            assert (await dynbeat.schedules.count()).count == 20

    asyncio.run(main())


def test_a_call_joins_the_transaction_of_the_callers_session(database_url):
    async def main():
        async with async_application(database_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            async with AsyncSession(async_engine(dynbeat)) as session:
                await mine.create("rolled-back", task="t", trigger=MINUTELY, session=session)
                assert [each.name for each in await mine.list(session=session)] == ["rolled-back"]
                await session.rollback()
                await mine.create("kept", task="t", trigger=MINUTELY, session=session)
                await session.commit()

            assert [each.name for each in await mine.list()] == ["kept"]

    asyncio.run(main())


def test_a_scoped_session_is_joined(sqlite_url):
    async def main():
        async with async_application(sqlite_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.list()
            scoped = async_scoped_session(
                async_sessionmaker(async_engine(dynbeat)), scopefunc=asyncio.current_task
            )
            await mine.create("n", task="t", trigger=MINUTELY, session=scoped)
            await scoped.rollback()
            await scoped.remove()

            assert list(await mine.list()) == []

    asyncio.run(main())


def test_a_synchronous_session_is_refused(sqlite_url):
    async def main():
        async with async_application(sqlite_url) as dynbeat:
            with Session() as session, pytest.raises(InvalidScheduleError) as error:
                await dynbeat.schedules.for_owner("u").list(session=session)

            assert error.value.field == "session"

    asyncio.run(main())


def test_errors_are_those_of_the_synchronous_calls(database_url):
    async def main():
        async with async_application(database_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            with pytest.raises(ScheduleExistsError):
                await mine.create("n", task="t", trigger=MINUTELY)
            with pytest.raises(ScheduleNotFoundError):
                await mine.get("missing")
            with pytest.raises(InvalidScheduleError, match="does not rename"):
                await mine.update("n", name="m")

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


class Caller:
    """Calls the API and notes the names of the calls."""

    def __init__(self, calls):
        self.calls, self.called = calls, {"for_owner", "for_group"}

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
    fire_time = (await call("upcoming", "a"))[0].at
    await call("skip", "a", fire_time)
    assert (await call("upcoming", "a", with_skipped=True))[0].at == fire_time
    await call("unskip", "a", fire_time)
    await call("preview", "0 9 * * *", "b")
    assert await call("set_timezone", "Asia/Seoul") == 0
    assert await call("timezone") == "Asia/Seoul"
    assert await call("set_quiet_hours", ["22:00-07:00"]) == 1
    assert len(await call("quiet_hours")) == 1
    assert await call("clear_quiet_hours") == 1
    run = await call("run_now", "a")
    await call("cancel_run", run.id)
    backfill = await call("backfill", "a", since=PAST, until=START)
    assert backfill.kind == "backfill"
    assert (await call("get", "a")).name == "a"
    call.called.add("export")
    records = [line["record"] async for line in call.calls.export()]
    assert records[:2] == ["owner", "schedule"]
    return run.id


async def call_each_of_both(call, run_id):
    assert (await call("get_run", run_id)).id == run_id
    assert (await call("run_arguments", run_id)).unknown == "The run was not sent."
    assert [each.id for each in await call("runs")] == [run_id]
    assert (await call("count_runs")).count == 1
    assert await call("cancel_runs") == 0
    with pytest.raises(InvalidScheduleError):
        await call("cancel_run", run_id)
    with pytest.raises(InvalidScheduleError):
        await call("rerun", "no run id")
    request = await call("rerun_many", since=PAST, until=PAST)
    assert request.id in {each.id for each in await call("requests")}
    assert await call("get_request", request.id) == request
    assert (await call("cancel_request", request.id)).id == request.id
    await call("hold", reason="r")
    assert len(await call("holds")) == 1
    assert len(await call("release")) == 1
    assert list(await call("alerts")) == []
    with pytest.raises(AlertNotFoundError):
        await call("acknowledge_alert", 1)
    with pytest.raises(AlertNotFoundError):
        await call("snooze_alert", 1, until=None)
    changes = await call("changes")
    assert len(changes) > 5
    with pytest.raises(InvalidScheduleError):
        await call("restore", changes[0].id)
    assert [each.name for each in await call("list")] == ["a"]
    assert (await call("count")).count == 1
    assert (await call("forecast")).schedules == 1
    assert (await call("pause_many", until=timedelta(days=1), task="t", expected=1)).changed == 1
    assert (await call("resume_many", everything=True)).changed == 1
    assert (await call("update_many", {"tags": ["x"]}, name_prefix="a")).matched == 1
    assert (await call("delete_many", tag="y")).matched == 0


async def call_each_of_group(of_group, run_id):
    assert not list(await of_group("list"))
    assert (await of_group("count")).count == 0
    assert (await of_group("hold", actor="alice")).owner == "user:42/"
    assert len(await of_group("holds")) == len(await of_group("release", actor="alice"))
    assert (await of_group("usage")).schedules == 0
    assert await of_group("set_quiet_hours", ["22:00-07:00"]) == 0
    assert len(await of_group("quiet_hours")) == 1
    assert await of_group("clear_quiet_hours") == 0
    assert (await of_group("forecast")).schedules == 0
    assert not list(await of_group("runs"))
    assert (await of_group("count_runs")).count == 0
    with pytest.raises(RunNotFoundError):
        await of_group("get_run", run_id)
    with pytest.raises(RunNotFoundError):
        await of_group("cancel_run", run_id)
    assert await of_group("cancel_runs") == 0
    for name, *given in (("pause_many",), ("resume_many",), ("update_many", {"queue": "q"})):
        assert (await of_group(name, *given, everything=True)).matched == 0
    assert (await of_group("delete_many", everything=True)).matched == 0
    assert {each.owner for each in await of_group("changes")} == {"user:42/"}
    assert list(await of_group("alerts")) == []
    with pytest.raises(AlertNotFoundError):
        await of_group("acknowledge_alert", 1)
    with pytest.raises(AlertNotFoundError):
        await of_group("snooze_alert", 1, until=None)
    assert await of_group("delete_owners", erase_history=True, expected=0) == 0
    assert of_group.missing == set()


async def call_each_of_calendars(calendars, mine):
    made = await calendars("put", "holidays", dates=[START.date()])
    assert await calendars("get", "holidays") == made
    assert [each.name for each in await calendars("list")] == ["holidays"]
    trigger = MINUTELY.excluding(calendar="holidays")
    await mine("create", "dated", task="t", trigger=trigger)
    assert (await mine("get", "dated")).next_run_at > START + timedelta(hours=1)
    with pytest.raises(CalendarInUseError):
        await calendars("delete", "holidays")
    await mine("delete", "dated")
    await calendars("delete", "holidays")
    assert calendars.missing == set()


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
            await every("create_many", [{**new, "owner": "user:7"}])
            assert (await every("move", "n", owner="user:7", to="user:8")).owner == "user:8"
            await every("delete_owner", "user:8")
            await every("alert_targets")
            assert (await mine("usage")).schedules == 1
            assert (await every("usage", "user:42")).schedules == 1
            await call_each_of_group(Caller(dynbeat.schedules.for_group("user:42/")), run_id)
            await call_each_of_calendars(Caller(dynbeat.calendars), mine)
            assert every.missing == mine.missing == set()

    asyncio.run(main())


@pytest.mark.parametrize("joins", [False, True], ids=["alone", "in a session"])
def test_a_calendar_file_is_read_in_a_thread(sqlite_url, monkeypatch, joins):
    icalendar = pytest.importorskip("icalendar", reason="the extra ics is not installed")
    event = "BEGIN:VEVENT\r\nUID:a\r\nDTSTART;VALUE=DATE:20261123\r\nEND:VEVENT\r\n"
    text = f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\n{event}END:VCALENDAR\r\n"
    read = icalendar.Calendar.from_ical
    reading, loop_continues = threading.Event(), threading.Event()

    def read_slowly(*args, **named):
        reading.set()
        # Only another task of the event loop sets it.
        assert loop_continues.wait(20)
        return read(*args, **named)

    monkeypatch.setattr(icalendar.Calendar, "from_ical", read_slowly)

    async def main():
        async with (
            async_application(sqlite_url) as dynbeat,
            AsyncSession(async_engine(dynbeat)) as session,
        ):
            joined = {"session": session} if joins else {}
            call = asyncio.create_task(dynbeat.calendars.put("c", ics=text, **joined))
            assert await asyncio.to_thread(reading.wait, 20)
            loop_continues.set()
            assert len((await call).dates) == 1
            with pytest.raises(InvalidScheduleError) as raised:
                await dynbeat.calendars.put("c", ics="x", **joined)
            assert raised.value.field == "ics"

    asyncio.run(main())


def test_a_cancelled_call_leaves_no_transaction_and_no_connection(database_url):
    """The lock of another transaction holds the call; ``database_url`` checks at the end."""

    async def main():
        async with async_application(database_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            with dynbeat.sync.context.database.engine.connect() as blocker:
                blocker.execute(text("UPDATE dynbeat_schedule SET description = 'x'"))
                call = asyncio.create_task(mine.pause("n"))
                done, _ = await asyncio.wait({call}, timeout=0.2)
                assert not done
                call.cancel()
                # SQLite waits for the lock in a thread, which a cancellation does not reach.
                blocker.rollback()
            with pytest.raises(asyncio.CancelledError):
                await call

            assert pool_of(dynbeat.context.database.engine).checkedout() == 0
            assert (await mine.get("n")).enabled is True
            assert (await mine.pause("n")).enabled is False

    asyncio.run(main())


@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_a_time_out_ends_a_call_that_waits_for_a_lock(server, request):
    url = request.getfixturevalue(f"{server}_url")

    async def main():
        async with async_application(url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            with dynbeat.sync.context.database.engine.connect() as blocker:
                blocker.execute(text("UPDATE dynbeat_schedule SET description = 'x'"))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await mine.pause("n")

                assert pool_of(dynbeat.context.database.engine).checkedout() == 0

    asyncio.run(main())


def test_calls_that_time_out_at_any_point_leave_no_connection(database_url):
    async def main():
        async with async_application(database_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.list()
            for n in range(60):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(n / 4000):
                        await mine.upsert("n", task="t", trigger=timedelta(minutes=n + 1))

            assert pool_of(dynbeat.context.database.engine).checkedout() == 0
            assert (await mine.upsert("n", task="t", trigger=MINUTELY)).name == "n"

    asyncio.run(main())


@pytest.mark.parametrize("cancelled", ["before the file is open", "after the file is open"])
def test_a_connect_that_is_cancelled_closes_its_file(sqlite_url, cancelled):
    opening, may_open, is_open = threading.Event(), threading.Event(), threading.Event()
    files, threads = [], []

    def open_when_allowed(*args, **named):
        threads.append(threading.current_thread())
        opening.set()
        assert may_open.wait(20)
        files.append(sqlite3.Connection(*args, **named))
        is_open.set()
        return files[0]

    async def main():
        options = {"connect_args": {"factory": open_when_allowed}}
        async with async_application(sqlite_url, engine_options=options) as dynbeat:
            call = asyncio.create_task(dynbeat.schedules.list())
            assert await asyncio.to_thread(opening.wait, 20)
            if cancelled == "after the file is open":
                may_open.set()
                # The event loop, which waits here, does not receive the connection.
                assert is_open.wait(20)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            may_open.set()
            assert await asyncio.to_thread(is_open.wait, 20)
            await asyncio.to_thread(wait_until, lambda: is_closed(files[0]), within=20)
            # The thread of aiosqlite sends its results to the event loop, which must be open.
            await asyncio.to_thread(threads[0].join, 20)

    asyncio.run(main())


def is_closed(connection):
    try:
        connection.total_changes  # noqa: B018 - a property that raises
    except sqlite3.ProgrammingError as error:
        return "closed database" in str(error)
    return False


@pytest.mark.parametrize(
    "call", [lambda mine: mine.list(), lambda mine: mine.pause("n")], ids=["read", "write"]
)
def test_a_cancellation_while_the_isolation_level_is_set_leaves_no_connection(
    postgresql_url, monkeypatch, call
):
    async def main():
        async with async_application(postgresql_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            engine = dynbeat.context.database.engine

            def cancel(*_):
                raise asyncio.CancelledError

            with monkeypatch.context() as patched:
                patched.setattr(engine.dialect, "set_isolation_level", cancel)
                with pytest.raises(asyncio.CancelledError):
                    await call(mine)
                assert pool_of(engine).checkedout() == 0

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_callers_session_to_the_caller(database_url):
    async def main():
        async with async_application(database_url) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            with dynbeat.sync.context.database.engine.connect() as blocker:
                blocker.execute(text("UPDATE dynbeat_schedule SET description = 'x'"))

                async def edit():
                    async with AsyncSession(async_engine(dynbeat)) as session, session.begin():
                        await mine.pause("n", session=session)

                call = asyncio.create_task(edit())
                await asyncio.wait({call}, timeout=0.2)
                call.cancel()
                blocker.rollback()
            with pytest.raises(asyncio.CancelledError):
                await call

            assert (await mine.get("n")).enabled is True

    asyncio.run(main())


def test_500_concurrent_calls_share_a_pool_of_ten(database_url):
    async def main():
        options = {"pool_size": 10, "max_overflow": 0, "pool_timeout": 100}
        async with async_application(database_url, engine_options=options) as dynbeat:
            dynbeat.context.given_clock = None
            owners = [dynbeat.schedules.for_owner(f"user:{n}") for n in range(500)]
            await asyncio.gather(*(each.create("n", task="t", trigger=MINUTELY) for each in owners))

            assert (await dynbeat.schedules.count()).count == 500
            assert pool_of(dynbeat.context.database.engine).size() == 10

    asyncio.run(main())
