"""One-offs: a delay counts from the database's clock; one that has just passed fires at once."""

from datetime import timedelta

import pytest

from celery_dynbeat import ConflictError, Every, Once
from tests.support.applications import START, instants

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
#: dynbeat_dispatch_timeout.
GRACE = timedelta(seconds=30)


def test_a_delay_counts_from_the_clock_of_the_database(mine, clock, beat, sent):
    mine.upsert("reminder", task="t", trigger=Once.after(timedelta(hours=40)))
    moved = mine.upsert("reminder", task="t", trigger=Once.after(timedelta(hours=50)))

    clock.advance(timedelta(hours=50))
    beat.run_until_idle()

    assert moved.trigger == Once(START + timedelta(hours=50))
    assert moved.next_run_at == moved.trigger.at
    assert [run.fire_at for run in sent] == [moved.trigger.at]


@pytest.mark.parametrize("call", ["create", "upsert", "update", "create_many"])
def test_each_call_that_stores_a_delay_counts_it_from_now(dynbeat, mine, clock, call):
    trigger = Once.after(MINUTE)
    if call == "update":
        mine.create("n", task="t", trigger=Every(300))
    clock.advance(timedelta(hours=1))

    if call == "create_many":
        new = {"owner": "user:42", "name": "n", "task": "t", "trigger": trigger}
        dynbeat.schedules.create_many([new])
    else:
        getattr(mine, call)("n", **({} if call == "update" else {"task": "t"}), trigger=trigger)

    assert mine.get("n").trigger == Once(clock.now() + MINUTE)
    assert instants(mine.upcoming("n")) == [clock.now() + MINUTE]


@pytest.mark.parametrize("late", [timedelta(0), SECOND, GRACE])
@pytest.mark.parametrize("call", ["create", "update"])
def test_a_one_off_that_has_just_passed_fires_at_once(mine, clock, beat, sent, call, late):
    if call == "update":
        mine.create("n", task="t", trigger=Every(days=1))
        clock.advance(MINUTE)
    at = clock.now() - late

    made = getattr(mine, call)("n", **({"task": "t"} if call == "create" else {}), trigger=Once(at))
    upcoming = instants(mine.upcoming("n"))
    beat.run_until_idle()

    assert (made.next_run_at, upcoming) == (clock.now(), [at])
    assert [run.fire_at for run in sent] == [at]


def test_a_late_one_off_that_already_has_a_run_does_not_fire_again(mine, clock, beat, sent):
    first = Once(START + MINUTE)
    mine.create("n", task="t", trigger=first)
    clock.advance(MINUTE)
    beat.run_until_idle()
    mine.update("n", trigger=Once.after(MINUTE))
    clock.advance(SECOND)

    with pytest.raises(ConflictError, match="already has its run"):
        mine.update("n", trigger=first)

    assert mine.get("n").trigger == Once(START + 2 * MINUTE)
    clock.advance(MINUTE)
    beat.run_until_idle()
    assert len(sent) == 2


def test_a_resume_does_not_fire_a_one_off_that_has_just_passed(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=Once(START + MINUTE))
    mine.pause("n")
    clock.advance(MINUTE + SECOND)

    resumed = mine.resume("n")
    beat.run_until_idle()

    assert (resumed.finished_at, sent) == (clock.now(), [])
