"""Tasks that ManualBeat executes in the process of the test."""

from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery, signals
from celery.exceptions import Ignore, Reject

from celery_dynbeat import ConfigurationError, Cron, Dynbeat, Every, Once, Retry
from celery_dynbeat.testing import FrozenClock, ManualBeat, override

NINE = datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.fixture
def app(tmp_path):
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.dynbeat_database_url = f"sqlite:///{tmp_path}/test.sqlite3"
    return app


@pytest.fixture
def clock():
    return FrozenClock(NINE)


@pytest.fixture
def dynbeat(app, clock):
    dynbeat = Dynbeat(app, clock=clock)
    yield dynbeat
    dynbeat.context.database.dispose()


@pytest.fixture
def mine(dynbeat):
    return dynbeat.schedules.for_owner("user:42")


@pytest.fixture
def beat(dynbeat):
    return ManualBeat(dynbeat, run_tasks=True)


def add_task(app, name, call):
    @app.task(name=name, shared=False)
    def body():
        call()


def statuses(mine, name="s"):
    return [run.status for run in mine.runs(name)]


def test_a_task_gets_its_arguments_its_fire_time_and_its_attempt(app, beat, clock, mine):
    seen = []

    @app.task(name="t", shared=False, bind=True)
    def body(self, *args, **kwargs):
        seen.append((args, kwargs, self.request.dynbeat_fire_at, self.request.headers))

    mine.create("s", task="t", args=[1], kwargs={"b": 2}, trigger=Every(timedelta(hours=1)))
    clock.advance(3600)

    beat.run_until_idle()

    ((args, kwargs, fire_at, headers),) = seen
    assert (args, kwargs) == ((1,), {"b": 2})
    assert datetime.fromisoformat(fire_at) == NINE + timedelta(hours=1)
    assert headers["dynbeat_owner"] == "user:42"
    assert headers["dynbeat_attempt"] == 1
    (run,) = mine.runs("s")
    assert (run.status, run.attempt, run.started_at) == ("succeeded", 1, clock.now())


def test_a_task_that_raises_ends_its_run_as_failed(app, beat, clock, mine):
    @app.task(name="t", shared=False)
    def body():
        raise ValueError("no such user")

    mine.create("s", task="t", trigger=Once(NINE + timedelta(minutes=1)))
    clock.advance(60)

    beat.run_until_idle()

    (run,) = mine.runs("s")
    assert (run.status, run.error) == ("failed", "ValueError: no such user")
    assert "raise ValueError" in run.traceback


def test_with_eager_propagates_the_error_of_a_task_is_raised_and_recorded(app, beat, clock, mine):
    @app.task(name="t", shared=False)
    def body():
        raise ValueError("no such user")

    app.conf.task_eager_propagates = True
    mine.create("s", task="t", trigger=Once(NINE + timedelta(minutes=1)))
    clock.advance(60)

    with pytest.raises(ValueError, match="no such user"):
        beat.run_until_idle()

    assert statuses(mine) == ["failed"]


def test_a_retry_runs_when_the_clock_has_reached_its_time(app, beat, clock, mine):
    seen = []

    @app.task(name="t", shared=False, bind=True, max_retries=2)
    def body(self):
        seen.append((clock.now(), self.request.retries, self.request.headers["dynbeat_attempt"]))
        if self.request.retries < 2:
            raise self.retry(countdown=30)

    mine.create("s", task="t", trigger=Once(NINE + timedelta(minutes=1)))
    clock.advance(60)
    beat.run_until_idle()
    beat.run_until_idle()
    assert statuses(mine) == ["retrying"]

    for _ in range(2):
        clock.advance(30)
        beat.run_until_idle()

    first = NINE + timedelta(minutes=1)
    assert seen == [(first + timedelta(seconds=30) * n, n, n + 1) for n in range(3)]
    assert statuses(mine) == ["succeeded"]


def test_exceeded_retries_end_the_run_as_failed(app, beat, clock, mine):
    @app.task(name="t", shared=False, bind=True, max_retries=0)
    def body(self):
        raise self.retry(countdown=1, exc=OSError("gone"))

    mine.create("s", task="t", trigger=Once(NINE + timedelta(minutes=1)))
    clock.advance(60)

    beat.run_until_idle()

    assert statuses(mine) == ["failed"]


def test_a_retry_policy_starts_a_failed_run_again(app, beat, clock, mine):
    seen = []

    @app.task(name="t", shared=False, bind=True)
    def body(self):
        seen.append((clock.now(), self.request.retries, self.request.headers["dynbeat_attempt"]))
        raise ValueError("no")

    trigger = Once(NINE + timedelta(minutes=1))
    mine.create("s", task="t", trigger=trigger, retry=Retry(max_retries=2, backoff=30, factor=2))
    for seconds in (60, 30, 60):
        assert statuses(mine) != ["failed"]
        clock.advance(seconds)
        beat.run_until_idle()

    first = NINE + timedelta(minutes=1)
    starts = [first, first + timedelta(seconds=30), first + timedelta(seconds=90)]
    assert seen == [(at, n, n + 1) for n, at in enumerate(starts)]
    assert statuses(mine) == ["failed"]


@pytest.mark.parametrize(("error", "status"), [(Ignore(), "succeeded"), (Reject("x"), "failed")])
def test_ignore_and_reject_end_as_in_a_worker(app, beat, clock, mine, error, status):
    @app.task(name="t", shared=False)
    def body():
        raise error

    mine.create("s", task="t", trigger=Once(NINE + timedelta(minutes=1)))
    clock.advance(60)

    beat.run_until_idle()

    assert statuses(mine) == [status]


def test_an_unknown_task_ends_its_run_as_failed(beat, clock, mine):
    mine.create("s", task="no.such.task", trigger=Once(NINE + timedelta(minutes=1)))
    clock.advance(60)

    beat.run_until_idle()

    (run,) = mine.runs("s")
    assert (run.status, run.error) == ("failed", "NotRegistered: no.such.task")


def test_the_signals_of_the_task_are_sent(app, beat, clock, mine):
    ended = []

    def on_postrun(sender, task_id, state, **_):
        ended.append((sender.name, task_id, state))

    add_task(app, "t", lambda: None)
    mine.create("s", task="t", trigger=Once(NINE + timedelta(minutes=1)))
    clock.advance(60)
    signals.task_postrun.connect(on_postrun)
    try:
        beat.run_until_idle()
    finally:
        signals.task_postrun.disconnect(on_postrun)

    assert ended == [("t", mine.runs("s")[0].id, "SUCCESS")]


def test_without_run_tasks_no_task_is_executed(app, clock, dynbeat, mine):
    seen = []
    add_task(app, "t", lambda: seen.append(1))
    beat = ManualBeat(dynbeat)
    mine.create("s", task="t", trigger=Once(NINE + timedelta(minutes=1)))
    clock.advance(60)

    beat.run_until_idle()

    assert (seen, statuses(mine)) == ([], ["sent"])


def test_a_frozen_clock_advances_by_seconds_or_by_a_timedelta(clock):
    assert clock.advance(61) == NINE + timedelta(seconds=61)
    assert clock.advance(timedelta(minutes=1)) == NINE + timedelta(seconds=121)
    assert clock.advance(-121) == NINE


@pytest.mark.parametrize(
    ("url", "is_test"),
    [
        ("sqlite://", True),
        ("sqlite:////srv/app/schedules.sqlite3", False),
        ("sqlite:////srv/app/test.sqlite3", True),
        ("sqlite:////srv/test/app.sqlite3", False),
        ("postgresql+psycopg://app:secret@db/app", False),
        ("postgresql+psycopg://app:secret@db/test_app", True),
        ("postgresql+psycopg://app:secret@db/app-testing", True),
        ("postgresql+psycopg://app:secret@db/contest", False),
        ("postgresql+psycopg://app:secret@db/latest_app", False),
        ("mysql+pymysql://app:secret@testhost/app", False),
    ],
)
def test_a_database_that_may_not_be_a_test_database_is_rejected(app, url, is_test):
    app.conf.dynbeat_database_url = url
    dynbeat = Dynbeat(app)

    if is_test:
        ManualBeat(dynbeat)
        return
    with pytest.raises(ConfigurationError, match="any_database=True") as caught:
        ManualBeat(dynbeat)
    assert "secret" not in str(caught.value)
    ManualBeat(dynbeat, any_database=True)


def test_a_module_level_dynbeat_uses_the_tests_database_and_clock_until_the_block_ends(
    dynbeat, mine, tmp_path, clock
):
    mine.create("kept", task="t", trigger=Cron("0 9 * * *"))
    later = FrozenClock(NINE + timedelta(days=365))
    soon = later.now() + timedelta(seconds=1)

    with override(dynbeat, database=f"sqlite:///{tmp_path}/other.sqlite3", clock=later):
        assert mine.list().items == ()
        assert mine.create("s", task="t", trigger=Once(soon)).next_run_at == soon

    assert [info.name for info in mine.list().items] == ["kept"]
    assert dynbeat.context.clock is clock


def test_a_dynbeat_that_shares_an_engine_can_use_the_engine_of_the_tests(mine, dynbeat):
    engine = dynbeat.context.database.engine
    with override(dynbeat, database=engine):
        mine.create("s", task="t", trigger=Cron("0 9 * * *"))
        assert dynbeat.context.database.engine is engine

    assert mine.get("s")
