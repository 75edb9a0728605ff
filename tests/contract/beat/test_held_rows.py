"""Beat, alerts and the main process of a worker never wait for a row that an application holds.

A transaction of another connection locks rows of one owner. Meanwhile all parts do their work for
another owner. The work for the locked rows follows after the end of that transaction. A statement
that waits for a lock fails after a short time, and the test fails with it.
"""

import inspect
import pkgutil
import sys
from datetime import date, timedelta
from functools import partial
from importlib import import_module

import pytest
from sqlalchemy import create_engine, delete, event, select
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, Retry, beat
from celery_dynbeat.alerts.checks import ScheduleCheck
from celery_dynbeat.beat import config_sync, refused
from celery_dynbeat.beat.pruning import prune_changes, prune_runs
from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import (
    CALENDARS,
    LINKS,
    Alert,
    Application,
    Base,
    Calendar,
    Change,
    Hold,
    NodeKind,
    Run,
    Schedule,
    ScheduleCalendar,
)
from celery_dynbeat.process.heartbeat import HeartbeatWriter
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.store.schedules import failing
from celery_dynbeat.testing import ManualBeat, RecordingPublisher
from celery_dynbeat.worker import outcome_recorder
from celery_dynbeat.worker.outcome_recorder import Recorder
from celery_dynbeat.worker.outcomes import Outcome
from celery_dynbeat.worker.pool_check import end_dropped
from tests.support.applications import MINUTELY, START, execute
from tests.support.lock_waits import failing_waits
from tests.support.waiting import wait_until
from tests.support.worker_stub import WorkerStub

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
SOON, LATER = Every(10 * SECOND), Every(30 * DAY)
HELD, FREE = "g/held", "h/free"
#: Schedules whose first run has started, except the first ones.
STARTED = ("broken", "lost", "dropped", "timed", "failed", "recovers", "retries", "replaced")
#: Functions of beat for its start, for unusable requests, and for skipped fire times in a backfill.
NOT_CALLED = {
    *("ensure_application", "_record_application"),
    # dynbeat replan calls the first, and a worker the second, for a locked schedule.
    *("replan_batch", "defer"),
    *(
        "_quarantine",
        "_cancel",
        "_skipped_by_call",
        "_add_skipped",
        "_managed_names",
        "_revoke",
        "_lease",
    ),
}


class RefusingPublisher(RecordingPublisher):
    """Refuses the runs of the task "refused", once and for all."""

    def publish(self, batch):
        refused = {run.run_id: DispatchError("no") for run in batch if run.task == "refused"}
        accepted = super().publish([run for run in batch if run.run_id not in refused])
        return PublishResult(sent=accepted.sent, refused=refused)


class Site:
    """The schedules of two owners that have work of each kind, and the parts that do it."""

    def __init__(self, dynbeat, clock):
        self.dynbeat, self.clock, self.database = dynbeat, clock, dynbeat.context.database
        self.beat = ManualBeat(dynbeat, RefusingPublisher())
        self.worker, self.dead = WorkerStub(dynbeat), WorkerStub(dynbeat, "dead")
        self.settings = dynbeat.context.settings
        self.alerts = ScheduleCheck(
            database=self.database,
            settings=self.settings,
            left_out=LeftOut("the alert of schedule"),
        )
        notify = dynbeat.context.notifier.notify
        self.recorder = Recorder(self.database, settings=self.settings, notify=notify)
        self.node = HeartbeatWriter(
            database=self.database, clock=clock, kind=NodeKind.BEAT, name="b", timeout=60 * SECOND
        )
        self.node.beat()
        self.runs = {}

    def prepare(self):
        """Give both owners work of each kind, which is due within 20 seconds."""
        for owner in (HELD, FREE):
            mine = self.dynbeat.schedules.for_owner(owner)
            self.dynbeat.calendars.upsert(owner[:1], dates=[date(2027, 1, 1)])
            for name in STARTED:
                mine.create(name, task="t", trigger=MINUTELY)
            mine.create("filled", task="t", trigger=MINUTELY)
        self.clock.advance(60 * SECOND)
        self.dead.heartbeat()
        self.worker.heartbeat()
        self.beat.run_until_idle()
        for run in self.beat.publisher.sent:
            self.runs[run.owner, run.name] = run
            if run.name in STARTED[1:]:
                assert (self.dead if run.name == "lost" else self.worker).start(run)
        for owner in (HELD, FREE):
            self._prepare(owner)
        self.clock.advance(35 * SECOND)
        self.worker.heartbeat()
        for owner in (HELD, FREE):
            self._make_due(owner)
        self.database.run(self._damage)

    def _prepare(self, owner):
        mine, now = self.dynbeat.schedules.for_owner(owner), self.clock.now()
        for name in (*STARTED, "filled"):
            mine.update(name, trigger=LATER, pause_after_failures=1)
        for name in ("lost", "dropped", "timed", "failed"):
            # Due again after its run has ended: a claim pauses it.
            mine.update(name, trigger=Every(10 * SECOND), start_at=START + 120 * SECOND)
        mine.update("recovers", pause_after_failures=9)
        self.worker.finish(self.runs[owner, "recovers"], Status.FAILED)
        self.worker.finish(self.runs[owner, "retries"], Status.RETRYING, retry_at=now)
        mine.run_now("recovers")
        self.beat.run_until_idle()
        again = self.runs[owner, "again"] = self.beat.publisher.sent[-1]
        assert self.worker.start(again)

    def _make_due(self, owner):
        mine = self.dynbeat.schedules.for_owner(owner)
        mine.update("replaced", trigger=SOON, overlap="cancel_previous")
        mine.create("due", task="t", trigger=SOON)
        mine.create("refused", task="refused", trigger=SOON)
        mine.create("unplanned", task="t", trigger=LATER)
        mine.create("parked", task="t", trigger=LATER)
        mine.create("rests", task="t", trigger=LATER)
        mine.pause("rests", until=10 * SECOND)
        mine.update("filled", trigger=Every(20 * SECOND, anchor=START))
        mine.backfill("filled", since=START + SECOND, until=START + 30 * SECOND + SECOND)
        mine.rerun_many(since=START)
        dated = Cron("0 9 * * *").excluding(calendar=owner[:1])
        for name in ("dated", "typed"):
            mine.create(name, task="t", trigger=dated)
        self.dynbeat.calendars.upsert(owner[:1], dates=[date(2026, 11, 22)])

    def _damage(self, session):
        """Write what only SQL or the passage of time writes."""
        past = self.clock.now() - 9 * DAY
        session.add(Application(id=1, name="contract"))
        for owner in (HELD, FREE):
            session.add(Hold(owner=owner, created_at=past, until_at=past))
            session.add(Change(owner=owner, name="old", action="update", changed_at=past))
            old = Run(id=new_run_id(past), owner=owner, name="old", task="t", status="succeeded")
            old.fire_at = old.created_at = old.finished_at = past
            session.add(old)
        for schedule in session.scalars(select(Schedule)):
            if schedule.name == "typed":
                links = delete(ScheduleCalendar)
                session.execute(links.where(ScheduleCalendar.schedule_id == schedule.id))
            if schedule.name in {"unplanned", "typed"}:
                schedule.next_run_at = schedule.next_fire_at = None
            elif schedule.name == "parked":
                schedule.held_at = past
            elif schedule.name == "broken":
                schedule.task = "forbidden"
        for run in session.scalars(select(Run)):
            if run.name == "broken":
                run.overdue_at = past
            elif run.status == Status.RETRYING:
                run.retry_at = past

    def make_all_parts_work(self, *, finishing):
        """Let each part do its work once, a minute at most after ``prepare``.

        ``finishing`` are the owners whose runs the tasks of pool processes end: such a process
        waits for its own run.
        """
        self.clock.advance(20 * SECOND)
        now = self.clock.now()
        self.beat.run_until_idle()
        self.node.beat(error=str(now))
        for owner in (HELD, FREE):
            dropped = {self.runs[owner, "dropped"].run_id: 1}
            end = partial(end_dropped, worker=self.worker.name, attempts=dropped)
            self.database.run(partial(end, now=now, settings=self.settings))
            # A hard time limit, reported by the main process.
            self.recorder.record(
                Outcome(
                    run_id=self.runs[owner, "timed"].run_id,
                    attempt=None,
                    worker=self.worker.name,
                    status=Status.FAILED,
                    at=now,
                )
            )
        for owner in finishing:
            self.worker.finish(self.runs[owner, "failed"], Status.FAILED)
            self.worker.finish(self.runs[owner, "again"])
        prune_runs(self.database, now=now, older_than=DAY)
        prune_changes(self.database, now=now, older_than=DAY)
        self.beat.run_until_idle()
        self.clock.advance(11 * SECOND)
        self.beat.run_until_idle()
        self.alerts.run(self.clock.now())

    def pause_failing(self):
        """Let beat claim the schedules that fail, and alerts find them paused."""
        self.clock.advance(5 * SECOND)
        self.beat.run_until_idle()
        self.alerts.run(self.clock.now())

    def undone(self, owner):
        """Return the kinds of work that were not done for the owner."""
        with self.database._session() as session:
            of = partial(_rows_of, session, owner=owner)
            schedule = {row.name: row for row in of(Schedule)}
            runs = of(Run)
            old = (*runs, *of(Change))
            status = {run.id: run.status for run in runs}
            alerts = {(alert.name, alert.kind) for alert in of(Alert)}
            holds = of(Hold)
            linked = select(ScheduleCalendar.planned_with, Calendar).join(Calendar)
            linked = session.execute(linked.where(Calendar.name == owner[:1])).all()
        first = {name: status[self.runs[owner, name].run_id] for name in STARTED}
        origins = {run.origin for run in runs}
        replaced = next(run for run in runs if run.id == self.runs[owner, "replaced"].run_id)
        failing = {name for name, row in schedule.items() if row.failing_since is not None}
        paused = {name for name, row in schedule.items() if not row.enabled}
        done = {
            "sent": any(run.name == "due" and run.sent_at is not None for run in runs),
            "replaced": replaced.cancelled_at is not None,
            "lost": first["lost"] == first["dropped"] == "lost",
            "ended": first["timed"] == first["failed"] == "failed",
            "failing": {"lost", "dropped", "timed", "failed"} <= failing,
            "paused": {"lost", "dropped", "timed", "failed"} <= paused,
            "recovered": "recovers" not in failing,
            "resent": first["retries"] == "sent",
            "swept": first["broken"] == "failed" and schedule["broken"].error is not None,
            "refused": schedule["refused"].error is not None,
            "planned": schedule["unplanned"].next_run_at is not None,
            "unparked": schedule["parked"].held_at is None,
            "resumed": schedule["rests"].enabled,
            "requests": {"backfill", "rerun"} <= origins,
            "pruned": not [row for row in old if row.name == "old"],
            "holds": not holds,
            "calendars": [version for version, _ in linked] == [2, 2]
            and all(each.in_force_at is not None for _, each in linked),
            "alerts": {("lost", "stopped"), ("failed", "stopped")} <= alerts,
        }
        return [kind for kind, is_done in done.items() if not is_done]


def _rows_of(session, model, *, owner):
    return session.scalars(select(model).where(model.owner == owner)).all()


@pytest.fixture
def database_url(request):
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def dynbeat(limited):
    # Limits that no owner reaches: each run goes through the admission.
    limits = {"max_running": 100, "allowed_tasks": ["t", "refused"]}
    return limited(alert_urls=[], node_timeout=40, owner_limits={HELD: limits, FREE: limits})


@pytest.fixture
def site(dynbeat, clock):
    made = Site(dynbeat, clock)
    made.prepare()
    return made


def lock_tables(session, tables):
    """Lock the rows of the held owner, and those of tables without owners."""
    ids = session.scalars(select(Schedule.id).where(Schedule.owner == HELD)).all()
    for table in tables:
        rows = select(table)
        if "owner" in table.c:
            rows = rows.where(table.c.owner == HELD)
        elif table is LINKS:
            # One by one: MariaDB would scan this short table, and lock each row of it.
            for row_id in ids:
                session.execute(rows.where(table.c.schedule_id == row_id).with_for_update()).all()
            continue
        elif "schedule_id" in table.c:
            rows = rows.where(table.c.schedule_id.in_(ids))
        elif table is CALENDARS:
            rows = rows.where(table.c.name == HELD[:1])
        session.execute(rows.with_for_update()).all()


def call_api(session, dynbeat):
    """Make changes of all kinds in the caller's transaction."""
    mine = dynbeat.schedules.for_owner(HELD)
    for name in ("due", "lost", "recovers", "parked"):
        mine.bound(session=session).pause(name)
    for name in ("replaced", "failed", "dropped"):
        mine.bound(session=session).delete(name)
    for name in ("timed", "unplanned", "filled"):
        mine.bound(session=session).update(name, kwargs={"a": 1})
        mine.bound(session=session).run_now(name)
    mine.bound(session=session).hold(reason="r")


TABLES = Base.metadata.tables
RUNS, SCHEDULES = Run.__table__, Schedule.__table__
# No application locks the row of dynbeat_lock.
NOT_OTHERS = (RUNS, SCHEDULES, TABLES["dynbeat_lock"])
LOCKS = {
    "schedules": lambda session, _: lock_tables(session, [SCHEDULES]),
    "runs": lambda session, _: lock_tables(session, [RUNS]),
    "others": lambda session, _: lock_tables(
        session,
        [table for table in TABLES.values() if table not in NOT_OTHERS],
    ),
    "calls": call_api,
}


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_locked_rows_of_one_owner_delay_only_their_own_work(site, lock):
    # Not REPEATABLE READ: there MariaDB locks the gaps between rows, too.
    engine = create_engine(site.database.engine.url, isolation_level="READ COMMITTED")
    finishing = {FREE} if lock in {"runs", "calls"} else {HELD, FREE}

    with failing_waits(site.database.engine) as waits, Session(engine) as holder:
        LOCKS[lock](holder, site.dynbeat)
        site.make_all_parts_work(finishing=finishing)
        # A thread writes an outcome behind that of a locked run. A later claim pauses the schedule.
        wait_until(lambda: {*site.undone(FREE)} <= {"paused", "alerts"}, within=10)
        site.pause_failing()
        assert site.undone(FREE) == []
        assert site.undone(HELD)
        holder.rollback()

        site.worker.heartbeat()
        site.make_all_parts_work(finishing={HELD, FREE} - finishing)
        site.recorder.close()
        site.clock.advance(30 * SECOND)
        site.make_all_parts_work(finishing=())
        assert waits == []
    engine.dispose()

    assert site.undone(HELD) == []


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_locked_runs_of_a_whole_batch_delay_no_other_schedule(limited, clock, monkeypatch):
    monkeypatch.setattr(refused, "BATCH_SIZE", 2)
    dynbeat = limited()
    site_beat, worker = ManualBeat(dynbeat), WorkerStub(dynbeat)
    sent = site_beat.publisher.sent
    held, free = (dynbeat.schedules.for_owner(owner) for owner in (HELD, FREE))
    for name in ("first", "second"):
        held.create(name, task="t", trigger=MINUTELY, overlap="cancel_previous")
    clock.advance(60 * SECOND)
    site_beat.run_until_idle()
    # A batch of another owner alone: no owner comes second in the next one.
    free.create("n", task="t", trigger=Every(62 * SECOND))
    free.create("early", task="t", trigger=Every(30 * SECOND), max_runs=1)
    clock.advance(30 * SECOND)
    site_beat.run_until_idle()
    worker.heartbeat()
    assert all(worker.start(run) for run in sent)
    clock.advance(33 * SECOND)
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with Session(engine) as holder:
        lock_tables(holder, [RUNS])
        pauses = [site_beat.tick() for _ in range(4)]
        assert [run.name for run in sent[3:]] == ["n"]
        assert timedelta(0) < pauses[-1] <= SECOND
    engine.dispose()

    clock.advance(SECOND)
    site_beat.run_until_idle()
    assert sorted(run.name for run in sent[4:]) == ["first", "second"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_locked_ended_runs_of_a_whole_batch_delay_no_other_schedule(limited, clock, monkeypatch):
    monkeypatch.setattr(failing, "MAX_DEFERRED", 2)
    dynbeat = limited()
    site_beat, dead = ManualBeat(dynbeat), WorkerStub(dynbeat, "dead")
    for owner, name in [(HELD, "a"), (HELD, "b"), (FREE, "n")]:
        dynbeat.schedules.for_owner(owner).create(name, task="t", trigger=MINUTELY, max_runs=1)
    clock.advance(60 * SECOND)
    dead.heartbeat()
    site_beat.run_until_idle()
    assert all(dead.start(run) for run in site_beat.publisher.sent)
    with monkeypatch.context() as stopped:
        stopped.setattr("celery_dynbeat.beat.settling.settle_deferred", lambda *_, **__: 0)
        clock.advance(120 * SECOND)
        site_beat.run_until_idle()
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET retry_at = :first WHERE owner = :owner",
        first=START,
        owner=HELD,
    )
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with Session(engine) as holder:
        lock_tables(holder, [RUNS])
        # The two held runs stay at the front of the index.
        for _ in range(2):
            clock.advance(20 * SECOND)
            site_beat.run_until_idle()
        assert dynbeat.schedules.for_owner(FREE).get("n").failing_since is not None
        holder.rollback()
    engine.dispose()

    clock.advance(20 * SECOND)
    site_beat.run_until_idle()
    held = dynbeat.schedules.for_owner(HELD)
    assert None not in {held.get(name).failing_since for name in ("a", "b")}


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_buffered_run_that_is_locked_when_the_run_before_it_ends_is_sent_by_the_next_sweep(
    limited, clock
):
    dynbeat = limited()
    site_beat, worker = ManualBeat(dynbeat), WorkerStub(dynbeat)
    mine = dynbeat.schedules.for_owner(HELD)
    mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one", max_runs=2)
    clock.advance(60 * SECOND)
    site_beat.run_until_idle()
    sent = site_beat.publisher.sent
    assert worker.start(sent[0])
    clock.advance(60 * SECOND)
    worker.heartbeat()
    site_beat.run_until_idle()
    assert len(sent) == 1
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with failing_waits(dynbeat.context.database.engine) as waits, Session(engine) as holder:
        holder.execute(select(Run).where(Run.status == "pending").with_for_update()).all()
        worker.finish(sent[0])
        assert waits == []
        holder.rollback()
    engine.dispose()

    assert {run.status for run in mine.runs()} == {"succeeded", "pending"}
    clock.advance(dynbeat.context.settings.dispatch_timeout)
    worker.heartbeat()
    site_beat.run_until_idle()
    assert len(sent) == 2


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_the_log_says_that_an_outcome_waits_for_a_lock_and_not_for_the_database(site, caplog):
    run = site.runs[HELD, "failed"]
    engine = create_engine(site.database.engine.url, isolation_level="READ COMMITTED")

    with failing_waits(site.database.engine), Session(engine) as holder:
        lock_tables(holder, [RUNS])
        site.worker.finish(run, Status.FAILED)
        holder.rollback()
    engine.dispose()

    [record] = [each for each in caplog.records if getattr(each, "event", "") == "outcome_buffered"]
    text = f"outcome of run {run.run_id} buffered until its row is unlocked: OperationalError"
    assert record.getMessage() == text
    site.worker._recorder.close()
    assert status_of(site, run.run_id) == Status.FAILED


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_outcome_of_a_locked_run_delays_no_other_outcome(site, monkeypatch):
    monkeypatch.setattr(outcome_recorder, "FIRST_DELAY", 0.01)
    held, free = (site.runs[owner, "timed"].run_id for owner in (HELD, FREE))
    ended = {"worker": site.worker.name, "status": Status.FAILED, "at": site.clock.now()}
    engine = create_engine(site.database.engine.url)

    tries = []
    event.listen(site.database.engine, "before_cursor_execute", lambda *given: tries.append(given))

    with Session(engine) as holder:
        lock_tables(holder, [RUNS])
        site.recorder.record(Outcome(run_id=held, attempt=None, **ended))
        # With delays that double, this takes more than a minute.
        wait_until(lambda: len(tries) > 2 * 14, within=10)
        site.recorder.record(Outcome(run_id=free, attempt=1, **ended))
        wait_until(lambda: status_of(site, free) == Status.FAILED, within=10)
        assert status_of(site, held) == Status.RUNNING
        holder.rollback()
    engine.dispose()

    site.recorder.close()
    assert status_of(site, held) == Status.FAILED


def status_of(site, run_id):
    with site.database._session() as session:
        return session.scalar(select(Run.status).where(Run.id == run_id))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_parts_above_call_each_function_of_beat_that_uses_the_database(site):
    """A new step of a pass or of maintenance needs work in ``Site``."""
    called = set()

    def note(frame, happening, _argument):
        if happening == "call":
            called.add(frame.f_code)

    sys.setprofile(note)
    site.make_all_parts_work(finishing=(HELD, FREE))
    sys.setprofile(None)

    assert site.undone(HELD) == site.undone(FREE) == []
    uncalled = {each.__name__ for each in database_functions() if each.__code__ not in called}
    assert uncalled <= NOT_CALLED


def database_functions():
    """Return the functions of beat with a session, and those that settle the end of runs."""
    names = [each.name for each in pkgutil.iter_modules(beat.__path__)]
    modules = [import_module(f"celery_dynbeat.beat.{name}") for name in names]
    modules.append(failing)
    found = [
        inspect.unwrap(each)
        for module in modules
        if module is not config_sync
        for each in vars(module).values()
        if inspect.isfunction(each) and each.__module__ == module.__name__
    ]
    return [
        each for each in found if {"session", "database"} & {*inspect.signature(each).parameters}
    ]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_retry_of_the_policy_does_not_wait_for_its_locked_schedule(limited, clock, is_paused):
    dynbeat = limited()
    site_beat, worker = ManualBeat(dynbeat), WorkerStub(dynbeat)
    mine = dynbeat.schedules.for_owner(HELD)
    mine.create("n", task="t", trigger=MINUTELY, max_runs=1, retry=Retry(max_retries=2, backoff=10))
    clock.advance(60 * SECOND)
    worker.heartbeat()
    site_beat.run_until_idle()
    (run,) = site_beat.publisher.sent
    assert worker.start(run)
    retry_at = clock.now() + 10 * SECOND
    worker.finish(run, Status.RETRYING, retry_at=retry_at, sent_by_beat=True)
    if is_paused:
        execute(dynbeat, "UPDATE dynbeat_schedule SET enabled = :no", no=False)
    clock.advance(60 * SECOND)
    worker.heartbeat()
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with failing_waits(dynbeat.context.database.engine) as waits, Session(engine) as holder:
        holder.execute(select(Schedule).with_for_update())
        site_beat.run_until_idle()
        assert waits == []
        holder.rollback()
    engine.dispose()

    # MariaDB skips a run whose schedule is locked.
    site_beat.run_until_idle()
    assert [each.retries for each in site_beat.publisher.sent] == ([0] if is_paused else [0, 1])
    assert mine.runs("n").items[0].status == ("revoked" if is_paused else "sent")


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_waiting_runs_that_an_application_has_locked_delay_no_other_schedule(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    site_beat, worker = ManualBeat(dynbeat), WorkerStub(dynbeat)
    mine = dynbeat.schedules.for_owner(HELD)
    for name in ("a", "b"):
        mine.create(name, task="t", trigger=LATER)
    for name in [*["a"] * 30, "b"]:
        mine.run_now(name)
        clock.advance(SECOND)
    worker.heartbeat()
    site_beat.run_until_idle()
    (first,) = site_beat.publisher.sent
    assert worker.start(first)
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with failing_waits(dynbeat.context.database.engine) as waits, Session(engine) as holder:
        waiting = select(Run).where(Run.name == "a", Run.status == Status.PENDING)
        assert len(holder.scalars(waiting.with_for_update()).all()) == 29
        worker.finish(first)
        clock.advance(SECOND)
        site_beat.run_until_idle()
        holder.rollback()
    engine.dispose()

    assert waits == []
    assert [run.name for run in site_beat.publisher.sent] == ["a", "b"]
