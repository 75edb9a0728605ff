"""AsyncDynbeat in several event loops: one after another, in turns, and at the same time."""

import asyncio
import contextlib
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from celery_dynbeat import AsyncDynbeat
from celery_dynbeat.db.async_engine import AsyncDatabase
from celery_dynbeat.testing import FrozenClock
from tests.support.applications import MINUTELY, START, application
from tests.support.waiting import wait_until

SESSIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = :name",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = :name",
}
#: asyncio warns of transports that are open when their loop is closed. Only aiomysql has them.
closed_with_transports = pytest.mark.filterwarnings(
    "ignore:unclosed (transport|<socket):ResourceWarning"
)


@contextlib.contextmanager
def asynchronous(url, *, engine=None, **settings):
    with application(url, **settings) as dynbeat:
        yield AsyncDynbeat(dynbeat.app, clock=FrozenClock(START), engine=engine)


@contextlib.contextmanager
def new_loop():
    """Yield an event loop that is closed without a shutdown of its asynchronous generators."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


async def create(dynbeat, name, *, calls=20):
    """Create a schedule for each of 20 owners: more calls than the pool has connections."""
    owners = [dynbeat.schedules.for_owner(f"user:{n}") for n in range(calls)]
    await asyncio.gather(*(each.create(name, task="t", trigger=MINUTELY) for each in owners))


async def count(dynbeat):
    return (await dynbeat.schedules.count()).count


def open_sessions(connection):
    """Return the number of sessions in the database of ``connection``, without its own."""
    name = make_url(str(connection.engine.url)).database
    statement = SESSIONS[connection.dialect.name]
    found = connection.execute(text(statement), {"name": name}).scalar_one() - 1
    connection.rollback()
    return found


@pytest.fixture(params=["postgresql", "mariadb"])
def server_url(request):
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def observer(server_url):
    engine = create_engine(server_url, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def test_calls_work_in_one_event_loop_after_another(database_url):
    with asynchronous(database_url) as dynbeat:
        for n in range(3):
            asyncio.run(create(dynbeat, f"n{n}"))

        assert asyncio.run(count(dynbeat)) == 60


@closed_with_transports
def test_calls_work_after_a_loop_that_was_closed_at_once(database_url):
    with asynchronous(database_url) as dynbeat:
        for n in range(3):
            with new_loop() as loop:
                loop.run_until_complete(create(dynbeat, f"n{n}"))

        assert asyncio.run(count(dynbeat)) == 60
    # Warnings are errors, also those of objects that are deleted here.
    gc.collect()


def test_a_call_that_its_loop_never_finished_affects_no_later_loop(postgresql_url):
    with asynchronous(postgresql_url) as dynbeat:
        asyncio.run(create(dynbeat, "n"))
        with dynbeat.sync.context.database.engine.connect() as blocker:
            blocker.execute(text("UPDATE dynbeat_schedule SET description = 'x'"))
            with new_loop() as loop:
                owner = dynbeat.schedules.for_owner("user:0")
                call = loop.create_task(owner.pause("n"))
                loop.run_until_complete(asyncio.sleep(0.2))
                assert not call.done()
                # The task ends with the loop. asyncio would log it as an error.
                call._log_destroy_pending = False
            blocker.rollback()

        assert asyncio.run(count(dynbeat)) == 20


def test_open_loops_take_turns(database_url):
    with asynchronous(database_url) as dynbeat, asyncio.Runner() as a, asyncio.Runner() as b:
        for n in range(2):
            for runner, name in ((a, f"a{n}"), (b, f"b{n}")):
                runner.run(create(dynbeat, name))

        assert a.run(count(dynbeat)) == b.run(count(dynbeat)) == 80
        a.run(asyncio.sleep(0.01))


@contextlib.contextmanager
def loop_in_thread(main):
    """Run ``main`` in the loop of another thread, and keep the loop running for the block."""
    started, ended = threading.Event(), threading.Event()
    result = []

    async def stay():
        result.append(await main)
        started.set()
        await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(stay(),))
    thread.start()
    try:
        assert started.wait(30)
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_running_loops_of_many_threads_share_a_bounded_number_of_connections(server_url, observer):
    """Each request of a threaded WSGI server runs an asynchronous view in a separate loop."""
    failed, most = [], 0
    with asynchronous(server_url, engine_options={"pool_size": 2, "max_overflow": 1}) as dynbeat:
        # A loop that keeps its pool, as that of an application in the same process.
        with loop_in_thread(create(dynbeat, "kept", calls=5)), ThreadPoolExecutor(20) as threads:

            def request(n):
                # With the actor of the request, whichever thread makes the call.
                with dynbeat.acting(actor=f"request:{n}"):
                    asyncio.run(create(dynbeat, f"n{n}", calls=3))

            requests = [threads.submit(request, n) for n in range(40)]
            while not all(each.done() for each in requests):
                most = max(most, open_sessions(observer))
            failed = [each.exception() for each in requests if each.exception()]

        assert failed == []
        # Two pools, and the connections that are closing.
        assert 2 <= most <= 8
        assert asyncio.run(count(dynbeat)) == 125
        changes = asyncio.run(dynbeat.schedules.for_owner("user:0").changes("n7"))
        assert [each.actor for each in changes] == ["request:7"]
        asyncio.run(dynbeat.dispose())
        wait_until(lambda: open_sessions(observer) == 0, within=5)
    gc.collect()


def test_a_second_running_loop_works_while_the_first_calls(database_url):
    with asynchronous(database_url) as dynbeat:
        with loop_in_thread(create(dynbeat, "n")):
            assert asyncio.run(count(dynbeat)) == 20
            # The thread keeps its pool for the next loop.
            asyncio.run(create(dynbeat, "m"))
            asyncio.run(dynbeat.dispose())
            assert asyncio.run(count(dynbeat)) == 40

        assert asyncio.run(count(dynbeat)) == 40
        asyncio.run(dynbeat.dispose())


def test_a_cancelled_call_of_a_second_running_loop_ends_its_statement(postgresql_url):
    async def main(dynbeat):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await dynbeat.schedules.for_owner("user:0").pause("n")

    with asynchronous(postgresql_url) as dynbeat, loop_in_thread(create(dynbeat, "n")):
        with dynbeat.sync.context.database.engine.connect() as blocker:
            blocker.execute(text("UPDATE dynbeat_schedule SET description = 'x'"))
            asyncio.run(main(dynbeat))
        # The pause did not happen after the lock was released.
        assert asyncio.run(dynbeat.schedules.for_owner("user:0").get("n")).enabled


def test_two_running_loops_can_share_an_engine_without_a_pool(database_url):
    options = {"poolclass": NullPool}
    with (
        asynchronous(database_url, engine_options=options) as dynbeat,
        loop_in_thread(create(dynbeat, "n")),
    ):
        assert asyncio.run(count(dynbeat)) == 20


def test_the_pool_is_closed_when_its_loop_shuts_down(server_url, observer):
    with asynchronous(server_url) as dynbeat:
        for n in range(20):
            asyncio.run(create(dynbeat, f"n{n}", calls=3))
            wait_until(lambda: open_sessions(observer) == 0, within=5)


@closed_with_transports
def test_closed_loops_leave_no_sessions_on_the_server(server_url, observer):
    with asynchronous(server_url) as dynbeat:
        for n in range(20):
            with new_loop() as loop:
                loop.run_until_complete(create(dynbeat, f"n{n}", calls=3))
        asyncio.run(count(dynbeat))

        wait_until(lambda: open_sessions(observer) == 0, within=5)
    gc.collect()


def test_a_dynbeat_that_is_garbage_leaves_no_thread(sqlite_url):
    def threads():
        return {each for each in threading.enumerate() if each.name == "dynbeat-async"}

    before = threads()
    with asynchronous(sqlite_url) as dynbeat, loop_in_thread(create(dynbeat, "a")):
        asyncio.run(create(dynbeat, "b"))
        assert threads() - before
    del dynbeat
    gc.collect()

    wait_until(lambda: threads() <= before, within=10)


def test_dispose_works_in_another_loop(database_url):
    with asynchronous(database_url) as dynbeat, asyncio.Runner() as runner:
        runner.run(create(dynbeat, "n"))
        asyncio.run(dynbeat.dispose())
        asyncio.run(dynbeat.dispose())

        assert runner.run(count(dynbeat)) == 20


def test_calls_continue_after_dispose(database_url):
    async def main(dynbeat):
        await create(dynbeat, "n")
        await dynbeat.dispose()
        return await count(dynbeat)

    with asynchronous(database_url) as dynbeat:
        assert asyncio.run(main(dynbeat)) == 20


@pytest.mark.empty_database
def test_a_database_in_memory_keeps_its_rows():
    with asynchronous("sqlite://") as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        asyncio.run(mine.create("n", task="t", trigger=MINUTELY))

        assert asyncio.run(count(dynbeat)) == 1
        asyncio.run(dynbeat.dispose())


def test_an_engine_of_the_application_is_left_to_the_application(sqlite_url):
    engine = create_async_engine(AsyncDatabase(sqlite_url).engine.url)
    with asynchronous(sqlite_url, engine=engine) as dynbeat:
        asyncio.run(create(dynbeat, "n"))
        pool = engine.pool

        assert asyncio.run(count(dynbeat)) == 20
        assert engine.pool is pool
        asyncio.run(engine.dispose())


def exit_status_of_fork(work):
    """Return the exit status of a child that exits with the result of ``work``."""
    child = os.fork()
    if child == 0:
        status = 255
        try:
            status = work()
        finally:
            # Not an exception: pytest would continue in the child, too.
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_leaves_the_connections_of_its_parent_open(postgresql_url):
    with asynchronous(postgresql_url) as dynbeat, asyncio.Runner() as runner:
        runner.run(create(dynbeat, "n"))
        pool = dynbeat.context.database.engine.pool

        assert exit_status_of_fork(lambda: asyncio.run(count(dynbeat))) == 20
        assert runner.run(count(dynbeat)) == 20
        assert dynbeat.context.database.engine.pool is pool
