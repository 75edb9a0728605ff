"""A call of AsyncDynbeat that is cancelled at each of its waits leaves no lock and no open file."""

import asyncio
import gc
import itertools
import time
from datetime import timedelta

import pytest

from tests.support.applications import MINUTELY, async_application
from tests.support.databases import pool_of
from tests.support.versions import needs_sqlalchemy

#: Seconds in which the thread of aiosqlite executes a statement whose result nobody receives.
EXECUTED = 0.002


class Cancelled:
    """``call``, with a cancellation at some of its waits: at the first, the third and so on."""

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


@needs_sqlalchemy(2, 0, 55, "a pool that takes back each connection after a cancellation")
@pytest.mark.parametrize("late", [False, True], ids=["at once", "after the statement"])
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_a_call_that_is_cancelled_at_any_wait_leaves_no_lock(database_url, late, times):
    async def main():
        async with async_application(database_url) as dynbeat:
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

    # The garbage collector would close a connection that is left, some time.
    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
