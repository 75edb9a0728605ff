"""No fire time is lost or sent twice when the clock jumps, also by years and backwards."""

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_dynbeat import Cron, Every
from celery_dynbeat.planning.plan import COUNT_LIMIT
from celery_dynbeat.testing import FrozenClock, ManualBeat
from celery_dynbeat.worker.start_decision import StartAction
from tests.support.applications import MINUTELY, START
from tests.support.property_application import EXAMPLE_FACTOR, delete_all_rows, prepared_application
from tests.support.simulated_cluster import SimulatedCluster
from tests.support.suites import each_database

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
#: Rare enough to send each fire time of several years.
TRIGGERS = {
    "every": Every(11 * DAY),
    "calendar": Every(months=1, timezone="America/New_York"),
    "cron": Cron("30 2 * * sun", timezone="Europe/Berlin"),
}
STEPS = st.one_of(
    st.integers(1, 600).map(lambda seconds: timedelta(seconds=seconds)),
    st.integers(1, 60).map(lambda days: days * DAY),
    st.integers(1, 3 * 366).map(lambda days: days * DAY),
    st.integers(1, 90_000).map(lambda seconds: -timedelta(seconds=seconds)),
    st.integers(1, 2 * 366).map(lambda days: -days * DAY),
)
POLICIES = ["latest", "all", "none"]

#: The runs that are counted at the end must not be pruned.
FOR_EVER = {"resend_after": 36_500 * DAY, "history_retention": 36_500 * DAY}


def fire_times(trigger, *, until):
    found, anchored = [], trigger.anchored_at(START)
    at = anchored.next_after(START)
    while at <= until:
        found.append(at)
        at = anchored.next_after(at)
    return found


def walk(dynbeat, clock, steps):
    """Make a pass of one of two beats after each clock step; return the latest instant."""
    beats = [ManualBeat(dynbeat), ManualBeat(dynbeat)]
    farthest, sent = START, []
    for number, step in enumerate(steps):
        farthest = max(farthest, clock.advance(step))
        beat = beats[number % 2]
        beat.run_until_idle()
        assert all(run.fire_at <= clock.now() for run in beat.publisher.sent)
        sent += beat.publisher.sent
        beat.publisher.sent.clear()
    return farthest, sent


def each_fire_time_is_dealt_with_once(dynbeat, clock, steps):
    mine = dynbeat.schedules.for_owner("user:42")
    for name, trigger in TRIGGERS.items():
        for policy in POLICIES:
            mine.create(f"{name}/{policy}", task="t", trigger=trigger, catch_up=policy)

    farthest, sent = walk(dynbeat, clock, steps)

    for name, trigger in TRIGGERS.items():
        due = fire_times(trigger, until=farthest)
        for policy in POLICIES:
            ours = [run.fire_at for run in sent if run.name == f"{name}/{policy}"]
            assert ours == (due if policy == "all" else sorted(set(ours) & set(due)))
            history = mine.runs(f"{name}/{policy}", limit=1_000)
            assert sum(run.fire_count for run in history) == len(due) < COUNT_LIMIT


def check(url, *, examples):
    clock = FrozenClock(START)
    # There is no worker: sent runs stay sent.
    with prepared_application(url, clock=clock, **FOR_EVER) as dynbeat:

        @settings(max_examples=examples * EXAMPLE_FACTOR, suppress_health_check=list(HealthCheck))
        @given(steps=st.lists(STEPS, min_size=1, max_size=8))
        def each(steps):
            delete_all_rows(dynbeat)
            clock.move_to(START)
            each_fire_time_is_dealt_with_once(dynbeat, clock, steps)

        each()


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_random_clock_steps_give_each_fire_time_once_on_sqlite(sqlite_url):
    check(sqlite_url, examples=40)


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_random_clock_steps_give_each_fire_time_once_on_postgresql(postgresql_url):
    check(postgresql_url, examples=4)


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_fire_times_planned_again_after_the_clock_was_set_back_are_not_sent_twice(sqlite_url):
    clock = FrozenClock(START)
    with prepared_application(sqlite_url, clock=clock, **FOR_EVER) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")

        @settings(max_examples=40 * EXAMPLE_FACTOR, suppress_health_check=list(HealthCheck))
        @given(walks=st.lists(st.lists(STEPS, max_size=3), min_size=2, max_size=5))
        def each(walks):
            delete_all_rows(dynbeat)
            clock.move_to(START)
            trigger, other = Cron("0 9 * * mon"), Cron("0 9 1 * *")
            for policy in POLICIES:
                mine.create(policy, task="t", trigger=trigger, catch_up=policy)
            sent = []
            for number, steps in enumerate(walks):
                sent += walk(dynbeat, clock, steps)[1]
                for policy in POLICIES:
                    mine.pause(policy)
                    mine.update(policy, trigger=(other, trigger)[number % 2])
                    mine.resume(policy)

            fires = Counter((run.name, run.fire_at) for run in sent)
            assert set(fires.values()) <= {1}

        each()


def test_a_fire_time_that_already_has_a_run_does_not_count_for_max_runs(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=Cron("* * * * *"), max_runs=3)
    for _ in range(2):
        clock.advance(MINUTE)
        beat.run_until_idle()

    clock.move_to(START)
    mine.pause("n")
    mine.resume("n")
    for _ in range(4):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert [run.fire_at for run in sent] == [START + n * MINUTE for n in (1, 2, 3)]
    assert mine.get("n").run_count == 3


@pytest.fixture
def running(dynbeat, mine, beat):
    """Give a function that starts a run in a worker of its own."""

    def running():
        cluster = SimulatedCluster(dynbeat)
        cluster.start_worker("w1")
        mine.create("n", task="t", trigger=MINUTELY, on_lost="rerun")
        mine.run_now("n")
        beat.run_until_idle()
        cluster.enqueue(beat.publisher.sent)
        return cluster

    return running


@each_database
def test_a_run_of_a_live_worker_is_not_lost_when_the_clock_is_set_back(mine, clock, beat, running):
    cluster = running()
    clock.advance(-timedelta(seconds=5))
    cluster.heartbeat()
    assert cluster.deliver(cluster.queue[0], "w1") is StartAction.START

    beat.run_until_idle()

    assert [run.status for run in mine.runs("n")] == ["running"]


@each_database
def test_beat_still_rescues_lost_runs_after_the_clock_is_set_back(mine, clock, beat, running):
    cluster = running()
    clock.advance(366 * DAY)
    beat.run_until_idle()
    clock.move_to(START + MINUTE)
    mine.pause("n")
    cluster.start_worker("w1")
    assert cluster.deliver(cluster.queue[0], "w1") is StartAction.START
    cluster.kill_worker("w1", redelivered=False)

    clock.advance(2 * MINUTE)
    beat.run_until_idle()

    assert "running" not in {run.status for run in mine.runs("n")}
