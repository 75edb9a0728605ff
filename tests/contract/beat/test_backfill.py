"""Backfills: which past fire times become runs, in what order, and how many at a time."""

import threading
from collections import Counter
from datetime import datetime, timedelta

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat import (
    AnyOf,
    Cron,
    Every,
    InvalidScheduleError,
    Once,
    RequestNotFoundError,
    ScheduleNotFoundError,
    Solar,
)
from celery_dynbeat.common.states import Status
from celery_dynbeat.store import schedules
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.telemetry import subscribe, unsubscribe
from celery_dynbeat.telemetry.events import FireTimesSkipped
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.triggers.base import LOOKUP_STEPS, PLAN_STEPS
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.ended_runs import end_all
from tests.support.suites import one_database

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DAY = 24 * HOUR
#: Fires each hour, also before the schedule was created.
HOURLY = Cron("0 * * * *", timezone="UTC")
#: The same, of a kind whose fire times are counted one by one, up to 1,000.
SLOWLY_COUNTED = AnyOf(HOURLY, Once(START - HOUR))


def at(hour):
    """Return the fire time that many hours after the start of the test's clock."""
    return START + hour * HOUR


def kept(mine, name="n"):
    """Return the history as (hour, status, origin, count), oldest first."""
    return [
        ((run.scheduled_for - START) / HOUR, run.status, run.origin, run.fire_count)
        for run in reversed(mine.runs(name, limit=1000))
    ]


def hours(sent):
    return [(run.scheduled_for - START) / HOUR for run in sent]


def end_runs(dynbeat, clock, sent):
    """Let a worker start and end each run that was sent."""

    def work(session):
        for run in sent:
            first = attempts.AttemptStart(
                run_id=run.run_id, expected_attempt=0, retries=0, worker="w", pid=1
            )
            if attempts.start(session, first, now=clock.now()):
                attempt_end = attempts.AttemptEnd(
                    run_id=run.run_id,
                    attempt=1,
                    worker="w",
                    status=Status.SUCCEEDED,
                    at=clock.now(),
                )
                attempts.finish(session, attempt_end)

    dynbeat.context.database.run(work)


@pytest.fixture
def finish(dynbeat, clock, sent):
    return lambda: end_runs(dynbeat, clock, sent)


@pytest.fixture
def next_batch(beat, clock):
    """Make passes after the poll interval, when each backfill is due again."""

    def passes():
        clock.advance(5 * SECOND)
        beat.run_until_idle()

    return passes


def test_a_backfill_runs_oldest_first_in_batches_that_wait_for_their_end(
    mine, beat, sent, next_batch, finish
):
    mine.create("n", task="t", trigger=HOURLY)
    backfill = mine.backfill("n", since=at(-9), until=at(-5) + SECOND, batch_size=2)
    assert (backfill.status, backfill.total, backfill.progress) == ("running", 5, 0.0)

    beat.run_until_idle()
    assert hours(sent) == [-9, -8]
    next_batch()
    assert len(sent) == 2, "nothing is made while as many as a batch are unfinished"
    finish()
    next_batch()
    assert hours(sent) == [-9, -8, -7, -6]
    finish()
    next_batch()

    (ended,) = mine.requests("n")
    assert hours(sent) == [-9, -8, -7, -6, -5]
    assert kept(mine)[-1] == (-5, "sent", "backfill", 1)
    assert (ended.status, ended.created, ended.excluded, ended.progress) == ("finished", 5, 0, 1.0)
    assert mine.get("n").run_count == 0


def test_new_runs_are_made_as_runs_of_the_batch_end(dynbeat, mine, clock, beat, sent, next_batch):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-9), until=at(-1) + SECOND, batch_size=3)
    beat.run_until_idle()

    end_runs(dynbeat, clock, sent[:1])
    next_batch()

    assert hours(sent) == [-9, -8, -7, -6]


def test_a_run_that_never_ends_delays_a_backfill_by_max_run_time_at_most(
    dynbeat, mine, clock, beat, sent
):
    mine.create("n", task="t", trigger=Cron("0 0 1 1 *"), max_run_time=60)
    mine.backfill("n", since=START - timedelta(days=800), until=START + SECOND, batch_size=1)
    beat.run_until_idle()

    def start(session):
        run_id = sent[0].run_id
        first = attempts.AttemptStart(
            run_id=run_id, expected_attempt=0, retries=0, worker="w", pid=1
        )
        return attempts.start(session, first, now=clock.now())

    dynbeat.context.database.run(start)
    clock.advance(59 * SECOND)
    beat.run_until_idle()
    assert len(sent) == 1
    clock.advance(5 * SECOND)
    beat.run_until_idle()

    assert len(sent) == 2


def test_fire_times_that_have_a_run_get_no_other_run(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    for _ in range(2):
        clock.advance(HOUR)
        beat.run_until_idle()
    before = mine.runs("n")
    mine.backfill("n", since=at(-1), until=at(2) + SECOND)
    beat.run_until_idle()

    (ended,) = mine.requests("n")
    assert (ended.total, ended.created, ended.excluded, ended.status) == (4, 2, 2, "finished")
    assert hours(sent[-2:]) == [-1, 0]
    assert mine.runs("n", origin="schedule") == before


def test_a_backfill_ends_at_once_if_all_fire_times_have_runs(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY, catch_up="all")
    clock.advance(7 * HOUR)
    beat.run_until_idle()

    mine.backfill("n", since=at(1), until=at(7) + SECOND, batch_size=2)
    beat.run_until_idle()

    (ended,) = mine.requests("n")
    assert (ended.excluded, ended.status, len(sent)) == (7, "finished", 7)


def test_due_schedules_are_sent_before_backfills(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    mine.create("manual", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-2), until=at(0) + SECOND)
    mine.run_now("manual")
    clock.advance(HOUR)

    beat.run_until_idle()

    assert Counter(run.name for run in sent[:3]) == {"n": 1, "manual": 2}
    assert hours(run for run in sent if run.name == "n") == [1, -2, -1, 0]


def test_backfills_wait_while_more_is_due_than_fits_into_a_batch(database_url, clock):
    with application(database_url, clock=clock, batch_size=2) as dynbeat:
        mine, beat = dynbeat.schedules.for_owner("o"), ManualBeat(dynbeat)
        mine.create("n", task="t", trigger=HOURLY)
        for name in "abc":
            mine.create(name, task="t", trigger=HOURLY)
        mine.backfill("n", since=at(0), until=at(0) + SECOND)
        clock.advance(HOUR)

        beat.tick()
        beat.tick()
        assert hours(beat.publisher.sent) == [1] * 4
        beat.run_until_idle()

        assert hours(beat.publisher.sent) == [1] * 4 + [0]


def test_a_steady_load_does_not_stop_a_backfill(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    mine.create("steady", task="t", trigger=Every(1))
    mine.backfill("n", since=at(0), until=at(0) + SECOND)

    for _ in range(3):
        clock.advance(SECOND)
        beat.tick()

    assert at(0) in [run.scheduled_for for run in sent if run.name == "n"]


def test_a_backfill_leaves_undecided_fire_times_to_the_claim(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    undecided = mine.get("n").next_run_at
    clock.move_to(undecided - SECOND)
    mine.backfill("n", since=at(0), until=clock.now() + SECOND)

    beat.run_until_idle()
    assert hours(sent) == [0]
    assert mine.requests("n")[0].status == "running"
    clock.move_to(undecided + SECOND)
    beat.run_until_idle()

    assert [run[:3] for run in kept(mine)] == [(0, "sent", "backfill"), (1, "sent", "schedule")]
    assert mine.requests("n")[0].status == "finished"


def test_a_backfill_runs_fire_times_that_beat_recorded_as_skipped(mine, clock, beat):
    mine.create("n", task="t", trigger=HOURLY)
    clock.advance(4 * HOUR)
    mine.backfill("n", since=at(1), until=at(4) + SECOND)

    beat.run_until_idle()

    assert kept(mine) == [
        (1, "sent", "backfill", 1),
        (2, "sent", "backfill", 1),
        (3, "sent", "backfill", 1),
        (4, "sent", "schedule", 1),
    ]


@one_database
@pytest.mark.parametrize(
    ("first", "last", "left"),
    [
        (1, 9, []),
        (3, 9, [(2, 2)]),
        (1, 7, [(9, 2)]),
        (4, 6, [(3, 3), (9, 3)]),
        (9, 9, [(8, 8)]),
        (1, 1, [(9, 8)]),
        (-2, 0, [(9, 9)]),
    ],
)
@pytest.mark.parametrize("batch_size", [2, 100])
def test_a_skipped_row_keeps_the_fire_times_that_were_not_run(
    mine, clock, beat, next_batch, finish, first, last, left, batch_size
):
    mine.create("n", task="t", trigger=HOURLY)
    clock.advance(10 * HOUR)
    beat.run_until_idle()
    (skipped,) = mine.runs("n", status="skipped")
    assert (skipped.scheduled_for, skipped.fire_count) == (at(9), 9)

    mine.backfill("n", since=at(first), until=at(last) + SECOND, batch_size=batch_size)
    while mine.requests("n")[0].status == "running":
        next_batch()
        finish()

    after = kept(mine)
    rows = [(hour, count) for hour, status, _, count in after if status == "skipped"]
    assert rows == left
    filled = [hour for hour, _, origin, _ in after if origin == "backfill"]
    assert filled == list(range(first, last + 1))
    reasons = {run.error for run in mine.runs("n", status="skipped")}
    assert reasons <= {skipped.error}


def test_a_backfill_removes_fire_times_from_each_skipped_row_that_covers_them(mine, clock, beat):
    mine.create("n", task="t", trigger=HOURLY)
    for _ in range(3):
        clock.advance(4 * HOUR)
        beat.run_until_idle()

    mine.backfill("n", since=at(3), until=at(10) + SECOND)
    beat.run_until_idle()

    after = kept(mine)
    assert [row[0] for row in after if row[1] == "sent"] == [*range(3, 11), 12]
    assert [(row[0], row[3]) for row in after if row[1] == "skipped"] == [(2, 2), (11, 1)]


def test_a_bounded_count_is_used_as_it_is(mine, clock, beat):
    mine.create("n", task="t", trigger=SLOWLY_COUNTED)
    clock.advance(1500 * HOUR)
    beat.run_until_idle()
    assert [run.fire_count for run in mine.runs("n", status="skipped")] == [1000]

    mine.backfill("n", since=at(1490), until=at(1490) + SECOND)
    beat.run_until_idle()

    skipped = [(row[0], row[3]) for row in kept(mine) if row[1] == "skipped"]
    assert skipped == [(1489, 990), (1499, 9)]


def test_fire_times_older_than_the_counted_ones_do_not_change_the_count(mine, clock, beat):
    mine.create("n", task="t", trigger=SLOWLY_COUNTED)
    clock.advance(1500 * HOUR)
    beat.run_until_idle()

    mine.backfill("n", since=at(100), until=at(101) + SECOND)
    beat.run_until_idle()

    skipped = [(row[0], row[3]) for row in kept(mine) if row[1] == "skipped"]
    assert skipped == [(1499, 1000)]


def test_a_row_skipped_under_another_trigger_stays_unchanged(mine, clock, beat):
    mine.create("n", task="t", trigger=Cron("30 * * * *", timezone="UTC"))
    clock.advance(5 * HOUR)
    beat.run_until_idle()
    mine.update("n", trigger=HOURLY)

    mine.backfill("n", since=at(1), until=at(3) + SECOND)
    beat.run_until_idle()

    assert [row for row in kept(mine) if row[1] == "skipped"] == [(3.5, "skipped", "schedule", 4)]
    assert [row[0] for row in kept(mine) if row[2] == "backfill"] == [1, 2, 3]


def test_a_count_from_another_trigger_is_not_lost(mine, clock, beat):
    mine.create("n", task="t", trigger=Cron("*/10 * * * *", timezone="UTC"))
    clock.advance(10 * MINUTE)
    beat.run_until_idle()
    clock.move_to(at(2) + 10 * MINUTE)
    beat.run_until_idle()
    (skipped,) = mine.runs("n", status="skipped")
    assert (skipped.scheduled_for, skipped.fire_count) == (at(2), 11)
    mine.update("n", trigger=Cron("0,15,30,45 * * * *", timezone="UTC"))

    mine.backfill("n", since=at(1), until=at(2) + SECOND)
    beat.run_until_idle()

    # Beat does not know whether the old trigger fired at the other ones, too.
    (rest,) = mine.runs("n", status="skipped")
    assert (rest.scheduled_for, rest.fire_count) == (at(2) - timedelta.resolution, 10)
    assert len(mine.runs("n", origin="backfill")) == 5


def test_the_rest_of_a_count_from_another_trigger_stays_beside_the_run(mine, clock, beat):
    mine.create("n", task="t", trigger=Cron("*/10 * * * *", timezone="UTC"))
    mine.pause("n")
    clock.advance(2 * HOUR)
    yearly = Cron(f"0 {at(2).hour} {at(2).day} {at(2).month} *", timezone="UTC")
    mine.update("n", trigger=yearly)
    mine.resume("n")

    mine.backfill("n", since=at(2), until=at(2) + SECOND)
    beat.run_until_idle()

    (rest,) = mine.runs("n", status="skipped")
    assert (rest.scheduled_for, rest.fire_count) == (at(2) - timedelta.resolution, 11)


def test_the_rest_of_a_count_is_at_a_fire_time_that_skip_did_not_take_out(mine, clock, beat):
    mine.create("n", task="t", trigger=HOURLY)
    mine.pause("n")
    mine.skip("n", at(3))
    mine.skip("n", at(4))
    clock.move_to(at(4) - SECOND)
    mine.run_now("n")
    clock.move_to(at(6))
    mine.resume("n")
    mine.backfill("n", since=at(5), until=at(6) + SECOND)
    beat.run_until_idle()

    rows = [(row[0], row[3]) for row in kept(mine) if row[1] == "skipped"]
    assert rows == [(2, 2), (3, 1), (4, 1)]
    clock.advance(5 * SECOND)
    mine.backfill("n", since=at(2), until=at(2) + SECOND)
    beat.run_until_idle()

    rows = [(row[0], row[3]) for row in kept(mine) if row[1] == "skipped"]
    assert rows == [(1, 1), (3, 1), (4, 1)], "the run is not counted as skipped"


def test_cancelling_a_backfill_revokes_its_unstarted_runs(
    dynbeat, mine, clock, beat, sent, next_batch
):
    mine.create("n", task="t", trigger=HOURLY)
    manual = mine.run_now("n")
    mine.backfill("n", since=at(-9), until=at(-1) + SECOND, batch_size=3)
    beat.run_until_idle()
    end_runs(dynbeat, clock, [run for run in sent if run.scheduled_for == at(-9)])

    cancelled = mine.cancel_request(mine.requests("n")[0].id)
    next_batch()

    assert (cancelled.status, cancelled.created, cancelled.progress) == ("cancelled", 3, 3 / 9)
    assert cancelled.finished_at == START
    assert mine.requests("n") == [cancelled]
    assert [row[:2] for row in kept(mine)] == [
        (-9, "succeeded"),
        (-8, "revoked"),
        (-7, "revoked"),
        (0, "sent"),
    ]
    assert mine.runs("n", origin="manual")[0].id == manual.id
    assert len(sent) == 4


def test_cancelling_an_ended_backfill_revokes_its_unstarted_runs(mine, beat):
    mine.create("n", task="t", trigger=HOURLY)
    ended = mine.backfill("n", since=at(-3), until=at(-1) + SECOND)
    beat.run_until_idle()

    called_back = mine.cancel_request(ended.id)
    again = mine.cancel_request(mine.requests("n")[0].id)

    assert (called_back.status, called_back.created) == ("cancelled", 3)
    assert again == called_back
    assert {run.status for run in mine.runs("n")} == {"revoked"}


def test_cancelling_a_backfill_does_not_change_ended_runs(mine, beat, finish):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-3), until=at(-1) + SECOND)
    beat.run_until_idle()
    finish()

    assert mine.cancel_request(mine.requests("n")[0].id).status == "finished"
    assert {run.status for run in mine.runs("n")} == {"succeeded"}


class CrashError(BaseException):
    """Beat crashes at this point."""


@pytest.mark.parametrize("point", ["recorded", "committed", "published"])
def test_the_next_beat_continues_a_batch_after_a_crash(dynbeat, mine, clock, beat, sent, point):
    def failpoint(passed):
        if passed == point:
            raise CrashError(passed)

    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-3), until=at(-1) + SECOND)
    crashing = ManualBeat(dynbeat, failpoint=failpoint)
    with pytest.raises(CrashError):
        crashing.tick()

    beat.run_until_idle()
    assert len(sent) == (3 if point == "recorded" else 0)
    clock.advance(30 * SECOND)
    beat.run_until_idle()

    assert sorted(hours(sent)) == [-3, -2, -1]
    assert {run.run_id for run in crashing.publisher.sent} <= {run.run_id for run in sent}
    assert [row[1] for row in kept(mine)] == ["sent"] * 3


def test_several_beats_make_each_run_once(database_url, mine, clock):
    for number in range(20):
        mine.create(f"n{number}", task="t", trigger=HOURLY)
        mine.backfill(f"n{number}", since=at(-50), until=at(-1) + SECOND, batch_size=50)
    sent, failures = [], []

    def run(beat):
        try:
            while beat.tick() <= timedelta(milliseconds=50):
                pass
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)
        sent.extend(beat.publisher.sent)

    with (
        application(database_url, clock=clock) as one,
        application(database_url, clock=clock) as two,
    ):
        threads = [threading.Thread(target=run, args=(ManualBeat(made),)) for made in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert failures == []
    fires = Counter((run.schedule_id, run.scheduled_for) for run in sent)
    assert len(fires) == 20 * 50
    assert set(fires.values()) == {1}


def test_a_backfill_waits_for_an_edit_that_locks_its_schedule_and_the_others_continue(
    dynbeat, mine, clock, beat, sent
):
    database = dynbeat.context.database
    if database.capabilities.embedded:
        pytest.skip("one transaction at a time writes here")
    mine.create("n", task="t", trigger=HOURLY)
    mine.create("free", task="t", trigger=HOURLY)
    for name in ("n", "free"):
        mine.backfill(name, since=at(-2), until=at(0))

    with database._session() as holder:
        schedules.lock(holder, owner="user:42", name="n")
        beat.run_until_idle()
        assert [run.name for run in sent] == ["free", "free"]
        assert beat.tick() == SECOND
        holder.rollback()
    clock.advance(SECOND)
    beat.run_until_idle()

    assert [run.name for run in sent[2:]] == ["n", "n"]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_previous"])
def test_an_overlap_policy_limits_a_backfill_to_one_run_at_a_time(
    mine, beat, sent, next_batch, finish, overlap
):
    mine.create("n", task="t", trigger=HOURLY, overlap=overlap)
    mine.run_now("n")
    mine.backfill("n", since=at(-2), until=at(-1) + SECOND)

    beat.run_until_idle()
    assert [run.scheduled_for for run in sent] == [START], "a manual run is a run too"
    for count in (1, 2):
        finish()
        next_batch()
        next_batch()
        assert len(sent) == 1 + count

    assert hours(sent) == [0, -2, -1]


def test_the_backfill_of_a_paused_schedule_runs(mine, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    mine.pause("n")
    mine.backfill("n", since=at(-2), until=at(-1) + SECOND)

    beat.run_until_idle()

    assert hours(sent) == [-2, -1]


def test_a_pause_does_not_revoke_the_runs_of_a_backfill(mine, clock, beat, next_batch):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-4), until=at(-1) + SECOND, batch_size=2)
    beat.run_until_idle()

    mine.pause("n")
    next_batch()
    clock.advance(5 * SECOND)
    beat.run_until_idle()

    assert {row[1] for row in kept(mine)} == {"sent"}


@pytest.mark.parametrize("at_once", [False, True])
def test_the_runs_of_a_backfill_that_wait_for_a_place_wait_in_quiet_hours(limited, clock, at_once):
    dynbeat = limited(max_running_per_owner=1)
    mine, beat = dynbeat.schedules.for_owner("user:42"), ManualBeat(dynbeat)
    mine.create("n", task="t", trigger=HOURLY)
    mine.run_now("n")
    beat.run_until_idle()
    mine.backfill("n", since=at(-1), until=at(-1) + SECOND, now=at_once)
    beat.run_until_idle()
    mine.set_quiet_hours([f"{START:%H:%M}-{START + 2 * HOUR:%H:%M}"])

    end_all(dynbeat, beat.publisher.sent, "succeeded")
    clock.advance(5 * SECOND)
    beat.run_until_idle()

    assert len(beat.publisher.sent) == 1 + at_once


def test_a_backfill_can_run_the_fire_times_of_a_pause(mine, clock, beat):
    mine.create("n", task="t", trigger=HOURLY)
    mine.pause("n")
    clock.advance(3 * HOUR)
    mine.resume("n")

    mine.backfill("n", since=at(1), until=at(3) + SECOND)
    beat.run_until_idle()

    assert kept(mine) == [(hour, "sent", "backfill", 1) for hour in (1, 2, 3)]


def test_a_backfill_of_a_finished_schedule_is_possible(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY, max_runs=1)
    clock.advance(3 * HOUR)
    beat.run_until_idle()
    assert mine.get("n").finished_at is not None

    mine.backfill("n", since=at(1), until=at(3) + SECOND)
    beat.run_until_idle()

    assert hours(sent) == [3, 1, 2]


def test_start_at_and_end_at_bound_a_backfill(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY, start_at=at(-3), end_at=at(1))
    clock.advance(2 * HOUR)
    beat.run_until_idle()

    assert mine.backfill("n", since=at(-9), until=at(2) + SECOND).total == 5
    beat.run_until_idle()

    assert sorted(hours(sent)) == [-3, -2, -1, 0, 1]


def test_an_edit_applies_at_once_and_makes_a_backfill_no_larger(
    mine, beat, sent, next_batch, finish
):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-9), until=at(-1) + SECOND, batch_size=2)
    beat.run_until_idle()

    mine.update("n", trigger=Cron("* * * * *", timezone="UTC"), task="other")
    while mine.requests("n")[0].status == "running":
        finish()
        next_batch()

    assert len(sent) == 9
    assert {run.task for run in sent[2:]} == {"other"}
    assert hours(sent[2:4]) == [-8 + 1 / 60, -8 + 2 / 60]


def test_the_schedule_of_a_backfill_with_an_invalid_trigger_is_quarantined(
    dynbeat, mine, clock, beat, sent
):
    for name in ("broken", "fine"):
        mine.create(name, task="t", trigger=HOURLY)
        mine.backfill(name, since=at(-2), until=at(-1) + SECOND)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'x' WHERE name = 'broken'")

    beat.run_until_idle()
    assert "InvalidTriggerError" in (mine.get("broken").error or "")
    assert [run.name for run in sent] == ["fine", "fine"]
    mine.update("broken", trigger=HOURLY)
    clock.advance(5 * SECOND)
    beat.run_until_idle()

    assert [run.name for run in sent[2:]] == ["broken", "broken"]


def test_deleting_a_schedule_deletes_its_backfills(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-2), until=at(-1) + SECOND)
    mine.create("m", task="t", trigger=HOURLY)
    mine.backfill("m", since=at(-2), until=at(-1) + SECOND)

    mine.delete("n")
    dynbeat.schedules.delete_owner("user:42")
    clock.advance(SECOND)

    assert beat.tick() == timedelta(seconds=5)
    assert sent == []
    assert execute(dynbeat, "DELETE FROM dynbeat_request") == 0


def test_a_backfill_whose_schedule_was_deleted_by_sql_is_cancelled(dynbeat, mine, beat, sent):
    if not dynbeat.context.database.capabilities.embedded:
        pytest.skip("this database follows the foreign key")
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-2), until=at(-1) + SECOND)
    with dynbeat.context.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        connection.exec_driver_sql("DELETE FROM dynbeat_schedule")
        connection.commit()
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")

    beat.run_until_idle()

    assert sent == []
    assert beat.tick() == timedelta(seconds=5)
    assert [each.status for each in dynbeat.schedules.requests()] == ["cancelled"]


def test_an_idle_beat_sleeps_until_the_next_batch(mine, beat):
    mine.create("n", task="t", trigger=HOURLY)
    beat.run_until_idle()
    assert beat.tick() == timedelta(seconds=5)

    mine.backfill("n", since=at(-9), until=at(-1) + SECOND, batch_size=1)
    beat.run_until_idle()

    assert beat.tick() == SECOND


def test_a_backfill_without_capacity_is_due_again_after_the_poll_interval(mine, clock, beat):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-9), until=at(-1) + SECOND, batch_size=1)
    beat.run_until_idle()
    clock.advance(SECOND)

    beat.run_until_idle()

    assert beat.tick() == timedelta(seconds=5)


def test_an_owner_sees_and_cancels_only_its_own_backfills(dynbeat, mine):
    mine.create("n", task="t", trigger=HOURLY)
    backfill = mine.backfill("n", since=at(-2), until=at(-1) + SECOND)
    other = dynbeat.schedules.for_owner("user:43")
    other.create("n", task="t", trigger=HOURLY)

    assert other.requests("n") == []
    for call in (other.get_request, other.cancel_request):
        with pytest.raises(RequestNotFoundError, match=rf"no request {backfill.id}"):
            call(backfill.id)
    assert (backfill.owner, backfill.name) == ("user:42", "n")
    assert mine.requests("n") == [backfill]


def test_an_unknown_schedule_raises_schedule_not_found(mine):
    with pytest.raises(ScheduleNotFoundError):
        mine.backfill("n", since=at(-1), until=at(0))

    assert mine.requests("n") == []


@one_database
@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({"since": at(0), "until": at(-1)}, "since", "must not be after until"),
        ({"until": at(1)}, "until", "must not lie in the future"),
        ({"since": None}, "since", "must be an aware datetime"),
        ({"until": datetime(2026, 11, 21)}, "until", "must be an aware datetime"),  # noqa: DTZ001
        ({"since": at(-0.7), "until": at(-0.6)}, "since", "no fire time"),
        ({"since": at(-0.7), "until": at(0)}, "since", "no fire time"),
        ({"since": START - timedelta(days=500)}, "since", "more than 10000 fire times"),
        ({"batch_size": 0}, "batch_size", "from 1 to 1000"),
        ({"batch_size": 1001}, "batch_size", "from 1 to 1000"),
    ],
)
def test_an_invalid_span_is_rejected(mine, given, field, reason):
    mine.create("n", task="t", trigger=HOURLY)

    with pytest.raises(InvalidScheduleError, match=reason) as caught:
        mine.backfill("n", **{"since": at(-1), "until": at(0), **given})

    assert caught.value.field == field
    assert mine.requests("n") == []


def test_an_interval_has_no_fire_times_before_its_anchor(mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.create("anchored", task="t", trigger=Every(60, anchor=at(-1)))

    with pytest.raises(InvalidScheduleError, match="counts from 2026-11-21"):
        mine.backfill("n", since=at(-1), until=at(0) - SECOND)
    assert mine.backfill("anchored", since=at(-1), until=at(0) + SECOND).total == 61


def test_an_end_slightly_in_the_future_counts_as_now(mine, clock):
    mine.create("n", task="t", trigger=HOURLY)
    clock.advance(-SECOND)

    assert mine.backfill("n", since=at(-1), until=START + SECOND).total == 1


def test_a_second_backfill_waits_for_the_end_of_the_first(mine, beat):
    mine.create("n", task="t", trigger=HOURLY)
    first = mine.backfill("n", since=at(-3), until=at(-2) + SECOND)

    with pytest.raises(InvalidScheduleError, match=f"running backfill {first.id}"):
        mine.backfill("n", since=at(-1), until=at(0) + SECOND)
    beat.run_until_idle()
    second = mine.backfill("n", since=at(-1), until=at(0) + SECOND)

    assert [each.id for each in mine.requests("n")] == [second.id, first.id]
    assert [each.id for each in mine.requests("n", limit=1)] == [second.id]


@pytest.mark.parametrize(
    ("server", "refusal", "reason"),
    [
        ("mariadb", InvalidScheduleError, "running backfill"),
        ("postgresql", DBAPIError, "could not serialize access"),
    ],
)
def test_a_second_backfill_is_refused_in_a_transaction_with_an_old_snapshot(
    request, clock, server, refusal, reason
):
    url = request.getfixturevalue(f"{server}_url")
    engine = create_engine(url, isolation_level="REPEATABLE READ")
    with application(url, engine=engine, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=HOURLY)
        with Session(engine) as session:
            mine.list(session=session)
            mine.backfill("n", since=at(-3), until=at(-2) + SECOND)

            with pytest.raises(refusal, match=reason):
                mine.backfill("n", since=at(-1), until=at(0) + SECOND, session=session)
    engine.dispose()


def test_a_backfill_rolls_back_with_the_transaction_of_the_caller(dynbeat, mine, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    with dynbeat.context.database._session() as session:
        mine.backfill("n", since=at(-1), until=at(0) + SECOND, session=session)
        assert len(mine.requests("n", session=session)) == 1
        session.rollback()

    beat.run_until_idle()

    assert (mine.requests("n"), sent) == ([], [])


def test_a_backfill_does_not_run_a_task_that_is_no_longer_allowed(database_url, mine, clock):
    for name in ("n", "m"):
        mine.create(name, task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-2), until=at(-1) + SECOND)

    with application(database_url, clock=clock, allowed_tasks=["mail.*"]) as strict:
        theirs = strict.schedules.for_owner("user:42")
        with pytest.raises(InvalidScheduleError, match="dynbeat_allowed_tasks"):
            theirs.backfill("m", since=at(-2), until=at(-1) + SECOND)
        beat = ManualBeat(strict)
        beat.run_until_idle()

    assert beat.publisher.sent == []
    assert "dynbeat_allowed_tasks" in (mine.get("n").error or "")


def test_the_history_can_be_filtered_by_origin(mine):
    mine.create("n", task="t", trigger=HOURLY)
    run = mine.run_now("n")

    assert mine.runs("n", origin="manual") == [run]
    assert mine.runs("n", origin="backfill") == []
    with pytest.raises(InvalidScheduleError, match="must be one of 'schedule'"):
        mine.runs("n", origin="x")


def test_expires_after_of_a_backfill_run_counts_from_its_creation(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY, expires_after=10)
    mine.backfill("n", since=at(-2), until=at(-2) + SECOND)
    clock.advance(5 * SECOND)

    beat.run_until_idle()

    assert sent[0].expires_at == clock.now() + 10 * SECOND


def test_a_batch_ends_when_its_search_has_taken_a_quarter_of_a_plan(sqlite_url, clock):
    """The row is locked meanwhile. Each fire time takes one lookup, so 900 fit."""
    with application(sqlite_url, clock=clock) as dynbeat:
        mine, beat = dynbeat.schedules.for_owner("user:1"), ManualBeat(dynbeat)
        mine.create("n", task="t", trigger=AnyOf(Cron("* * * * *"), Cron("* * * * * 30")))
        mine.backfill("n", since=START - 9 * HOUR, until=START - MINUTE + SECOND, batch_size=1000)

        beat.tick()
        first = mine.requests("n")[0].created
        mine.cancel_request(mine.requests("n")[0].id)

    limit = PLAN_STEPS // 4 // LOOKUP_STEPS
    assert first == pytest.approx(limit, abs=2)


def test_a_span_that_is_too_costly_to_search_is_refused_with_a_shorter_one(sqlite_url, clock):
    with application(sqlite_url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create("n", task="t", trigger=Solar("sunrise", latitude=37.5, longitude=127))

        with pytest.raises(InvalidScheduleError, match="split the span, for example") as refusal:
            mine.backfill("n", since=START - 3660 * DAY, until=START + SECOND)

        assert refusal.value.field == "since"
        assert mine.backfill("n", since=START - 365 * DAY, until=START + SECOND).total == 365


def test_the_rest_of_skipped_fire_times_is_reported_once(mine, clock, beat, next_batch):
    reported = []

    def note(event):
        reported.append(event.count)

    subscribe(note, FireTimesSkipped)
    try:
        mine.create("n", task="t", trigger=HOURLY, catch_up="none")
        clock.advance(10 * HOUR)
        beat.run_until_idle()
        skipped = sum(reported)
        mine.backfill("n", since=at(5), until=at(6))
        next_batch()
    finally:
        unsubscribe(note, FireTimesSkipped)

    # The row of the skipped fire times was divided around the run of the backfill.
    assert [status for _, status, _, _ in kept(mine)].count("skipped") > 1
    assert (skipped > 0, sum(reported)) == (True, skipped)


def test_the_cancellation_of_a_backfill_releases_the_run_behind_it(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY, overlap="buffer_one")
    request = mine.backfill("n", since=at(-3), until=at(-1))
    beat.run_until_idle()
    clock.advance(HOUR)
    beat.run_until_idle()
    assert {run.origin for run in sent} == {"backfill"}

    mine.cancel_request(request.id)
    beat.run_until_idle()

    assert sent[-1].origin == "schedule"
