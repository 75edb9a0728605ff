"""AsyncDynbeat in several event loops: one after another, in turns, and at the same time."""

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

from celery_dynbeat import AsyncDynbeat
from celery_dynbeat.process.async_context import MAX_THREADS
from celery_dynbeat.testing import FrozenClock
from tests.support.applications import MINUTELY, START, application
from tests.support.databases import pool_of


@contextlib.contextmanager
def asynchronous(url, **settings):
    with application(url, **settings) as dynbeat:
        yield AsyncDynbeat(dynbeat.app, clock=FrozenClock(START))


async def create(dynbeat, name, *, calls=20):
    """Create a schedule for each of 20 owners: more calls than there are threads."""
    owners = [dynbeat.schedules.for_owner(f"user:{n}") for n in range(calls)]
    await asyncio.gather(*(each.create(name, task="t", trigger=MINUTELY) for each in owners))


async def count(dynbeat):
    return (await dynbeat.schedules.count()).count


def test_calls_work_in_one_event_loop_after_another(sqlite_url):
    with asynchronous(sqlite_url) as dynbeat:
        for n in range(3):
            asyncio.run(create(dynbeat, f"n{n}"))

        assert asyncio.run(count(dynbeat)) == 60
        asyncio.run(dynbeat.dispose())
        assert asyncio.run(count(dynbeat)) == 60


def test_open_loops_take_turns(sqlite_url):
    with asynchronous(sqlite_url) as dynbeat, asyncio.Runner() as one, asyncio.Runner() as other:
        one.run(create(dynbeat, "a"))
        other.run(create(dynbeat, "b"))
        one.run(create(dynbeat, "c"))

        assert other.run(count(dynbeat)) == 60


def test_running_loops_of_many_threads_share_the_threads_and_the_pool(postgresql_url):
    """Each request of a threaded WSGI server runs an asynchronous view in a separate loop."""
    options = {"pool_size": 3, "max_overflow": 0}
    with asynchronous(postgresql_url, engine_options=options) as dynbeat:

        def request(n):
            # With the actor of the request, whichever thread makes the call.
            with dynbeat.acting(actor=f"request:{n}"):
                asyncio.run(create(dynbeat, f"n{n}", calls=3))

        with ThreadPoolExecutor(MAX_THREADS + 5) as threads:
            list(threads.map(request, range(40)))

        assert asyncio.run(count(dynbeat)) == 120
        changes = asyncio.run(dynbeat.schedules.for_owner("user:0").changes("n7"))
        assert [each.actor for each in changes] == ["request:7"]
        assert pool_of(dynbeat.context.database.engine).checkedin() <= 3


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


def test_a_forked_child_has_its_own_threads_and_connections(postgresql_url):
    with asynchronous(postgresql_url) as dynbeat:
        asyncio.run(create(dynbeat, "n"))
        pool = pool_of(dynbeat.context.database.engine)

        assert exit_status_of_fork(lambda: asyncio.run(count(dynbeat))) == 20
        assert asyncio.run(count(dynbeat)) == 20
        assert pool_of(dynbeat.context.database.engine) is pool
