"""Use the API, beat and a worker on tables of other names, in a process that has only these.

    python -m tests.support.named_tables URL APPLICATION '{"schema": "billing"}'

Writes what the calls returned as JSON. It is the same for all names.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat import AsyncDynbeat, Cron, Dynbeat, Every, Once
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, application


def exercise(url: str, name: str, names: dict[str, str]) -> str:
    """Return what a process printed that used the tables ``names``. Raises on any error."""
    command = [sys.executable, "-m", "tests.support.named_tables", url, name, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(dynbeat: Dynbeat) -> Iterator[Any]:
    """Make calls of each kind, and yield what they return."""
    clock: Any = dynbeat.context.clock
    beat = ManualBeat(dynbeat, run_tasks=True)
    mine, everything = dynbeat.schedules.for_owner("user:1"), dynbeat.schedules
    mine.set_timezone("Asia/Seoul")
    for i in range(5):
        mine.create(f"n{i}", task="ok", trigger=Every(60 * (i + 1)))
    mine.create("fails", task="fails", trigger=Every(60))
    mine.create("once", task="ok", trigger=Once(START + timedelta(minutes=2)), tags=["a"])
    mine.create("daily", task="ok", trigger=Cron("0 9 * * *"), overlap="buffer_one")
    mine.pause("n4")
    for _ in range(5):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    mine.hold(reason="r")
    clock.advance(timedelta(minutes=2))
    beat.run_until_idle()
    mine.release()
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    mine.rerun_many(since=START)
    mine.backfill("n1", since=START - timedelta(minutes=10), until=START + timedelta(seconds=1))
    beat.run_until_idle()
    mine.skip("daily", mine.preview(Cron("0 9 * * *")).fire_times[0].fire_at)
    for state in ("active", "paused", "held", "quarantined", "finished", "overdue", "failing"):
        yield state, [each.name for each in mine.list(state=state)]
    yield [each.name for each in everything.list(name_prefix="n", order="next_run_at")]
    yield [each.name for each in mine.list(tag="a")], str(everything.count())
    for each in mine.list():
        yield each.name, [(run.status, run.origin) for run in mine.runs(each.name)]
    yield len(mine.changes()), len(list(mine.export()))
    with Session(dynbeat.context.database.engine) as session, session.begin():
        mine.bound(session=session).create("rolled-back", task="ok", trigger=Every(60))
        session.rollback()
    yield asyncio.run(async_results(dynbeat))
    mine.delete("n0")
    yield everything.delete_owner("user:2", erase_history=True)
    yield [each.name for each in everything.list()]


async def async_results(dynbeat: Dynbeat) -> Any:
    """Create a schedule with AsyncDynbeat, and return the names of its owner."""
    made = AsyncDynbeat(dynbeat.app, clock=dynbeat.context.clock)
    other = made.schedules.for_owner("user:2")
    await other.create("async", task="ok", trigger=Every(60))
    listed = [each.name for each in await other.list()]
    await made.dispose()
    return listed


def ok() -> None:
    """Succeed."""


def fails() -> None:
    """Fail."""
    raise RuntimeError("no")


def main() -> None:
    """Read the command line."""
    url, name, names = sys.argv[1:]
    with application(url, main=name, alert_urls=[], **json.loads(names)) as dynbeat:
        dynbeat.app.task(name="ok")(ok)
        dynbeat.app.task(name="fails")(fails)
        json.dump(list(results(dynbeat)), sys.stdout)


if __name__ == "__main__":
    main()
