"""An invalid row affects no other schedule, and a row inserted by SQL works."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import Every, InvalidTriggerError
from celery_dynbeat.store.schedules import due
from tests.security import hostile_values
from tests.support.applications import MINUTELY, START, execute

DAMAGES = {
    "trigger": "trigger_spec = 'never on sunday'",
    "zone": "trigger_kind = 'cron', trigger_spec = '* * * * *', timezone = 'no zone'",
    "args": f"args = '[{'1' * 5_000}]'",
    "impossible": "trigger_kind = 'cron', trigger_spec = '0 0 31 2 *'",
}


@pytest.fixture
def many(dynbeat):
    dynbeat.schedules.create_many(
        {"owner": "crowd", "name": f"{number}", "task": "t", "trigger": MINUTELY}
        for number in range(100)
    )


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.usefixtures("many")
def test_an_invalid_row_is_quarantined_with_its_error_and_the_others_are_sent(
    dynbeat, mine, clock, beat, sent, damage
):
    mine.create("bad", task="t", trigger=MINUTELY)
    execute(dynbeat, f"UPDATE dynbeat_schedule SET {damage} WHERE name = 'bad'")

    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    assert {run.owner for run in sent} == {"crowd"}
    assert len(sent) == 100
    bad = mine.get("bad")
    assert bad.error
    assert (bad.next_run_at, bad.finished_at) == (None, None)


def test_an_update_repairs_a_quarantined_row(dynbeat, mine, clock, beat, sent):
    mine.create("bad", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'odd' WHERE name = 'bad'")
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    assert mine.get("bad").trigger is None

    mended = mine.update("bad", trigger=MINUTELY)

    assert (mended.error, mended.trigger) == (None, MINUTELY)
    clock.move_to(mended.next_run_at)
    beat.run_until_idle()
    assert len(sent) == 1


def test_a_resume_that_fails_for_a_costly_trigger_names_the_row_and_writes_nothing(
    dynbeat, mine, clock
):
    make_costly(dynbeat, mine)
    mine.pause("bad")
    clock.advance(timedelta(days=300))

    with Session(dynbeat.context.database.engine) as session:
        with pytest.raises(InvalidTriggerError, match=r"'bad' of owner '.*' cannot be planned"):
            mine.bound(session=session).resume("bad")
        session.commit()

    assert not mine.get("bad").enabled
    assert mine.runs("bad") == []


def test_run_now_works_with_a_costly_trigger(dynbeat, mine, clock, beat, sent):
    make_costly(dynbeat, mine)
    mine.pause("bad")
    clock.advance(timedelta(days=300))

    mine.run_now("bad")
    beat.run_until_idle()

    assert [run.name for run in sent] == ["bad"]


def make_costly(dynbeat, mine):
    """Create a schedule whose fire times after 1 January are too costly to find."""
    mine.create("bad", task="t", trigger=MINUTELY)
    costly = hostile_values.COSTLY["barren"]()
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET trigger_kind = :kind, trigger_spec = :spec, timezone = 'UTC'"
        " WHERE name = 'bad'",
        kind=costly.kind,
        spec=costly.spec,
    )


def test_fire_times_that_passed_before_a_quarantine_are_counted_once(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=Every(3600, anchor=START))
    unplanned = "UPDATE dynbeat_schedule SET next_run_at = NULL, error = NULL"
    execute(dynbeat, f"{unplanned}, trigger_spec = 'x'")
    clock.advance(3 * 3600)
    beat.run_until_idle()
    assert (mine.get("n").error is None, list(mine.runs("n"))) == (False, [])

    spec = Every(3600, anchor=START).spec
    execute(dynbeat, f"{unplanned}, trigger_spec = :spec", spec=spec)
    beat.run_until_idle()

    assert [(run.status, run.fire_count) for run in mine.runs("n")] == [("skipped", 3)]


def test_a_publish_error_does_not_undo_a_later_edit(dynbeat, mine):
    made = mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", task="mended")

    changed = dynbeat.context.database.run(
        lambda session: due.quarantine(
            session, schedule_id=made.id, version=made.version, error="refused"
        )
    )

    assert not changed
    assert (mine.get("n").error, mine.get("n").next_run_at) == (None, START + MINUTELY.interval)
