"""A confirm that is answered late: what beat does meanwhile, and what it does not."""

from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError

from celery_dynbeat.dispatch import Dispatcher
from celery_dynbeat.testing import RecordingPublisher
from tests.support.applications import MINUTELY

MINUTE = timedelta(minutes=1)
BATCH = 2
NAMES = ["a", "b", "c"]


class Late:
    """A job that was begun is done when somebody waits for it; ``away``: then it fails."""

    def __init__(self):
        self.begun = None
        self.away = False

    def begin(self, job):
        self.settle()
        self.begun = job

    def settle(self):
        job, self.begun = self.begun, None
        if job is None:
            return
        if self.away:
            raise OperationalError("UPDATE", {}, OSError("away"))
        job()

    def close(self):
        self.settle()


@pytest.fixture
def late():
    return Late()


@pytest.fixture
def outlet():
    return RecordingPublisher()


@pytest.fixture
def mine(limited):
    return limited(batch_size=BATCH).schedules.for_owner("user:42")


@pytest.fixture
def dispatcher(mine, clock, outlet, late):
    """Give a dispatcher that has two batches before it."""
    for name in NAMES:
        mine.create(name, task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    context = mine._context
    return Dispatcher(
        database=context.database,
        publisher=outlet,
        clock=clock,
        settings=context.settings,
        beside=late,
    )


def states(mine):
    return sorted(run.status for run in mine.runs())


def test_the_next_batch_is_claimed_before_the_answer_and_sent_behind_it(
    mine, dispatcher, outlet, late, monkeypatch
):
    dispatcher.run_pass()
    assert states(mine) == ["pending"] * BATCH
    seen, publish = [], outlet.publish
    monkeypatch.setattr(outlet, "publish", lambda b: (seen.append(states(mine)), publish(b))[1])
    assert late.begun

    dispatcher.run_pass()

    assert seen == [["pending", "sent", "sent"]]
    assert sorted(run.name for run in outlet.sent) == NAMES


def test_all_is_answered_before_beat_sleeps(mine, dispatcher, late):
    while dispatcher.run_pass() == timedelta(0):
        pass

    assert late.begun is None
    assert states(mine) == ["sent"] * len(NAMES)


def test_behind_a_confirm_that_failed_nothing_more_is_sent_and_nothing_is_lost(
    mine, dispatcher, outlet, late, clock
):
    dispatcher.run_pass()
    late.away = True
    with pytest.raises(OperationalError):
        dispatcher.run_pass()
    assert len(outlet.sent) == BATCH
    assert states(mine) == ["pending"] * len(NAMES)
    late.away = False

    clock.advance(mine._context.settings.dispatch_timeout)
    while dispatcher.run_pass() == timedelta(0):
        pass

    assert states(mine) == ["sent"] * len(NAMES)
    assert {run.run_id for run in outlet.sent} == {run.id for run in mine.runs()}


def test_what_is_being_confirmed_is_not_taken_for_overdue(mine, dispatcher, outlet, clock):
    dispatcher.run_pass()
    clock.advance(mine._context.settings.dispatch_timeout)
    while dispatcher.run_pass() == timedelta(0):
        pass

    assert sorted(run.name for run in outlet.sent) == NAMES
