"""No call holds one connection of the pool and waits for another.

Each public call runs on a pool of one connection. The clock of the database is cold at its first
reading, and due for another one at each further reading.
"""

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from celery_dynbeat import Every, signals
from celery_dynbeat.api import Calendars, OwnerSchedules, Schedules
from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.insights import charts, history, installation, lists, timeline
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import (
    MINUTELY,
    application,
    async_application,
    async_engine,
    instants,
)

SERVERS = ("postgresql_url", "mariadb_url")
#: A call that asks for a second connection fails after pool_timeout.
POOL_OF_ONE = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.3}
HOUR = timedelta(hours=1)
KINDS = (OwnerSchedules, Schedules, Calendars)
#: Arguments that make an optional part of a call read more.
OPTIONAL = {
    "count": {"state": "overdue"},
    "delete_owner": {"erase_history": True},
    "list": {"state": "held"},
    "set_quiet_hours": {"windows": ["22:00-07:00"]},
    "update": {"trigger": "*/5 * * * *"},
    "upcoming": {"with_skipped": True},
}
STATISTICS = (
    lists.alert_lists,
    installation.banners,
    timeline.schedules_of_bin,
    charts.calendar,
    lists.calendar_schedules,
    history.failures,
    installation.nodes,
    installation.overview,
    history.owner_usage,
    history.recent_runs,
    charts.run_times,
    lists.owners,
    lists.tasks,
    timeline.timeline,
)


class UnsteadyClock(DatabaseClock):
    """The clock of the database, whose last reading is always too old."""

    def _is_reading_due(self):
        return True


def cold(dynbeat):
    """Give the context of an application a clock without a reading."""
    dynbeat.context.given_clock = UnsteadyClock(dynbeat.context.database.read_clock)
    return dynbeat


@pytest.fixture(params=SERVERS)
def server_url(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def seeds(server_url):
    """Make the rows for one call after another."""
    with application(server_url) as dynbeat:
        dynbeat.context.given_clock = None
        yield Seeds(dynbeat)


class Seeds:
    """The arguments of calls, by the names of their parameters."""

    def __init__(self, dynbeat):
        self.dynbeat, self.number = dynbeat, 0

    def arguments(self, call):
        """Return new rows' owner, and the arguments of a call with its required parameters."""
        self.number += 1
        owner, name = f"org:{self.number}/user", call.__name__
        mine = self.dynbeat.schedules.for_owner(owner)
        now = self.dynbeat.context.clock.now()
        trigger = Every(60, anchor=now - HOUR)
        made = mine.create("n", task="t", trigger=trigger)
        soon = instants(mine.upcoming("n", count=2))
        values = {
            "changes": lambda: {"queue": "slow"},
            "dates": lambda: [date(2027, 1, 2)],
            "end_at": lambda: now + HOUR,
            "fire_at": lambda: soon[0],
            "many": lambda: [{"owner": owner, "name": "m", "task": "t", "trigger": MINUTELY}],
            "name": lambda: "n",
            "new_name": lambda: "new",
            "owner": lambda: owner,
            "prefix": lambda: "",
            "batch_id": lambda: (
                mine.backfill("n", since=made.created_at - HOUR, until=now).batch_id
            ),
            "run_id": lambda: mine.run_now("n").id,
            "schedule_ids": lambda: [made.id],
            "since": lambda: now - HOUR,
            "start_at": lambda: now - HOUR,
            "task": lambda: "t",
            "trigger": lambda: trigger,
            "until": lambda: now,
            "zone": lambda: ZoneInfo("UTC") if call in STATISTICS else "Asia/Seoul",
        }
        given = {
            each.name: values[each.name]()
            for each in inspect.signature(call).parameters.values()
            if each.default is each.empty and each.kind != each.VAR_KEYWORD
            if each.name not in {"self", "context", "_context", "session", "dynbeat"}
        }
        given |= OPTIONAL.get(name, {}) if call not in STATISTICS else {}
        if call in vars(Calendars).values():
            return owner, self._arguments_of_calendars(call, given)
        if name == "hold":
            given["until"] = now + HOUR
        if name.endswith("_many") and "everything" in inspect.signature(call).parameters:
            given["everything"] = True
        if name == "create":
            given["name"] = "new"
        if name == "usage":
            given["owner"] = owner
        if name == "unskip":
            mine.skip("n", soon[0])
        if name == "rerun":
            run = {"id": given["run_id"]}
            statement = text(
                "UPDATE dynbeat_run SET status = 'failed', finished_at = created_at,"
                " overdue_at = NULL WHERE id = :id"
            )
            self.dynbeat.context.database.run(lambda session: session.execute(statement, run))
        return owner, given

    def _arguments_of_calendars(self, call, given):
        """Make a calendar, and a schedule that uses it unless the call deletes it."""
        calendar = f"c{self.number}"
        self.dynbeat.calendars.upsert(calendar, dates=[date(2027, 1, 2)])
        if call is not Calendars.delete:
            using = Every(60).excluding(calendar=calendar)
            self.dynbeat.schedules.for_owner("calendars").create(calendar, task="t", trigger=using)
        return {} if call is Calendars.list else {**given, "name": calendar}


def calls():
    """Yield each public call, with the class that has it; None for a function."""
    for kind in KINDS:
        for name, call in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in {"bound", "for_owner"}:
                yield kind, call
    yield from ((None, function) for function in STATISTICS)


def bound(kind, call, dynbeat, owner, session=None):
    if kind is None:
        return partial(call, dynbeat.context)
    if kind is Calendars:
        return getattr(dynbeat.calendars.bound(session=session), call.__name__)
    schedules = dynbeat.schedules.bound(session=session)
    scopes = {
        OwnerSchedules: lambda: schedules.for_owner(owner),
        Schedules: lambda: schedules,
    }
    found = getattr(scopes[kind](), call.__name__)
    if kind is Schedules and call.__name__ == "explain":
        return partial(found, owner=owner)
    return found


def nothing():
    """Succeed."""


def made_cold(dynbeat):
    """Return the context of an application as in a new process."""
    context = cold(dynbeat).context
    context.__dict__.pop("clock", None)
    context._prepared = None
    return context


@pytest.mark.parametrize("server_url", ["postgresql_url"], indirect=True)
def test_each_call_needs_one_connection(server_url, seeds):
    with application(server_url, engine_options=POOL_OF_ONE) as dynbeat:
        for kind, call in calls():
            owner, given = seeds.arguments(call)
            context = made_cold(dynbeat)

            result = bound(kind, call, dynbeat, owner)(**given)
            for _ in result if call.__name__ == "export" else ():
                # The iterator holds no connection between two lines.
                dynbeat.schedules.for_owner(owner).update("n", priority=1)

            assert context.database.engine.pool.checkedout() == 0, call


# Of PostgreSQL below, with asynchronous calls.
@pytest.mark.parametrize("server_url", ["mariadb_url"], indirect=True)
def test_each_call_that_joins_a_session_needs_no_other_connection(server_url, seeds):
    with application(server_url, engine_options=POOL_OF_ONE) as dynbeat:
        engine = dynbeat.context.database.engine
        for kind, call in calls():
            if kind is None:
                continue
            owner, given = seeds.arguments(call)
            made_cold(dynbeat)

            with Session(engine) as session, session.begin():
                session.connection()
                result = bound(kind, call, dynbeat, owner, session)(**given)
                if call.__name__ == "export":
                    assert list(result)


@pytest.mark.parametrize("server_url", ["postgresql_url"], indirect=True)
def test_each_asynchronous_call_of_a_session_uses_its_connection(server_url, seeds):
    async def main():
        async with (
            async_application(server_url, engine_options=POOL_OF_ONE) as dynbeat,
            async_engine(server_url) as engine,
        ):
            for kind, call in calls():
                if kind is None:
                    continue
                owner, given = await asyncio.to_thread(seeds.arguments, call)
                made_cold(dynbeat)
                own = dynbeat.context.database.engine
                async with AsyncSession(engine) as session, session.begin():
                    await session.connection()
                    call_async = bound(kind, call, dynbeat, owner, session)
                    # The only connection of the pool is taken, so that another use of it fails.
                    with own.connect():
                        if call.__name__ == "export":
                            assert [line async for line in call_async(**given)]
                        else:
                            await call_async(**given)

    asyncio.run(main())


def test_40_threads_of_a_new_process_share_the_default_pool(server_url):
    with application(server_url, engine_options={"pool_timeout": 5}) as dynbeat:
        made_cold(dynbeat)
        start = threading.Barrier(40)

        def first_call(number):
            start.wait()
            mine = dynbeat.schedules.for_owner(f"user:{number % 8}")
            return mine.upsert(f"n{number}", task="t", trigger=MINUTELY)

        with ThreadPoolExecutor(40) as threads:
            made = list(threads.map(first_call, range(40)))

        assert len({each.id for each in made}) == 40


def test_a_receiver_of_a_signal_may_call_the_api(server_url):
    with application(server_url, engine_options=POOL_OF_ONE) as dynbeat:
        made_cold(dynbeat)
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY)
        found = []

        @signals.schedule_paused.connect
        def paused(**_):
            found.append((dynbeat.context.clock.now(), mine.get("n").enabled))

        mine.pause("n")
        signals.schedule_paused.disconnect(paused)

        assert [enabled for _, enabled in found] == [False]


def test_a_pass_of_beat_a_run_and_the_health_check_need_one_connection(server_url):
    with application(server_url, engine_options=POOL_OF_ONE) as dynbeat:
        made_cold(dynbeat)
        dynbeat.app.task(nothing, name="t", shared=False)
        beat = ManualBeat(dynbeat, run_tasks=True)
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY)
        mine.run_now("n")
        beat.run_until_idle()

        assert [run.status for run in mine.runs()] == ["succeeded"]
        assert collect_health(dynbeat.app).tables is not None
