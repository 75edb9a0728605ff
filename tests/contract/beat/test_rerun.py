"""rerun_many(): which ended runs run again, in what order, and how many at a time."""

from datetime import timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from celery_dynbeat import (
    Every,
    InvalidScheduleError,
    RequestNotFoundError,
    ScheduleNotFoundError,
)
from celery_dynbeat.api import reruns as client_module
from celery_dynbeat.beat import rerun as rerun_module
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.ended_runs import end_all, start
from tests.support.suites import one_database

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def at(hour):
    return START + hour * HOUR


class History:
    """Schedules of owners whose runs of some hours ended, and what beat sends after that."""

    def __init__(self, dynbeat, clock, beat):
        self._dynbeat, self._clock, self._beat = dynbeat, clock, beat

    def add(self, name="n", *, hours=3, status="failed", owner="user:42", **fields):
        """Create a schedule, let it run for some hours, and pass another second."""
        mine = self._dynbeat.schedules.for_owner(owner)
        mine.create(name, task="t", trigger=Every(HOUR, anchor=START), **fields)
        for _ in range(hours):
            self._clock.advance(HOUR)
            self._beat.run_until_idle()
            self.end(status)
        mine.update(name, trigger=Every(timedelta(days=10_000)))
        self._clock.advance(SECOND)
        self._beat.publisher.sent.clear()

    def end(self, status, sent=None):
        """Start and end each run that was sent."""
        end_all(self._dynbeat, self._beat.publisher.sent if sent is None else sent, status)

    def pass_time(self, seconds=5):
        """Make passes after the poll interval, when each request is due again."""
        self._clock.advance(seconds * SECOND)
        self._beat.run_until_idle()


@pytest.fixture
def history(dynbeat, clock, beat):
    return History(dynbeat, clock, beat)


def hours(sent):
    return [(run.scheduled_for - START) / HOUR for run in sent]


def test_a_request_can_name_a_task(dynbeat, mine, beat, sent, history):
    """The schedule had another task before: the task of each run decides."""
    history.add("a", hours=2)
    mine.update("a", task="u")
    again = [mine.rerun(run.id) for run in mine.runs("a")]
    beat.run_until_idle()
    end_all(dynbeat, sent, "failed")
    sent.clear()
    history.pass_time()

    request = mine.rerun_many(since=START, task="u")
    assert (request.task, request.total) == ("u", 2)
    assert mine.rerun_many(since=START, task="t").total == 0
    history.pass_time()

    assert {mine.get_run(run.run_id).rerun_of for run in sent} == {run.rerun_of for run in again}
    ended = mine.get_request(request.id)
    assert (ended.status, ended.created, ended.excluded) == ("finished", 2, 0)


def test_each_failed_run_runs_again_with_its_fire_time(mine, beat, sent, history):
    history.add()
    request = mine.rerun_many(since=START)
    assert (request.status, request.total, request.progress) == ("running", 3, 0.0)
    assert (request.owner, request.name) == ("user:42", None)
    assert request.statuses == ("failed", "lost")

    beat.run_until_idle()

    assert hours(sent) == [1, 2, 3]
    history.pass_time()
    ended = mine.get_request(request.id)
    assert (ended.status, ended.created, ended.excluded, ended.progress) == ("finished", 3, 0, 1.0)
    reruns = mine.runs("n", origin="rerun")
    assert [run.status for run in reruns] == ["sent"] * 3
    assert {run.rerun_of for run in reruns} == {run.id for run in mine.runs("n", status="failed")}


def test_at_most_a_batch_of_reruns_is_unfinished(mine, beat, sent, history):
    history.add(hours=5)
    request = mine.rerun_many(since=START, batch_size=2)
    beat.run_until_idle()
    assert hours(sent) == [1, 2]
    history.pass_time()
    assert hours(sent) == [1, 2], "nothing is made while as many as a batch are unfinished"

    history.end("succeeded", sent[:1])
    history.pass_time()
    assert hours(sent) == [1, 2, 3]
    assert mine.get_request(request.id).progress == pytest.approx(0.6)
    for _ in range(2):
        history.end("succeeded")
        history.pass_time()

    assert hours(sent) == [1, 2, 3, 4, 5]
    assert mine.get_request(request.id).status == "finished"


def test_a_second_request_repeats_nothing(mine, beat, sent, history):
    history.add()
    mine.rerun_many(since=START)
    again = mine.rerun_many(since=START)
    beat.run_until_idle()
    history.pass_time()

    assert sorted(hours(sent)) == [1, 2, 3]
    assert mine.get_request(again.id).excluded == 3
    third = mine.rerun_many(since=START)
    assert (third.total, third.status, third.progress) == (0, "finished", 1.0)


def test_of_a_family_only_the_newest_failed_rerun_runs_again(mine, beat, sent, history):
    history.add(hours=1)
    for number in range(3):
        assert mine.rerun_many(since=START).total == 1
        beat.run_until_idle()
        history.end("failed")
        history.pass_time()
        assert hours(sent) == [1] * (number + 1)
    mine.rerun_many(since=START)
    beat.run_until_idle()
    history.end("succeeded")
    history.pass_time()
    assert mine.rerun_many(since=START).total == 0
    (original,) = {run.rerun_of for run in mine.runs("n", origin="rerun")}
    assert original == mine.runs("n", origin="schedule")[0].id


def test_a_rerun_that_fails_during_its_request_does_not_run_again(mine, clock, beat, sent, history):
    history.add(hours=2)
    mine.rerun_many(since=START, batch_size=1)
    for _ in range(4):
        beat.run_until_idle()
        history.end("failed")
        clock.advance(5 * SECOND)
    assert hours(sent) == [1, 2]


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ({"since": at(2)}, [2, 3, 4]),
        ({"since": at(0), "until": at(2)}, [1]),
        ({"since": at(2), "until": at(4)}, [2, 3]),
        ({"since": at(0), "name": "n"}, [1, 2, 3]),
        ({"since": at(0), "name": "other"}, [4]),
        ({"since": at(0), "status": "succeeded"}, [5]),
        ({"since": at(0), "status": ("succeeded", "failed")}, [1, 2, 3, 4, 5]),
    ],
)
@pytest.mark.parametrize("owner", ["user:42", None])
def test_the_filters_select_the_runs(dynbeat, beat, sent, history, which, expected, owner):
    history.add()
    history.add("other", hours=1)
    history.add("fine", hours=1, status="succeeded")
    calls = dynbeat.schedules if owner is None else dynbeat.schedules.for_owner(owner)

    assert calls.rerun_many(**which).total == len(expected)
    beat.run_until_idle()

    assert sorted(hours(sent)) == expected


def test_a_request_of_an_owner_reruns_no_run_of_another(dynbeat, mine, beat, sent, history):
    history.add()
    history.add(owner="user:7")
    request = mine.rerun_many(since=START)
    everything = dynbeat.schedules.rerun_many(since=START)

    assert (request.total, everything.total) == (3, 6)
    theirs = dynbeat.schedules.for_owner("user:7")
    assert list(theirs.requests()) == []
    for calls in (theirs.get_request, theirs.cancel_request):
        with pytest.raises(RequestNotFoundError):
            calls(request.id)
        with pytest.raises(RequestNotFoundError):
            calls(everything.id)
    assert [each.id for each in dynbeat.schedules.requests()] == [everything.id, request.id]
    dynbeat.schedules.cancel_request(everything.id)
    beat.run_until_idle()
    assert {run.owner for run in sent} == {"user:42"}


def test_due_schedules_are_sent_before_reruns(mine, clock, beat, sent, history):
    history.add()
    mine.create("live", task="t", trigger=MINUTELY)
    mine.rerun_many(since=START)
    clock.advance(MINUTE)

    beat.run_until_idle()

    assert [run.name for run in sent] == ["live", "n", "n", "n"]


def test_reruns_wait_while_more_is_due_than_fits_into_a_batch(database_url, clock):
    with application(database_url, clock=clock, batch_size=2) as dynbeat:
        beat = ManualBeat(dynbeat)
        history = History(dynbeat, clock, beat)
        history.add()
        mine = dynbeat.schedules.for_owner("user:42")
        for name in "abcd":
            mine.create(name, task="t", trigger=MINUTELY)
        mine.rerun_many(since=START)
        clock.advance(MINUTE)

        beat.tick()
        beat.tick()
        assert {run.name for run in beat.publisher.sent} == set("abcd")
        beat.run_until_idle()
        assert len(beat.publisher.sent) == 7


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_previous"])
def test_reruns_that_must_not_overlap_are_made_one_at_a_time(mine, beat, sent, history, overlap):
    history.add(overlap=overlap)
    history.add("parallel")
    mine.rerun_many(since=START)
    beat.run_until_idle()

    for made in range(1, 4):
        assert hours(run for run in sent if run.name == "n") == list(range(1, made + 1))
        history.end("succeeded")
        history.pass_time()
    assert hours(run for run in sent if run.name == "parallel") == [4, 5, 6]
    assert [request.status for request in mine.requests()] == ["finished"]


def test_a_rerun_that_must_not_overlap_waits_for_a_live_run(mine, beat, sent, history):
    history.add(overlap="skip", hours=1)
    live = mine.run_now("n")
    beat.run_until_idle()
    request = mine.rerun_many(since=START)
    history.pass_time()
    assert [run.run_id for run in sent] == [live.id]

    history.end("succeeded")
    history.pass_time()

    assert hours(sent[1:]) == [1]
    assert mine.get_request(request.id).status == "finished"


def test_a_run_that_never_ends_delays_a_request_by_max_run_time_at_most(
    dynbeat, mine, clock, beat, sent, history
):
    history.add(hours=2)
    mine.rerun_many(since=START, batch_size=1)
    beat.run_until_idle()
    start(dynbeat, sent[0].run_id)
    history.pass_time()
    assert len(sent) == 1
    clock.advance(HOUR)
    beat.run_until_idle()
    assert hours(sent) == [1, 2]


def test_runs_that_cannot_run_again_are_excluded(dynbeat, mine, beat, sent, history):
    for name in ("deleted", "paused", "quarantined", "fine"):
        history.add(name, hours=1)
    mine.delete("deleted")
    mine.pause("paused")
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET error = 'x', next_run_at = NULL WHERE name = :n",
        n="quarantined",
    )
    request = mine.rerun_many(since=START)
    beat.run_until_idle()
    history.pass_time()

    assert {run.name for run in sent} == {"fine", "paused", "quarantined"}
    ended = mine.get_request(request.id)
    assert (ended.total, ended.created, ended.excluded, ended.status) == (4, 3, 1, "finished")


def test_runs_whose_task_is_not_allowed_are_excluded(database_url, clock, mine, history):
    history.add()
    with application(database_url, clock=clock, allowed_tasks=["x.*"]) as strict:
        request = mine.rerun_many(since=START)
        ManualBeat(strict).run_until_idle()
        assert mine.get_request(request.id).excluded == 3


def test_a_run_that_changed_after_the_request_is_excluded(mine, beat, sent, history):
    history.add()
    request = mine.rerun_many(since=START, batch_size=1)
    beat.run_until_idle()
    newest = mine.runs("n", origin="schedule")[0]
    mine.rerun(newest.id)
    for _ in range(4):
        history.end("succeeded")
        history.pass_time()

    assert sorted(hours(sent)) == [1, 2, 3]
    assert mine.get_request(request.id).status == "finished"


def test_a_cancel_stops_the_request_and_revokes_its_unstarted_runs(
    dynbeat, mine, beat, sent, history
):
    history.add(hours=4)
    request = mine.rerun_many(since=START, batch_size=2)
    beat.run_until_idle()
    start(dynbeat, sent[0].run_id)
    other = mine.run_now("n")

    cancelled = mine.cancel_request(request.id)
    history.pass_time()

    assert (cancelled.status, cancelled.created, cancelled.progress) == ("cancelled", 2, 0.5)
    assert cancelled.finished_at is not None
    assert [run.status for run in reversed(mine.runs("n", origin="rerun"))] == [
        "running",
        "revoked",
    ]
    assert {run.id: run.status for run in mine.runs("n")}[other.id] == "sent"
    assert mine.cancel_request(request.id) == cancelled


def test_a_cancel_after_the_last_batch_revokes_what_has_not_started(mine, beat, history):
    history.add()
    request = mine.rerun_many(since=START)
    beat.run_until_idle()
    history.pass_time()
    assert mine.get_request(request.id).status == "finished"

    assert mine.cancel_request(request.id).status == "cancelled"
    assert {run.status for run in mine.runs("n", origin="rerun")} == {"revoked"}


def test_a_cancel_after_all_runs_ended_changes_nothing(mine, beat, history):
    history.add()
    request = mine.rerun_many(since=START)
    beat.run_until_idle()
    history.end("succeeded")
    history.pass_time()
    assert mine.cancel_request(request.id).status == "finished"


def test_an_unknown_request_is_not_found(mine):
    for call in (mine.get_request, mine.cancel_request):
        with pytest.raises(RequestNotFoundError):
            call(99)


@pytest.mark.parametrize("point", ["recorded", "committed", "published"])
@pytest.mark.parametrize("batch_size", [2, 10])
def test_a_crash_of_beat_loses_and_repeats_no_rerun(
    dynbeat, mine, clock, beat, sent, history, point, batch_size
):
    history.add(hours=4)

    def crash(reached):
        if reached == point:
            raise KeyboardInterrupt

    request = mine.rerun_many(since=START, batch_size=batch_size)
    dying = ManualBeat(dynbeat, failpoint=crash)
    with pytest.raises(KeyboardInterrupt):
        dying.tick()
    for _ in range(6):
        clock.advance(MINUTE)
        beat.run_until_idle()
        history.end("succeeded", [*dying.publisher.sent, *sent])

    reruns = mine.runs("n", origin="rerun")
    assert [(run.scheduled_for - START) / HOUR for run in reversed(reruns)] == [1, 2, 3, 4]
    assert {run.status for run in reruns} == {"succeeded"}
    assert mine.get_request(request.id).created == 4


def test_two_beats_make_each_rerun_once(dynbeat, mine, clock, beat, history):
    history.add(hours=6)
    other = ManualBeat(dynbeat)
    mine.rerun_many(since=START, batch_size=2)
    dynbeat.schedules.rerun_many(since=START, batch_size=3)
    for _ in range(12):
        beat.tick()
        other.tick()
        for each in (beat, other):
            history.end("succeeded", each.publisher.sent)
        clock.advance(5 * SECOND)

    made = [*beat.publisher.sent, *other.publisher.sent]
    assert sorted(hours(made)) == [1, 2, 3, 4, 5, 6]


def test_a_schedule_that_another_transaction_has_locked_is_not_lost(
    dynbeat, mine, beat, sent, history
):
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("SQLite has no row locks")
    history.add()
    history.add("free", hours=1)
    request = mine.rerun_many(since=START)
    with Session(dynbeat.context.database.engine) as session:
        mine.pause("n", session=session)
        beat.run_until_idle()
        assert [run.name for run in sent] == ["free"]
        session.rollback()
    history.pass_time()

    assert [run.name for run in sent] == ["free", "n", "n", "n"]
    assert mine.get_request(request.id).excluded == 0


def test_runs_that_wait_are_bounded_and_none_is_lost(mine, sent, history, monkeypatch):
    monkeypatch.setattr(rerun_module, "MAX_WAITING", 2)
    history.add(overlap="skip", hours=6)
    mine.rerun_many(since=START)
    for _ in range(8):
        history.pass_time()
        history.end("succeeded")
    assert hours(sent) == [1, 2, 3, 4, 5, 6]
    assert mine.requests()[0].created == 6


def test_a_search_continues_over_runs_that_do_not_match(
    dynbeat, mine, beat, sent, history, monkeypatch
):
    monkeypatch.setattr(rerun_module, "SEARCHED_PER_BATCH", 3)
    monkeypatch.setattr(client_module, "SEARCHED_AT_ONCE", 3)
    history.add("fine", status="succeeded", hours=10)
    history.add(hours=2)
    for calls in (mine, dynbeat.schedules):
        assert calls.rerun_many(since=START).total == 2
    beat.run_until_idle()
    assert hours(sent) == [11, 12]


def test_a_request_for_too_many_runs_is_refused(mine, history, monkeypatch):
    history.add()
    monkeypatch.setattr(client_module, "MAX_RUNS", 2)
    with pytest.raises(InvalidScheduleError, match="split the span") as raised:
        mine.rerun_many(since=START)
    assert raised.value.field == "since"
    assert list(mine.requests()) == []


def test_a_request_for_too_long_a_history_is_refused(mine, history, monkeypatch):
    history.add()
    monkeypatch.setattr(client_module, "SEARCHED_AT_ONCE", 1)
    monkeypatch.setattr(client_module, "MAX_SEARCHED", 2)
    with pytest.raises(InvalidScheduleError, match="more than 2 runs lie in this span"):
        mine.rerun_many(since=START)


@one_database
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"since": START.replace(tzinfo=None)}, "since"),
        ({"since": START + HOUR}, "since"),
        ({"since": START, "until": START - HOUR}, "since"),
        ({"since": START, "until": "x"}, "until"),
        ({"since": START, "status": "skipped"}, "status"),
        ({"since": START, "status": ["failed", "running"]}, "status"),
        ({"since": START, "status": []}, "status"),
        ({"since": START, "status": [["failed"]]}, "status"),
        ({"since": START, "batch_size": 0}, "batch_size"),
        ({"since": START, "batch_size": 1001}, "batch_size"),
        ({"since": START, "name": ""}, "name"),
    ],
)
def test_an_invalid_argument_is_refused(mine, given, field):
    with pytest.raises(InvalidScheduleError) as raised:
        mine.rerun_many(**given)
    assert raised.value.field == field


def test_an_unknown_schedule_is_not_found(mine):
    with pytest.raises(ScheduleNotFoundError):
        mine.rerun_many(since=START, name="n")


def test_a_request_joins_the_transaction_of_the_caller(dynbeat, mine, history):
    history.add()
    with Session(dynbeat.context.database.engine) as session:
        request = mine.rerun_many(since=START, session=session)
        assert mine.get_request(request.id, session=session) == request
        session.rollback()
    assert list(mine.requests()) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("statuses", '["x"]'),
        ("statuses", f"[{'1' * 5_000}]"),
        ("waiting_ids", "[7]"),
        ("unfinished_ids", "[1.5]"),
    ],
)
def test_a_request_that_cannot_be_read_is_cancelled(
    dynbeat, mine, clock, beat, sent, history, column, value
):
    history.add()
    request = mine.rerun_many(since=START)
    execute(dynbeat, f"UPDATE dynbeat_request SET {column} = '{value}'")
    mine.create("live", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert [run.name for run in sent] == ["live"]
    assert request.status == "running"
    row = execute(dynbeat, "UPDATE dynbeat_request SET created = 0 WHERE cancelled")
    assert row == 1


def test_a_hold_of_everything_or_of_the_owner_stops_a_request(dynbeat, mine, sent, history):
    history.add()
    request = mine.rerun_many(since=START)
    for calls in (dynbeat.schedules, mine):
        calls.hold(reason="x")
        history.pass_time()
        assert sent == []
        calls.release()
    history.pass_time()
    assert hours(sent) == [1, 2, 3]
    history.pass_time()
    assert mine.get_request(request.id).status == "finished"


def test_the_runs_of_a_held_owner_wait_in_a_request_for_all_owners(dynbeat, mine, sent, history):
    history.add(hours=2)
    history.add(owner="user:7", hours=1)
    dynbeat.schedules.rerun_many(since=START)
    mine.hold(reason="x")
    history.pass_time()
    assert [run.owner for run in sent] == ["user:7"]
    mine.release()
    history.pass_time()
    assert hours(sent[1:]) == [1, 2]


def test_a_single_rerun_waits_for_the_release(mine, beat, sent, history):
    history.add(hours=1)
    mine.hold(reason="x")
    mine.rerun(mine.runs("n")[0].id)

    beat.run_until_idle()

    assert list(sent) == []


def test_a_rerun_that_is_committed_during_a_batch_is_not_made_again(
    dynbeat, mine, beat, sent, history
):
    engine = dynbeat.context.database.engine
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("the write lock of SQLite keeps the call and the batch apart")
    history.add(hours=2)
    failed = mine.runs("n", status="failed")[0]
    request = mine.rerun_many(since=START)
    made = []

    def rerun_before_the_lock(_connection, _cursor, statement, *_rest):
        locks_schedules = "FROM dynbeat_schedule" in statement and "SKIP LOCKED" in statement
        if locks_schedules and "WHERE dynbeat_schedule.id IN" in statement and not made:
            made.append(None)
            made[0] = mine.rerun(failed.id)

    event.listen(engine, "before_cursor_execute", rerun_before_the_lock)
    try:
        beat.tick()
    finally:
        event.remove(engine, "before_cursor_execute", rerun_before_the_lock)
    beat.run_until_idle()
    history.pass_time()

    assert made[0] is not None
    assert sorted(hours(sent)) == [1, 2]
    ended = mine.get_request(request.id)
    assert (ended.status, ended.created, ended.excluded) == ("finished", 1, 1)
