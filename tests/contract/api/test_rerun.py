"""rerun(): one new run for the fire time of an ended run."""

from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_dynbeat import ConflictError, Every, InvalidArgumentError
from tests.support.applications import MINUTELY, START, application
from tests.support.ended_runs import end, end_all, start
from tests.support.suites import each_database

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def failed(dynbeat, mine, clock, beat, sent):
    """Return a run of schedule n that failed; its fire time was a minute after the start."""
    mine.create("n", task="t", trigger=Every(HOUR, anchor=START + MINUTE), args=[1])
    clock.advance(MINUTE)
    beat.run_until_idle()
    end_all(dynbeat, sent, "failed")
    clock.advance(MINUTE)
    return mine.runs("n")[0]


@each_database
def test_a_rerun_is_a_new_run_with_the_fire_time_of_the_original(mine, beat, sent, failed):
    rerun = mine.rerun(failed.id)

    assert (rerun.origin, rerun.status, rerun.rerun_of) == ("rerun", "pending", failed.id)
    assert rerun.id != failed.id
    assert rerun.fire_at == failed.fire_at
    beat.tick()
    assert [(run.run_id, run.fire_at) for run in sent[1:]] == [(rerun.id, failed.fire_at)]
    assert mine.runs("n", status="failed") == [failed]


def test_a_rerun_uses_what_the_schedule_says_now(mine, beat, sent, failed):
    mine.update("n", task="other", args=[2])

    assert mine.rerun(failed.id).task == "other"
    beat.tick()

    assert (sent[-1].task, sent[-1].args) == ("other", [2])


def test_expires_after_counts_from_the_request_for_the_rerun(mine, clock, beat, sent, failed):
    mine.update("n", expires_after=30)
    clock.advance(HOUR / 2)
    mine.rerun(failed.id)

    beat.tick()

    assert sent[-1].expires_at == clock.now() + 30 * SECOND


def test_a_rerun_of_a_rerun_names_the_original_and_comes_after_it(
    dynbeat, mine, beat, sent, failed
):
    first = mine.rerun(failed.id)
    beat.tick()
    end_all(dynbeat, sent, "failed")

    second = mine.rerun(first.id)
    beat.tick()
    end_all(dynbeat, sent, "failed")
    third = mine.rerun(failed.id)

    assert {second.rerun_of, third.rerun_of} == {failed.id}
    assert {first.fire_at, second.fire_at, third.fire_at} == {failed.fire_at}
    assert [run.id for run in mine.runs("n")] == [third.id, second.id, first.id, failed.id]


@pytest.mark.parametrize("status", ["succeeded", "failed", "revoked"])
def test_each_ended_run_can_run_again(dynbeat, mine, clock, beat, sent, status):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    end_all(dynbeat, sent, status)

    assert mine.rerun(sent[0].run_id).rerun_of == sent[0].run_id


def test_a_rerun_leaves_the_microsecond_of_a_fire_time_free(dynbeat, mine, clock, beat):
    """A manual run of the microsecond before the next fire time fails and runs again."""
    fire_at = START + MINUTE
    mine.create("n", task="t", trigger=MINUTELY)
    clock.move_to(fire_at - timedelta(microseconds=1))
    manual = mine.run_now("n")
    beat.publisher.sent.clear()
    start(dynbeat, manual.id)
    end(dynbeat, manual.id, "failed")

    rerun = mine.rerun(manual.id)
    clock.move_to(fire_at)
    beat.run_until_idle()

    assert rerun.fire_at == manual.fire_at
    assert fire_at in [run.fire_at for run in mine.runs("n", origin="schedule")]


def refusal(mine, run_id):
    with pytest.raises(ConflictError) as raised:
        mine.rerun(run_id)
    assert raised.value.field == "run_id"
    return str(raised.value)


def test_an_unfinished_run_is_refused(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    assert "the run is sent: wait until it ends" in refusal(mine, sent[0].run_id)


def test_a_run_of_a_deleted_schedule_is_refused(mine, failed):
    mine.delete("n")
    assert "'n' was deleted" in refusal(mine, failed.id)


def test_a_second_rerun_is_refused_while_the_first_is_unfinished(mine, failed):
    first = mine.rerun(failed.id)
    assert f"its rerun {first.id} is pending" in refusal(mine, failed.id)


def test_a_task_that_is_not_allowed_is_refused(database_url, clock, failed):
    with application(
        database_url, clock=clock, owner_limits={"*": {"allowed_tasks": ["reports.*"]}}
    ) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        with pytest.raises(InvalidArgumentError, match="dynbeat_owner_limits: allowed_tasks"):
            mine.rerun(failed.id)


@each_database
def test_a_transaction_with_an_old_snapshot_makes_no_second_rerun(dynbeat, mine, failed):
    """At REPEATABLE READ, MySQL shows no rerun that is newer than the snapshot."""
    database = dynbeat.context.database
    if database.capabilities.embedded:
        pytest.skip("SQLite refuses a write with an old snapshot")
    engine = database.engine.execution_options(isolation_level="REPEATABLE READ")
    with Session(engine) as session:
        mine.bound(session=session).get("n")
        mine.rerun(failed.id)
        with pytest.raises((ConflictError, OperationalError)):
            mine.bound(session=session).rerun(failed.id)
        session.commit()

    assert len(mine.runs("n", origin="rerun")) == 1
