"""A call of AsyncDynbeat that is cancelled at any of its waits leaves no lock and no connection."""

import asyncio
import contextlib
import gc
import itertools
import sqlite3
import threading
import time
from datetime import timedelta

import pytest
from sqlalchemy import make_url

from tests.support.applications import MINUTELY, async_application
from tests.support.databases import pool_of
from tests.support.versions import needs_sqlalchemy

#: Seconds in which the thread of aiosqlite executes the statement of a late cancellation.
EXECUTED = 0.002


class Cancelled:
    """``call``, cancelled at its waits with the numbers ``waits``; the first wait has number 1.

    ``late``: the driver has executed the statement before the cancellation.
    """

    def __init__(self, call, waits, *, late):
        self._call, self._waits, self._late = call, waits, late
        self.count = 0

    def __await__(self):
        call, task = self._call.__await__(), asyncio.current_task()
        resume, value = call.send, None
        while True:
            try:
                waited_for = resume(value)
            except StopIteration as end:
                return end.value
            self.count += 1
            if self.count in self._waits:
                if self._late:
                    time.sleep(EXECUTED)
                task.cancel()
            try:
                resume, value = call.send, (yield waited_for)
            except BaseException as error:  # noqa: BLE001 - for the call
                resume, value = call.throw, error


async def cancel(call, waits, *, late):
    """Await ``call``; return whether it had the first of ``waits``."""
    cancelled = Cancelled(call, waits, late=late)

    async def wait():
        return await cancelled

    task = asyncio.create_task(wait())
    done, _ = await asyncio.wait({task}, timeout=20)
    assert done, f"a call that was cancelled at the waits {waits} does not end"
    assert task.cancelled() or task.exception() is None
    return cancelled.count >= waits[0]


since_all_connections_return = needs_sqlalchemy(
    2, 0, 55, "a pool that takes back each connection after a cancellation"
)


@pytest.fixture
def no_collection():
    """Turn the garbage collector off, which would close a connection that is left, some time."""
    gc.disable()
    yield
    gc.enable()


def check_that_no_lock_is_left(url, *, times, late, **options):
    async def main():
        async with async_application(url, **options) as dynbeat:
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            for first in itertools.count(1):
                waits = (first, first + 1)[:times]
                trigger = timedelta(minutes=first)
                has_waited = await cancel(
                    mine.upsert("n", task="t", trigger=trigger), waits, late=late
                )
                async with asyncio.timeout(20):
                    await mine.upsert("n", task="t", trigger=trigger)
                if not has_waited:
                    break

            assert first > 5
            assert pool_of(dynbeat.context.database.engine).checkedout() == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@since_all_connections_return
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("late", [False, True], ids=["at once", "after the statement"])
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_a_call_that_is_cancelled_at_any_wait_leaves_no_lock(database_url, late, times):
    check_that_no_lock_is_left(database_url, times=times, late=late)


@since_all_connections_return
@pytest.mark.usefixtures("no_collection")
def test_a_connection_class_of_the_application_leaves_no_lock(sqlite_url):
    class Own(sqlite3.Connection):
        pass

    options = {"connect_args": {"factory": Own}}
    check_that_no_lock_is_left(sqlite_url, times=1, late=True, engine_options=options)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("times", [1, 2])
def test_a_loop_that_ends_during_a_cancelled_call_leaves_no_lock(sqlite_url, times):
    path = make_url(sqlite_url).database
    with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as blocker:

        async def main():
            made = async_application(sqlite_url)
            dynbeat = await made.__aenter__()
            mine = dynbeat.schedules.for_owner("user:42")
            await mine.create("n", task="t", trigger=MINUTELY)
            blocker.execute("BEGIN IMMEDIATE")
            call = asyncio.create_task(mine.upsert("n", task="t", trigger=MINUTELY))
            await asyncio.wait({call}, timeout=0.3)
            assert not call.done()
            for _ in range(times):
                call.cancel()
                await asyncio.sleep(0.1)
            threading.Timer(0.5, blocker.rollback).start()
            return made, dynbeat

        left = asyncio.run(main())

    with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
    assert left
