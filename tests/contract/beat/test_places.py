"""The limit on the runs of an owner, max_running, and the places that it counts."""

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import and_, create_engine, event, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat import Once
from celery_dynbeat.api.limits import usage_of
from celery_dynbeat.beat import pruning, refused
from celery_dynbeat.beat.admission import admit_waiting
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.store import places
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.ended_runs import end, end_all, start
from tests.support.lock_waits import failing_waits
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

DUE = START + timedelta(minutes=1)
SECOND = timedelta(seconds=1)
OWNER = "user:42"
#: No worker of these tests counts as dead.
LONG = timedelta(days=1)


@pytest.fixture
def limited(database_url, clock):
    """Return a function that yields the Dynbeat of an application with these settings."""
    made = []

    def make(**settings):
        context = application(database_url, clock=clock, **settings)
        made.append(context)
        dynbeat = context.__enter__()
        dynbeat.context.prepare()
        return dynbeat

    yield make
    for context in reversed(made):
        context.__exit__(None, None, None)


def create(dynbeat, count, *, owner=OWNER, at=DUE, **fields):
    dynbeat.schedules.create_many(
        [
            {"owner": owner, "name": f"n{n:05}", "task": "t", "trigger": Once(at), **fields}
            for n in range(count)
        ]
    )


def names(beat):
    return [run.name for run in beat.publisher.sent]


def statuses(dynbeat, **filters):
    return Counter(run.status for run in dynbeat.schedules.runs(limit=200, **filters).items)


def end_running(dynbeat):
    for run in dynbeat.schedules.runs(limit=200, status="running").items:
        end(dynbeat, run.id, "succeeded")


def test_runs_over_the_cap_wait_and_start_when_a_run_ends(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 2}})
    create(dynbeat, 5)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)

    beat.run_until_idle()
    assert sorted(names(beat)) == ["n00000", "n00001"]
    assert statuses(dynbeat) == {"sent": 2, "pending": 3}

    for ended in range(3):
        run = beat.publisher.sent[ended]
        start(dynbeat, run.run_id)
        clock.advance(SECOND)
        beat.run_until_idle()
        assert len(beat.publisher.sent) == 2 + ended
        end(dynbeat, run.run_id, "succeeded")
        beat.run_until_idle()
        assert len(beat.publisher.sent) == 3 + ended


def test_a_waiting_run_expires(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    create(dynbeat, 3, expires_after=30)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    start(dynbeat, beat.publisher.sent[0].run_id)
    dynbeat.schedules.for_owner(OWNER).update("n00002", expires_after=600)

    clock.advance(timedelta(seconds=31))
    beat.run_until_idle()

    assert [run.status for run in dynbeat.schedules.for_owner(OWNER).runs("n00001").items] == [
        "expired"
    ]
    assert statuses(dynbeat) == {"running": 1, "expired": 1, "pending": 1}
    end(dynbeat, beat.publisher.sent[0].run_id, "succeeded")
    beat.run_until_idle()
    assert names(beat) == ["n00000", "n00002"]


@pytest.mark.parametrize("overlap", ["skip", "cancel_previous"])
def test_free_places_send_no_run_of_a_batch_with_another_run_of_its_schedule(
    limited, clock, overlap
):
    dynbeat = limited(owner_limits={"*": {"max_running": 2}})
    mine = dynbeat.schedules.for_owner(OWNER)
    create(dynbeat, 2)
    mine.create("n", task="t", trigger=MINUTELY, overlap=overlap)
    mine.pause("n")
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    mine.backfill("n", since=START, until=DUE, per_minute=6_000)
    beat.run_until_idle()
    mine.run_now("n")
    beat.run_until_idle()
    assert names(beat) == ["n00000", "n00001"]

    origins = []
    for _ in range(3):
        for run in beat.publisher.sent:
            start(dynbeat, run.run_id)
            end(dynbeat, run.run_id, "succeeded")
        beat.publisher.sent.clear()
        clock.advance(2 * SECOND)
        beat.run_until_idle()
        origins.append([run.origin for run in beat.publisher.sent])

    assert origins == [["manual"], ["backfill"], []]


@each_database
def test_a_run_that_is_sent_while_places_are_counted_keeps_its_place(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    database = dynbeat.context.database
    if database.capabilities.embedded:
        pytest.skip("SQLite has one writer")
    create(dynbeat, 2)
    clock.move_to(DUE)
    ManualBeat(dynbeat).run_until_idle()
    unconfirmed = "UPDATE dynbeat_run SET status = 'pending' WHERE status = 'sent'"
    assert execute(dynbeat, unconfirmed) == 1
    confirmed = []

    def confirm(_connection, _cursor, statement, *_):
        if "count(*)" in statement and not confirmed:
            confirmed.append(True)
            sent = "UPDATE dynbeat_run SET status = 'sent' WHERE overdue_at IS NOT NULL"
            assert execute(dynbeat, sent) == 1

    settings = dynbeat.context.settings.for_pass()
    event.listen(database.engine, "after_cursor_execute", confirm)
    try:
        done = database.run(partial(admit_waiting, now=clock.now(), settings=settings))
    finally:
        event.remove(database.engine, "after_cursor_execute", confirm)

    assert (confirmed, done.admitted) == ([True], 0)


@pytest.mark.parametrize("left", [{"owner_limits": {}}, {}])
def test_a_removed_limit_lets_all_waiting_runs_start(limited, clock, left):
    dynbeat = limited(owner_limits={OWNER: {"max_running": 1}})
    create(dynbeat, 5)
    clock.move_to(DUE)
    ManualBeat(dynbeat).run_until_idle()

    beat = ManualBeat(limited(**left))
    beat.run_until_idle()

    assert sorted(names(beat)) == ["n00001", "n00002", "n00003", "n00004"]


@each_database
def test_beat_without_the_setting_sends_the_waiting_runs_of_another_process(limited, clock):
    beat = ManualBeat(limited())
    beat.run_until_idle()
    process = limited(owner_limits={"*": {"max_running": 1}})
    create(process, 1, at=DUE + timedelta(days=1))
    mine = process.schedules.for_owner(OWNER)
    mine.run_now("n00000")
    mine.run_now("n00000")

    clock.advance(timedelta(seconds=30))
    beat.run_until_idle()

    assert len(beat.publisher.sent) == 2


def test_waiting_runs_keep_waiting_while_the_limits_are_not_known(limited, clock):
    answers = [None]

    def limits_of(name):
        del name
        if answers:
            return {"max_running": 1}
        raise ConnectionError

    dynbeat = limited(owner_limits=limits_of)
    create(dynbeat, 4)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    answers.clear()
    first = beat.publisher.sent[0].run_id
    start(dynbeat, first)
    end(dynbeat, first, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()
    assert len(beat.publisher.sent) == 1

    answers.append(None)
    clock.advance(SECOND)
    beat.run_until_idle()
    assert len(beat.publisher.sent) == 2


SECOND_ATTEMPT = attempts.AttemptStart(run_id="", expected_attempt=1, retries=0, worker="w2", pid=2)
RETRY = attempts.AttemptEnd(run_id="", attempt=1, worker="w", status=Status.RETRYING, at=START)
#: Each transition from ``lost`` to a status of an unfinished run.
RETURNS = {
    "restarted": lambda session, run_id: attempts.restart(
        session, replace(SECOND_ATTEMPT, run_id=run_id), now=DUE
    ),
    "redelivered": lambda session, run_id: attempts.note_redelivery(
        session, run_id=run_id, attempt=1
    ),
    "not started": lambda session, run_id: attempts.undo_start(
        session, run_id=run_id, worker="w", pid=1, before=DUE
    ),
    "retrying": lambda session, run_id: attempts.finish(session, replace(RETRY, run_id=run_id)),
}


@pytest.mark.parametrize("returns", RETURNS)
@each_database
def test_a_lost_run_uses_its_place_again_if_it_is_unfinished_again(limited, clock, returns):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}}, node_timeout=LONG)
    create(dynbeat, 3)
    usage = dynbeat.schedules.for_owner(OWNER).usage
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    lost = beat.publisher.sent[0]
    start(dynbeat, lost.run_id)
    end(dynbeat, lost.run_id, "lost")
    clock.advance(SECOND)
    beat.run_until_idle()
    second = beat.publisher.sent[1]
    start(dynbeat, second.run_id)
    assert usage().running == 1

    # Beat also prunes.
    clock.advance(2 * pruning.FIRST_DELAY)
    beat.run_until_idle()
    assert dynbeat.context.database.run(partial(RETURNS[returns], run_id=lost.run_id))
    assert usage().running == 2
    end(dynbeat, second.run_id, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()

    assert usage().running == 1
    assert dynbeat.schedules.for_owner(OWNER).runs("n00002").items[0].status == "pending"


class CrashError(BaseException):
    """Beat dies here."""


class Installation:
    """Two beats that crash at any point, and workers that end or lose runs, at random."""

    def __init__(self, dynbeat, seed):
        self.dynbeat = dynbeat
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.beats = [self.new_beat(), self.new_beat()]
        self.sent, self.executed = set(), Counter()

    def new_beat(self):
        return ManualBeat(self.dynbeat, failpoint=self.crash)

    def crash(self, _point):
        if self.rng.random() < 0.15:
            raise CrashError

    def step(self):
        beat = self.rng.choice(self.beats)
        try:
            beat.tick()
        except CrashError:
            self.beats[self.beats.index(beat)] = self.new_beat()
        self.sent |= {(run.run_id, run.attempt) for run in beat.publisher.sent}
        for run_id, attempt in sorted(self.sent - self.executed.keys()):
            if self.rng.random() < 0.5 and start(self.dynbeat, run_id, after=attempt):
                self.executed[run_id, attempt] += 1

    def busy(self, caps):
        """Return the number of runs with a place by key."""
        is_given = and_(Run.status == Status.PENDING, Run.overdue_at.is_not(None))
        has_place = or_(Run.status.in_(["sent", "running"]), is_given)
        owners = self.dynbeat.context.database.read(
            lambda session: session.scalars(select(Run.owner).where(has_place)).all()
        )
        return Counter(caps[owner][1] or owner for owner in owners if caps[owner])

    def end_some(self):
        for run in self.dynbeat.schedules.runs(limit=200, status="running").items:
            if self.rng.random() < 0.3:
                self.end(run, self.rng.choice(["succeeded", "failed", "lost", "retrying"]))
        for run in self.dynbeat.schedules.runs(limit=200, status="pending").items:
            mine = self.dynbeat.schedules.for_owner(run.owner)
            if self.rng.random() < 0.01:
                mine.cancel_run(run.id)
            elif self.rng.random() < 0.005:
                mine.delete(run.name)

    def end(self, run, status):
        if status == "retrying" and run.attempt == 1:
            retry_later(self.dynbeat, run.id, delay=self.rng.choice([0, 3, 20]) * SECOND)
        elif status != "retrying":
            end(self.dynbeat, run.id, status, attempt=run.attempt)


@pytest.mark.parametrize("seed", range(8))
@each_database
def test_no_limit_is_exceeded_and_each_run_ends_after_any_crashes(
    limited, clock, seed, database_url, monkeypatch
):
    monkeypatch.setattr(refused, "BATCH_SIZE", 4)
    if not database_url.startswith("sqlite") and seed > 1:
        pytest.skip("no database affects the other sequences")
    caps = {"a": (3, "org:7"), "b": (3, "org:7"), "c": (1, None), "d": None}

    def limits_of(owner):
        if caps[owner] is None:
            return None
        most, key = caps[owner]
        return {"max_running": most, "running_key": key}

    dynbeat = limited(owner_limits=limits_of, dispatch_timeout=5)
    for owner in caps:
        create(dynbeat, 7, owner=owner, retry={"max_retries": 1, "backoff": 3})
    clock.move_to(DUE)
    installation = Installation(dynbeat, seed)
    for step in range(600):
        before = installation.busy(caps)
        if step == 20:
            # An owner leaves the key, and the others have a lower limit.
            caps.update(a=(2, "org:7"), b=(2, "b"), d=(1, None))
            before = installation.busy(caps)
        installation.step()
        clock.advance(SECOND * installation.rng.choice([0, 0, 1, 6]))
        for key, count in installation.busy(caps).items():
            most = max(cap[0] for owner, cap in caps.items() if cap and (cap[1] or owner) == key)
            # The runs with a place may exceed a lower limit until they end.
            assert count <= max(most, before[key]), (key, step)
        installation.end_some()
        found = statuses(dynbeat)
        if sum(found.values()) == 28 and not set(found) & {
            "pending",
            "sent",
            "running",
            "retrying",
        }:
            break
    assert sum(statuses(dynbeat).values()) == 28
    assert not set(statuses(dynbeat)) & {"pending", "sent", "running", "retrying"}
    assert all(starts <= 1 for starts in installation.executed.values())
    assert usage_of(dynbeat.context, None, "b").running == 0


@each_database
def test_status_warns_of_a_long_wait_and_names_the_runs_that_have_the_places(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    create(dynbeat, 3)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    has_place = beat.publisher.sent[0]

    def warning():
        found = evaluate(collect_health(dynbeat.app)).warnings
        return next((each.text for each in found if each.code == "runs_wait_for_place"), None)

    clock.advance(timedelta(minutes=1))
    assert warning() is None
    clock.advance(SECOND)
    assert warning() == (
        f"runs wait for a place: 2 of {OWNER!r} for up to 61 s, these runs have its places:"
        f" {has_place.run_id} of 'n00000' of owner {OWNER!r}"
    )
    for _ in range(2):
        end_all(dynbeat, beat.publisher.sent, "succeeded")
        clock.advance(SECOND)
        beat.run_until_idle()
    assert warning() is None


def test_owners_with_one_key_share_its_places_and_the_oldest_run_is_first(limited, clock):
    key = {"max_running": 1, "running_key": "customer:7"}
    dynbeat = limited(owner_limits={"u1": key, "u2": key, "u3": {"max_running": 1}})
    for number, owner in enumerate(["u2", "u1", "u2", "u3"]):
        create(dynbeat, 1, owner=owner, at=DUE + number * SECOND) if number != 2 else None
    dynbeat.schedules.for_owner("u2").create("later", task="t", trigger=Once(DUE + 2 * SECOND))
    beat = ManualBeat(dynbeat)
    clock.move_to(DUE)
    for _ in range(5):
        clock.advance(SECOND)
        beat.run_until_idle()
    assert Counter(run.owner for run in beat.publisher.sent) == {"u2": 1, "u3": 1}
    for _ in range(3):
        end_all(dynbeat, beat.publisher.sent, "succeeded")
        clock.advance(SECOND)
        beat.run_until_idle()

    assert [run.owner for run in beat.publisher.sent if run.owner != "u3"] == ["u2", "u1", "u2"]


def retry_later(dynbeat, run_id, *, delay, by_beat=True):
    """End the first attempt of a run. Its next one is due after ``delay``."""
    now = dynbeat.context.clock.now()
    again = attempts.AttemptEnd(
        run_id=run_id,
        attempt=1,
        worker="w",
        status=Status.RETRYING,
        at=now,
        retry_at=now + delay,
        sent_by_beat=by_beat,
    )
    assert dynbeat.context.database.run(partial(attempts.finish, attempt_end=again))


def test_a_run_that_celery_retries_keeps_its_place(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    create(dynbeat, 2)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    first = beat.publisher.sent[0].run_id
    start(dynbeat, first)
    retry_later(dynbeat, first, delay=10 * SECOND, by_beat=False)
    clock.advance(SECOND)
    beat.run_until_idle()

    assert names(beat) == ["n00000"]
    assert dynbeat.schedules.for_owner(OWNER).usage().running == 1


@each_database
def test_a_beat_that_gives_places_lets_no_other_beat_give_them(limited, clock, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    create(dynbeat, 2)
    mine = dynbeat.schedules.for_owner(OWNER)
    # Recorded without a pass.
    mine.run_now("n00000")
    mine.run_now("n00001")
    settings = dynbeat.context.settings.for_pass()
    admit_all = partial(admit_waiting, now=clock.now(), settings=settings)
    database = dynbeat.context.database
    assert database.run(places.lock)

    def admit_meanwhile(session):
        assert places.lock(session)
        return database.run(admit_all).admitted

    assert database.run(admit_meanwhile) == 0
    assert database.run(admit_all).admitted == 1
    assert database.run(admit_all).admitted == 0


def waits(dynbeat):
    """Return what each run waited for, and its wait from its fire time on, by the name."""

    def read(session):
        rows = session.scalars(select(Run).order_by(Run.name))
        return {row.name: (row.waited_for, row.ready_at) for row in rows}

    return dynbeat.context.database.read(read)


@each_database
def test_a_run_stores_that_it_waited_for_a_place_and_since_when_it_could_be_sent(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    create(dynbeat, 2)
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    assert waits(dynbeat) == {"n00000": (None, None), "n00001": ("place", None)}
    clock.advance(40 * SECOND)
    end_all(dynbeat, beat.publisher.sent, "succeeded")
    beat.run_until_idle()

    assert waits(dynbeat) == {
        "n00000": (None, None),
        "n00001": ("place", DUE + 40 * SECOND),
    }


def test_schedules_with_cancel_previous_take_turns(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    mine = dynbeat.schedules.for_owner(OWNER)
    for number in range(4):
        mine.create(f"n{number}", task="t", trigger=MINUTELY, overlap="cancel_previous")
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    beat.run_until_idle()
    started, ends = [], clock.now()
    # Each run takes 25 seconds, so two or three of four runs start in a minute.
    for _ in range(20 * 12):
        clock.advance(5 * SECOND)
        node.heartbeat()
        if started and clock.now() >= ends:
            end(dynbeat, started[-1].run_id, "succeeded")
        beat.run_until_idle()
        for run in beat.publisher.sent:
            if start(dynbeat, run.run_id):
                started.append(run)
                ends = clock.now() + 25 * SECOND

    counts = Counter(run.name for run in started)
    assert len(started) > 40
    assert min(counts[f"n{number}"] for number in range(4)) > len(started) / 6


def test_many_runs_that_wait_for_previous_runs_do_not_hide_the_next_one(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 30}})
    create(dynbeat, 1, at=DUE + 2 * timedelta(minutes=1))
    mine = dynbeat.schedules.for_owner(OWNER)
    for number in range(25):
        mine.create(f"long{number}", task="t", trigger=MINUTELY, overlap="buffer_one")
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    for _ in range(4):
        clock.advance(timedelta(minutes=1))
        node.heartbeat()
        beat.run_until_idle()
        for run in beat.publisher.sent:
            start(dynbeat, run.run_id)

    assert names(beat)[25:] == ["n00000"]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
@each_database
def test_a_backfill_that_waited_for_a_place_does_not_overlap_a_fire_time(limited, clock, overlap):
    dynbeat = limited(owner_limits={"*": {"max_running": 2}})
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("a", task="t", trigger="* * * * *", overlap=overlap)
    mine.create("other", task="t", trigger=Once(DUE + timedelta(days=1)))
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    beat.run_until_idle()
    for _ in range(2):
        mine.run_now("other")
    mine.backfill("a", since=START - timedelta(minutes=3), until=START)
    beat.run_until_idle()
    clock.move_to(DUE)
    node.heartbeat()
    beat.run_until_idle()
    assert statuses(dynbeat, name="a") == {"pending": 4}
    for run in beat.publisher.sent:
        start(dynbeat, run.run_id)
    end_running(dynbeat)
    for _ in range(3):
        clock.advance(SECOND)
        beat.run_until_idle()

    # There is a free place, which the fire time does not get.
    assert [run.origin for run in beat.publisher.sent[2:]] == ["backfill"]
    start(dynbeat, beat.publisher.sent[2].run_id)
    end_running(dynbeat)
    clock.advance(SECOND)
    beat.run_until_idle()
    assert [run.origin for run in beat.publisher.sent[3:4]] == ["schedule"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_claim_that_replaces_waiting_runs_does_not_wait_for_new_places(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    for owner in ("a", "b"):
        mine = dynbeat.schedules.for_owner(owner)
        mine.create("first", task="t", trigger=Once(DUE + timedelta(days=1)))
        mine.run_now("first")
        for name in ("x", "y"):
            mine.create(name, task="t", trigger=MINUTELY, overlap="cancel_previous")
    beat, node = ManualBeat(dynbeat), WorkerStub(dynbeat, "w")
    clock.move_to(DUE)
    node.heartbeat()
    beat.run_until_idle()
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with failing_waits(dynbeat.context.database.engine) as waits, Session(engine) as holder:
        # The run of the application is newer than the runs of the claim.
        clock.move_to(DUE + timedelta(minutes=2))
        dynbeat.schedules.for_owner("c").create(
            "n", task="t", trigger=Once(DUE + timedelta(days=1))
        )
        dynbeat.schedules.for_owner("c", session=holder).run_now("n")
        holder.flush()
        clock.move_to(DUE + timedelta(minutes=1))
        beat.tick()
        holder.rollback()
    engine.dispose()

    assert waits == []
    for name in ("x", "y"):
        assert statuses(dynbeat, name=name, owner="a") == {"revoked": 1, "pending": 1}


def test_a_function_that_fails_is_called_twice_a_second_for_each_waiting_owner(
    limited, clock, monkeypatch
):
    monkeypatch.setattr("celery_dynbeat.beat.admission.MAX_KEYS", 3)
    failed = []

    def limits_of(name):
        if failed:
            failed.append(name)
            raise KeyError(name)
        return {"max_running": 1}

    dynbeat = limited(owner_limits=limits_of)
    for number in range(9):
        create(dynbeat, 2, owner=f"user:{number}")
    clock.move_to(DUE)
    beat = ManualBeat(dynbeat)
    beat.run_until_idle()
    failed.append("")
    ends = clock.now() + 10 * SECOND
    while clock.now() < ends:
        clock.advance(max(beat.tick(), timedelta(milliseconds=50)))

    assert 10 * 2 * 9 * 0.8 <= len(failed) <= 10 * 2 * 9 * 1.2
