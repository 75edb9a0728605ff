"""Guarantees 1 and 2 hold in every history, with a fault at any step.

A fault is a crash of a beat or a worker, a commit whose reply is lost, an unreachable database, a
lost or redelivered message, or a worker that is silent for a time. ``DYNBEAT_FAULTS=all`` checks
histories with more faults, and each history with each policy.
"""

import itertools
import os

import pytest

from celery_dynbeat.common.states import OWNED, UNFINISHED, Status
from celery_dynbeat.testing import FrozenClock
from celery_dynbeat.worker.start_decision import StartAction
from tests.model.explorer import explore
from tests.model.machine import Machine
from tests.model.steps import WORKERS, Message, Plan, Row, Steps
from tests.support.applications import START, application
from tests.support.combinations import FAULTS_VARIABLE
from tests.support.fault_summary import SUMMARY_PROPERTY

ALL = os.environ.get(FAULTS_VARIABLE) == "all"
ESSENTIAL = os.environ.get(FAULTS_VARIABLE) == "essential"
#: ``on_lost``, and whether messages are acknowledged late.
EXTREMES = [("record", False), ("rerun", True)]
OTHERS = [("record", True), ("rerun", False)]


def long(*policies, others=()):
    """Mark policies whose histories take a minute each as ``long``.

    The others are no essential ones: each value of them is that of another policy of the test.
    """
    chosen = policies if ESSENTIAL else (*policies, *others)
    return [pytest.param(*policy, marks=pytest.mark.long) for policy in chosen]


@pytest.fixture
def check(record_property):
    def check(url, *, fires, late, faults, retries=0, edits=0, policy=False, **settings):
        clock = FrozenClock(START)
        with application(url, clock=clock, **settings) as dynbeat:
            steps = Steps(dynbeat, clock)
            machine = Machine(steps, fires=fires, late=late, policy=policy)
            result = explore(machine, machine.first(faults=faults, retries=retries, edits=edits))
        record_property(
            SUMMARY_PROPERTY,
            f"{fires} fire times, {faults} faults, {retries} retries, {edits} edits:"
            f" {result.worlds} worlds, {result.moves} moves,"
            f" {len(steps.results)} steps on the database",
        )
        assert result.stuck == []
        return steps.results

    return check


@pytest.mark.parametrize(("on_lost", "late"), [EXTREMES[0], *long(EXTREMES[1], others=OTHERS)])
@pytest.mark.timeout(1800)
def test_two_fire_times_with_a_fault(check, request, sqlite_url, late, on_lost):
    results = check(sqlite_url, fires=2, late=late, faults=1, on_lost=on_lost)

    # The worlds follow from the results of the steps. So they are the same on a database on which
    # each step has the same result.
    assert len(results) > 300
    for server in ("postgresql", "mariadb"):
        clock = FrozenClock(START)
        url = request.getfixturevalue(f"{server}_url")
        with application(url, clock=clock, on_lost=on_lost) as dynbeat:
            assert Steps(dynbeat, clock).repeat(results) == []


@pytest.mark.parametrize(("on_lost", "late"), [EXTREMES[0], *long(EXTREMES[1], others=OTHERS)])
@pytest.mark.timeout(1800)
def test_one_fire_time_with_two_faults(check, sqlite_url, late, on_lost):
    check(sqlite_url, fires=1, late=late, faults=2, on_lost=on_lost)


@pytest.mark.parametrize(("on_lost", "late"), [*OTHERS, *long(others=EXTREMES)])
@pytest.mark.timeout(1800)
def test_one_fire_time_with_a_retry(check, sqlite_url, late, on_lost):
    # With redelivered messages, two faults make more worlds than fit into memory.
    faults = 2 if ALL and not late else 1
    check(sqlite_url, fires=1, late=late, faults=faults, retries=1, on_lost=on_lost)


@pytest.mark.parametrize(("on_lost", "late"), [*OTHERS, *long(others=EXTREMES)])
@pytest.mark.timeout(1800)
def test_one_fire_time_with_a_retry_policy(check, request, sqlite_url, late, on_lost):
    results = check(
        sqlite_url, fires=1, late=late, faults=1, retries=1, policy=True, on_lost=on_lost
    )

    made = [options for (name, _, options), _ in results.items() if name == "write" and options]
    assert made
    for server in ("postgresql", "mariadb"):
        clock = FrozenClock(START)
        url = request.getfixturevalue(f"{server}_url")
        with application(url, clock=clock, on_lost=on_lost) as dynbeat:
            assert Steps(dynbeat, clock).repeat(results) == []


@pytest.mark.timeout(1800)
def test_a_retry_policy_a_pause_and_a_delete(check, sqlite_url):
    check(sqlite_url, fires=2, late=False, faults=0, retries=1, edits=2, policy=True)


@pytest.mark.timeout(1800)
def test_a_pause_a_resume_and_a_delete(check, sqlite_url):
    check(sqlite_url, fires=2, late=False, faults=int(ALL), edits=2)


def test_no_message_starts_a_run_that_has_ended(sqlite_url):
    clock = FrozenClock(START)
    ended = [status for status in Status if status not in {*UNFINISHED, *OWNED}]
    redeliveries = [True, False]
    with application(sqlite_url, clock=clock) as dynbeat:
        steps = Steps(dynbeat, clock)
        for status, redelivered, attempt in itertools.product(ended, redeliveries, [0, 1]):
            row = Row(status, attempt, worker=WORKERS[0])
            message = Message(0, attempt, 0, redelivered=redelivered)
            after, decision = steps.decide(
                Plan(), row, (False, False), message, WORKERS[1], here=False, late=True
            )
            assert (after.status, decision.action) == (status, StartAction.REFUSE)
