"""rerun_many(): which ended runs run again, in what order, and at what pace."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import (
    Every,
    InvalidArgumentError,
)
from celery_dynbeat.api import batches
from tests.support.applications import START, application, execute
from tests.support.ended_runs import end_all
from tests.support.suites import each_database

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
        """Make passes after the poll interval, when each waiting run is asked again."""
        self._clock.advance(seconds * SECOND)
        self._beat.run_until_idle()


@pytest.fixture
def history(dynbeat, clock, beat):
    return History(dynbeat, clock, beat)


def hours(sent):
    return [(run.fire_at - START) / HOUR for run in sent]


#: All turns of a test come within a second.
FAST = 6_000


def test_the_task_of_each_run_decides_not_that_of_its_schedule(dynbeat, mine, beat, sent, history):
    history.add("a", hours=2)
    mine.update("a", task="u")
    again = [mine.rerun(run.id) for run in mine.runs("a")]
    beat.run_until_idle()
    end_all(dynbeat, sent, "failed")
    sent.clear()
    history.pass_time()

    assert mine.rerun_many(since=START, task="u", per_minute=FAST).total == 2
    assert mine.rerun_many(since=START, task="t").total == 0
    history.pass_time()

    assert {mine.get_run(run.run_id).rerun_of for run in sent} == {run.rerun_of for run in again}


def test_each_failed_run_runs_again_with_its_fire_time_at_a_pace(mine, clock, beat, sent, history):
    history.add()
    result = mine.rerun_many(since=START, per_minute=60)
    assert (result.total, result.excluded, result.left_since) == (3, 0, None)

    for number in (1, 2, 3):
        beat.run_until_idle()
        assert hours(sent) == [1, 2, 3][:number]
        clock.advance(SECOND)

    reruns = mine.runs("n", origin="rerun")
    assert [run.status for run in reruns] == ["sent"] * 3
    assert {run.rerun_of for run in reruns} == {run.id for run in mine.runs("n", status="failed")}
    assert {run.batch_id for run in reruns} == {result.batch_id}
    assert mine.get_batch(result.batch_id).counts == {"sent": 3}


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
@each_database
def test_the_filters_select_the_runs(dynbeat, beat, sent, history, which, expected, owner):
    history.add()
    history.add("other", hours=1)
    history.add("fine", hours=1, status="succeeded")
    calls = dynbeat.schedules if owner is None else dynbeat.schedules.for_owner(owner)

    assert calls.rerun_many(**which, per_minute=FAST).total == len(expected)
    beat.run_until_idle()

    assert sorted(hours(sent)) == expected


@pytest.mark.parametrize("many", [False, True])
@each_database
def test_a_rerun_that_must_not_overlap_waits_for_a_live_run(mine, beat, sent, history, many):
    history.add(overlap="skip", hours=1)
    (failed,) = mine.runs("n")
    live = mine.run_now("n")
    beat.run_until_idle()
    if many:
        mine.rerun_many(since=START)
    else:
        mine.rerun(failed.id)
    history.pass_time()
    assert [run.run_id for run in sent] == [live.id]
    assert mine.runs("n", status="pending")[0].waited_for == "previous"

    history.end("succeeded")
    history.pass_time()

    assert hours(sent[1:]) == [1]


@each_database
def test_runs_of_deleted_schedules_do_not_match(dynbeat, mine, beat, sent, history):
    for name in ("deleted", "paused", "quarantined", "fine"):
        history.add(name, hours=1)
    mine.delete("deleted")
    mine.pause("paused")
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET error = 'x', next_run_at = NULL WHERE name = :n",
        n="quarantined",
    )
    result = mine.rerun_many(since=START, per_minute=FAST)
    beat.run_until_idle()

    assert {run.name for run in sent} == {"fine", "paused", "quarantined"}
    assert (result.total, result.excluded) == (3, 0)


@each_database
def test_a_search_continues_over_runs_that_do_not_match(
    dynbeat, mine, beat, sent, history, monkeypatch
):
    monkeypatch.setattr(batches, "SEARCHED_AT_ONCE", 3)
    history.add("fine", status="succeeded", hours=10)
    history.add(hours=2)
    history.add("of_all", hours=2)
    assert mine.rerun_many(since=START, name="n", per_minute=FAST).total == 2
    assert dynbeat.schedules.rerun_many(since=START, per_minute=FAST).total == 2
    beat.run_until_idle()
    assert sorted(hours(sent)) == [11, 12, 13, 14]


def test_runs_of_one_instant_on_two_pages_of_a_search_run_again_once(
    mine, clock, beat, sent, history, monkeypatch
):
    monkeypatch.setattr(batches, "SEARCHED_AT_ONCE", 2)
    monkeypatch.setattr(batches, "MAX_BATCH", 3)
    for name in ("a", "b", "c"):
        mine.create(name, task="t", trigger=Every(HOUR, anchor=START))
    clock.advance(HOUR)
    beat.run_until_idle()
    history.end("failed")
    clock.advance(SECOND)
    sent.clear()

    made = mine.rerun_many(since=START, per_minute=FAST)
    assert (made.total, made.left_since) == (3, None)
    beat.run_until_idle()
    assert sorted(run.name for run in sent) == ["a", "b", "c"]


@pytest.mark.parametrize("of_owner", [True, False])
def test_what_is_left_is_for_the_next_call(
    dynbeat, mine, beat, sent, history, monkeypatch, of_owner
):
    history.add(hours=5)
    monkeypatch.setattr(batches, "MAX_BATCH", 2)
    calls = mine if of_owner else dynbeat.schedules
    created, since = [], START
    while since is not None:
        result = calls.rerun_many(since=since, per_minute=FAST)
        created.append(result.total)
        since = result.left_since
    beat.run_until_idle()

    assert created == [2, 2, 1]
    assert sorted(hours(sent)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("of_owner", [True, False])
def test_repeated_calls_end_although_the_reruns_fail(
    dynbeat, mine, clock, beat, history, monkeypatch, of_owner
):
    history.add(hours=5)
    monkeypatch.setattr(batches, "MAX_BATCH", 2)
    calls = mine if of_owner else dynbeat.schedules
    first, created, since = clock.now(), [], START
    while since is not None and len(created) < 10:
        result = calls.rerun_many(since=since, ended_before=first, per_minute=FAST)
        created.append(result.total)
        since = result.left_since
        beat.run_until_idle()
        history.end("failed")
        history.pass_time()

    assert created == [2, 2, 1]
    assert calls.rerun_many(since=START).total == 2, "the reruns match without ended_before"


def test_a_call_of_which_no_run_can_run_is_refused_if_more_are_left(
    database_url, clock, history, monkeypatch
):
    history.add()
    monkeypatch.setattr(batches, "MAX_BATCH", 2)
    with (
        application(
            database_url, clock=clock, owner_limits={"*": {"allowed_tasks": ["x.*"]}}
        ) as strict,
        pytest.raises(InvalidArgumentError, match="none of the first 2 runs"),
    ):
        strict.schedules.rerun_many(since=START)


@each_database
def test_a_call_for_too_long_a_history_is_refused(mine, history, monkeypatch):
    history.add()
    monkeypatch.setattr(batches, "SEARCHED_AT_ONCE", 1)
    monkeypatch.setattr(batches, "MAX_SEARCHED", 2)
    with pytest.raises(InvalidArgumentError, match="more than 2 runs lie in this span"):
        mine.rerun_many(since=START)


def test_a_rerun_that_is_committed_after_the_search_is_not_made_again(
    dynbeat, mine, beat, sent, history, monkeypatch
):
    history.add(hours=2)
    failed = mine.runs("n", status="failed")[0]
    search = batches.search

    def search_and_rerun(session, matching):
        found = search(session, matching)
        assert mine.bound(session=session).rerun(failed.id).rerun_of == failed.id
        return found

    with Session(dynbeat.context.database.engine) as session:
        monkeypatch.setattr(batches, "search", search_and_rerun)
        result = mine.bound(session=session).rerun_many(since=START)
        session.commit()
    beat.run_until_idle()

    assert (result.total, result.excluded) == (1, 1)
    assert sorted(hours(sent)) == [1, 2]
