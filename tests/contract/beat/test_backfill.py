"""Backfills: which past fire times become runs, in what order, and at what pace."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from celery_dynbeat import (
    Cron,
    InvalidArgumentError,
    Solar,
)
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.telemetry import subscribe, unsubscribe
from celery_dynbeat.telemetry.events import FireTimesSkipped
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, application
from tests.support.ended_runs import end_all
from tests.support.suites import each_database

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DAY = 24 * HOUR
#: Fires each hour, also before the schedule was created.
HOURLY = Cron("0 * * * *", timezone="UTC")


def at(hour):
    """Return the fire time that many hours after the start of the test's clock."""
    return START + hour * HOUR


def kept(mine, name="n"):
    """Return the history as (hour, status, origin, count), oldest first."""
    return [
        ((run.fire_at - START) / HOUR, run.status, run.origin, run.fire_count)
        for run in reversed(mine.runs(name, limit=1000))
    ]


def hours(sent):
    return [(run.fire_at - START) / HOUR for run in sent]


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


def test_a_backfill_is_a_batch_of_runs_that_beat_sends_at_a_pace_oldest_first(
    mine, clock, beat, sent
):
    mine.create("n", task="t", trigger=HOURLY)
    result = mine.backfill("n", since=at(-9), until=at(-5) + SECOND, per_minute=120)
    assert (result.total, result.excluded, result.left_since) == (5, 0, None)
    assert mine.get_batch(result.batch_id).counts == {"pending": 5}

    by_second = []
    for _ in range(3):
        beat.run_until_idle()
        by_second.append(len(sent))
        clock.advance(SECOND)

    assert by_second == [2, 4, 5]
    assert hours(sent) == [-9, -8, -7, -6, -5]
    assert kept(mine)[-1] == (-5, "sent", "backfill", 1)
    info = mine.get_batch(result.batch_id)
    assert (info.counts, info.total, info.unfinished) == ({"sent": 5}, 5, 5)
    assert {run.batch_id for run in mine.runs("n")} == {result.batch_id}
    assert mine.get("n").run_count == 0


def test_beat_sleeps_until_the_next_turn(mine, beat):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-3), until=at(0), per_minute=20)
    beat.run_until_idle()

    assert beat.tick() == 3 * SECOND


@each_database
def test_a_batch_is_listed_counted_and_cancelled_by_its_id(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    manual = mine.run_now("n")
    batch = mine.backfill("n", since=at(-9), until=at(0), per_minute=60)
    other = mine.backfill("n", since=at(-12), until=at(-9), per_minute=1)
    clock.advance(SECOND)
    beat.run_until_idle()
    end_runs(dynbeat, clock, [run for run in sent if run.fire_at == at(-9)])

    for calls in (mine, dynbeat.schedules):
        assert len(calls.runs(batch_id=batch.batch_id)) == 9
        assert calls.count_runs(batch_id=batch.batch_id, status="pending").count == 7
        pages = []
        cursor = None
        while not pages or cursor is not None:
            page = calls.runs(batch_id=batch.batch_id, limit=4, after=cursor)
            pages += page.items
            cursor = page.cursor
        assert [run.fire_at for run in pages] == [at(hour) for hour in range(-1, -10, -1)]

    assert mine.cancel_runs(batch_id=batch.batch_id) == 8
    assert mine.cancel_runs(batch_id=batch.batch_id) == 0
    assert mine.get_batch(batch.batch_id).counts == {"revoked": 8, "succeeded": 1}
    assert mine.get_batch(other.batch_id).unfinished == 3
    assert mine.get_run(manual.id).status == "sent"


def test_an_edit_applies_to_the_runs_that_wait(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-3), until=at(0), per_minute=1)
    beat.run_until_idle()

    mine.update("n", trigger=Cron("* * * * *", timezone="UTC"), task="other")
    clock.advance(2 * MINUTE)
    beat.run_until_idle()

    backfilled = [run for run in sent if run.origin == "backfill"]
    assert hours(backfilled) == [-3, -2, -1]
    assert [run.task for run in backfilled] == ["t", "other", "other"]


def test_runs_that_wait_for_their_turn_take_no_place(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 2}})
    mine, beat = dynbeat.schedules.for_owner("user:42"), ManualBeat(dynbeat)
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-5), until=at(0), per_minute=1)
    beat.run_until_idle()
    mine.run_now("n")
    beat.run_until_idle()

    assert [run.origin for run in beat.publisher.sent] == ["backfill", "manual"]
    clock.advance(MINUTE)
    beat.run_until_idle()
    assert len(beat.publisher.sent) == 2
    assert {run.waited_for for run in mine.runs(status="pending")} == {"place", "batch"}
    end_all(dynbeat, beat.publisher.sent, "succeeded")
    clock.advance(SECOND)
    beat.run_until_idle()

    assert hours(beat.publisher.sent)[2:] == [-4]


def test_fire_times_that_have_a_run_get_no_other_run(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    for _ in range(2):
        clock.advance(HOUR)
        beat.run_until_idle()
    before = mine.runs("n")
    result = mine.backfill("n", since=at(-1), until=at(2) + SECOND)
    beat.run_until_idle()

    assert (result.total, result.excluded, result.left_since) == (2, 2, None)
    assert hours(sent[-2:]) == [-1, 0]
    assert mine.runs("n", origin="schedule") == before


def test_due_schedules_are_sent_before_backfills(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-2), until=at(0) + SECOND)
    clock.advance(HOUR)

    beat.run_until_idle()

    assert hours(sent) == [1, -2, -1, 0]


def test_a_backfill_leaves_undecided_fire_times_to_the_claim(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    undecided = mine.get("n").next_run_at
    clock.move_to(undecided - SECOND)
    result = mine.backfill("n", since=at(0), until=clock.now() + SECOND)
    assert (result.total, result.left_since) == (1, None)
    none = mine.backfill("n", since=at(1), until=clock.now() + SECOND)
    assert (none.batch_id, none.total, none.excluded) == (None, 0, 0)

    beat.run_until_idle()
    assert hours(sent) == [0]
    clock.move_to(undecided + SECOND)
    beat.run_until_idle()

    assert [run[:3] for run in kept(mine)] == [(0, "sent", "backfill"), (1, "sent", "schedule")]


def test_a_backfill_runs_fire_times_that_beat_recorded_as_skipped(mine, clock, beat):
    mine.create("n", task="t", trigger=HOURLY)
    clock.advance(4 * HOUR)
    beat.run_until_idle()
    mine.backfill("n", since=at(1), until=at(4) + SECOND, per_minute=6_000)

    beat.run_until_idle()

    assert kept(mine) == [
        (1, "sent", "backfill", 1),
        (2, "sent", "backfill", 1),
        (3, "sent", "backfill", 1),
        (4, "sent", "schedule", 1),
    ]


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
def test_a_skipped_row_keeps_the_fire_times_that_were_not_run(mine, clock, beat, first, last, left):
    mine.create("n", task="t", trigger=HOURLY)
    clock.advance(10 * HOUR)
    beat.run_until_idle()
    (skipped,) = mine.runs("n", status="skipped")
    assert (skipped.fire_at, skipped.fire_count) == (at(9), 9)

    mine.backfill("n", since=at(first), until=at(last) + SECOND)
    beat.run_until_idle()

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

    mine.backfill("n", since=at(3), until=at(10) + SECOND, per_minute=6_000)
    beat.run_until_idle()

    after = kept(mine)
    assert [row[0] for row in after if row[1] == "sent"] == [*range(3, 11), 12]
    assert [(row[0], row[3]) for row in after if row[1] == "skipped"] == [(2, 2), (11, 1)]


class CrashError(BaseException):
    """Beat crashes at this point."""


@pytest.mark.parametrize("point", ["swept", "published"])
@each_database
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
    assert sent == []
    clock.advance(30 * SECOND)
    beat.run_until_idle()

    assert sorted(hours(sent)) == [-3, -2, -1]
    assert {run.run_id for run in crashing.publisher.sent} <= {run.run_id for run in sent}
    assert [row[1] for row in kept(mine)] == ["sent"] * 3


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_previous"])
def test_a_batch_that_waits_neither_stops_a_fire_time_nor_is_replaced_by_it(
    mine, clock, beat, sent, finish, overlap
):
    mine.create("n", task="t", trigger=HOURLY, overlap=overlap)
    batch = mine.backfill("n", since=at(-3), until=at(0), per_minute=1)
    beat.run_until_idle()
    finish()
    clock.move_to(at(1))
    beat.run_until_idle()
    counts = mine.get_batch(batch.batch_id).counts

    fired = [run.fire_at for run in sent if run.origin == "schedule"]
    assert (fired, counts) == ([at(1)], {"pending": 2, "succeeded": 1})


@each_database
def test_ten_waiting_runs_of_a_schedule_are_not_asked_each_second(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=HOURLY, overlap="skip")
    batch = mine.backfill("n", since=at(-10), until=at(0), per_minute=6_000)
    beat.run_until_idle()
    for _ in range(3):
        clock.advance(2 * SECOND)
        beat.run_until_idle()

    with dynbeat.context.database._session() as session:
        waiting = session.scalars(select(Run.overdue_at).where(Run.waited_for == "previous"))
        delays = [each - clock.now() for each in waiting if each is not None]

    assert len(sent) == 1
    assert len(delays) == 9
    assert sum(delay <= 2 * SECOND for delay in delays) == 1
    assert mine.get_batch(batch.batch_id).counts == {"pending": 9, "sent": 1}


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({"since": at(0), "until": at(-1)}, "since", "must not be after until"),
        ({"until": at(1)}, "until", "must not lie in the future"),
        ({"since": None}, "since", "must be an aware datetime"),
        ({"until": datetime(2026, 11, 21)}, "until", "must be an aware datetime"),  # noqa: DTZ001
        ({"since": at(-0.7), "until": at(-0.6)}, "since", "no fire time"),
        ({"since": at(-0.7), "until": at(0)}, "since", "no fire time"),
        ({"per_minute": 0}, "per_minute", "from 1 to 10000"),
        ({"per_minute": 10_001}, "per_minute", "from 1 to 10000"),
    ],
)
def test_an_invalid_span_is_rejected(mine, given, field, reason):
    mine.create("n", task="t", trigger=HOURLY)

    with pytest.raises(InvalidArgumentError, match=reason) as caught:
        mine.backfill("n", **{"since": at(-1), "until": at(0), **given})

    assert caught.value.field == field
    assert mine.runs("n") == []


def test_a_backfill_does_not_run_a_task_that_is_no_longer_allowed(database_url, mine, clock):
    for name in ("n", "m"):
        mine.create(name, task="t", trigger=HOURLY)
    mine.backfill("n", since=at(-2), until=at(-1) + SECOND)

    with application(
        database_url, clock=clock, owner_limits={"*": {"allowed_tasks": ["mail.*"]}}
    ) as strict:
        theirs = strict.schedules.for_owner("user:42")
        with pytest.raises(InvalidArgumentError, match="dynbeat_owner_limits: allowed_tasks"):
            theirs.backfill("m", since=at(-2), until=at(-1) + SECOND)
        beat = ManualBeat(strict)
        beat.run_until_idle()

    assert beat.publisher.sent == []
    assert "dynbeat_owner_limits: allowed_tasks" in (mine.get("n").error or "")


def test_expires_after_of_a_run_counts_from_the_moment_when_it_could_be_sent(
    mine, clock, beat, sent
):
    mine.create("n", task="t", trigger=HOURLY, expires_after=10)
    mine.backfill("n", since=at(-2), until=at(0), per_minute=1)
    beat.run_until_idle()
    clock.advance(MINUTE)
    beat.run_until_idle()
    assert [run.expires_at for run in sent] == [START + 10 * SECOND, clock.now() + 10 * SECOND]

    clock.advance(30 * SECOND)
    beat.run_until_idle()

    assert {run.status for run in mine.runs("n")} <= {"sent", "expired"}


def test_a_span_that_is_too_costly_to_search_is_recorded_in_several_calls(sqlite_url, clock):
    """The row is locked meanwhile."""
    with application(sqlite_url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create("n", task="t", trigger=Solar("sunrise", latitude=37.5, longitude=127))
        since, created, calls = START - 3660 * DAY, 0, 0
        while since is not None:
            result = mine.backfill("n", since=since, until=START + SECOND)
            since, created, calls = result.left_since, created + result.total, calls + 1

    assert (created, calls > 1) == (3660, True)


def test_a_call_records_at_most_ten_thousand_runs(sqlite_url, clock):
    with application(sqlite_url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create("n", task="t", trigger=HOURLY)

        first = mine.backfill("n", since=at(-10_001), until=at(0))
        second = mine.backfill("n", since=first.left_since, until=at(0))

        assert (first.total, first.left_since) == (10_000, at(-1))
        assert (second.total, second.left_since) == (1, None)
        assert mine.get_batch(first.batch_id).counts == {"pending": 10_000}
        assert mine.get_batch(second.batch_id).total == 1


def test_the_rest_of_skipped_fire_times_is_reported_once(mine, clock, beat):
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
        beat.run_until_idle()
    finally:
        unsubscribe(note, FireTimesSkipped)

    # The row of the skipped fire times was divided around the run of the backfill.
    assert [status for _, status, _, _ in kept(mine)].count("skipped") > 1
    assert (skipped > 0, sum(reported)) == (True, skipped)
