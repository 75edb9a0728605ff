"""A task that raises ``SkipRun`` ends its run as skipped, neither a success nor a failure."""

import pickle
from datetime import timedelta

import pytest

from celery_dynbeat import InvalidArgumentError, Retry, SkipRun
from celery_dynbeat.insights.explain.runs import explain_run
from celery_dynbeat.signals import run_ended
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)


@pytest.fixture
def beat(dynbeat):
    return ManualBeat(dynbeat, run_tasks=True)


@pytest.fixture
def outcomes(dynbeat):
    """Register the task "t", which raises these exceptions in turn; None returns."""
    found = []

    def body():
        outcome = found.pop(0)
        if outcome is not None:
            raise outcome

    dynbeat.app.task(name="t", shared=False)(body)
    return found


def run_all(beat, clock, outcomes):
    while outcomes:
        clock.advance(MINUTE)
        beat.run_until_idle()


def test_the_run_is_skipped_with_the_reason(outcomes, beat, clock, mine):
    mine.create("n", task="t", trigger=MINUTELY, retry=Retry(max_retries=3))
    outcomes.append(SkipRun("no unread mail"))
    ended = []
    run_ended.connect(lambda event, **_: ended.append(event), weak=False, dispatch_uid="test")

    run_all(beat, clock, outcomes)
    run_ended.disconnect(dispatch_uid="test")

    (run,) = mine.runs("n")
    assert (run.status, run.error, run.attempt) == ("skipped", "no unread mail", 1)
    assert (run.traceback, run.retry_at, run.fire_count) == (None, None, 1)
    assert run.finished_at == START + MINUTE
    assert [(event.status, event.error) for event in ended] == [("skipped", "no unread mail")]


@pytest.mark.parametrize(
    ("reason", "stored"), [("x" * 600, "x" * 500), ("", "the task raised SkipRun")]
)
@each_database
def test_a_reason_has_up_to_500_characters(reason, stored, outcomes, beat, clock, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    outcomes.append(SkipRun(reason))

    run_all(beat, clock, outcomes)

    assert mine.runs("n").items[0].error == stored


def test_a_skipped_run_neither_ends_nor_extends_a_series_of_failures(outcomes, beat, clock, mine):
    mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=3)
    outcomes += [ValueError(), SkipRun("a"), ValueError()]
    run_all(beat, clock, outcomes)
    between = mine.get("n")
    outcomes += [SkipRun("b"), ValueError()]
    run_all(beat, clock, outcomes)
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert (between.enabled, between.failing_since) == (True, START + MINUTE)
    assert mine.get("n").paused_reason.startswith("3 failures in a row")


def test_a_skipped_run_has_ended_for_the_run_that_waits_for_it(outcomes, beat, clock, mine):
    mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one")
    outcomes += [SkipRun("a"), None]

    run_all(beat, clock, outcomes)

    assert [run.status for run in mine.runs("n")] == ["succeeded", "skipped"]


def test_its_story_says_that_the_run_skipped_itself(outcomes, beat, clock, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    outcomes.append(SkipRun("overlap: is what the task calls it"))
    run_all(beat, clock, outcomes)

    story = explain_run(mine.runs("n").items[0], now=clock.now())

    assert story.startswith("started 0 ms late on worker manual@test and skipped itself after")
    assert story.endswith(": overlap: is what the task calls it")


def test_a_backfill_does_not_repeat_a_skipped_run_and_a_rerun_does(outcomes, beat, clock, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    outcomes.append(SkipRun("a"))
    run_all(beat, clock, outcomes)
    (skipped,) = mine.runs("n")

    with pytest.raises(InvalidArgumentError):
        mine.backfill("n", since=START + MINUTE, until=clock.now())
    outcomes.append(None)
    rerun = mine.rerun(skipped.id)
    beat.run_until_idle()

    assert mine.get_run(rerun.id).status == "succeeded"
    assert mine.get_run(skipped.id).status == "skipped"


def test_a_task_that_no_schedule_sent_is_ignored(dynbeat, mine):
    @dynbeat.app.task(name="plain", shared=False)
    def plain():
        raise SkipRun("a")

    assert plain.apply().state == "IGNORED"
    assert not mine.runs()


def test_the_exception_survives_the_way_to_the_main_process():
    copy = pickle.loads(pickle.dumps(SkipRun("a")))  # noqa: S301 - of this test

    assert (copy.reason, str(copy)) == ("a", "a")
