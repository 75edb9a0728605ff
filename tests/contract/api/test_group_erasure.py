"""delete_owners() deletes the schedules of a group, and its history if the caller asks for it."""

from datetime import timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from celery_dynbeat import Every, InvalidScheduleError
from celery_dynbeat.api.control import erasure
from celery_dynbeat.common.alert_kinds import Severity, notice_target
from celery_dynbeat.db.alert_models import Alert, AlertMessage
from celery_dynbeat.db.models import Change, Hold, Owner, Request, Run, Schedule
from celery_dynbeat.db.slot_models import Slot, SlotScope
from tests.contract.api.test_groups import GROUP, INNER, OTHERS, OWNERS
from tests.security.lookalikes import everything
from tests.support.applications import START

#: An owner of the group without a schedule, with history.
FORMER = "org:7/former"
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(erasure, "BATCH_SIZE", 3)
    monkeypatch.setattr(erasure, "NAMES_AT_ONCE", 2)


def fill(dynbeat, owner):
    """Give an owner rows in the tables."""
    mine = dynbeat.schedules.for_owner(owner)
    for name in "xy":
        mine.create(name, task="t", trigger=Every(60, anchor=START - HOUR))
        mine.run_now(name)
    mine.set_timezone("Asia/Seoul")
    mine.rerun_many(since=START)
    mine.backfill("x", since=START - HOUR, until=START)
    if owner != FORMER:
        mine.hold(reason="r")
    with Session(dynbeat.context.database.engine) as session, session.begin():
        run_id = mine.runs("x")[0].id
        session.add(Slot(run_id=run_id, owner=owner))
        session.add(SlotScope(name=owner))
        opened = {"opened_at": START, "last_at": START, "checked_at": START}
        alert = {"owner": owner, "name": "x", "kind": "failed", "target": "default", **opened}
        session.add(Alert(schedule_id=mine.get("x").id, **alert))
        about = {"owner": owner, "schedule": "x"}
        for target, payload in {
            notice_target(owner): {"notices": [about]},
            "default": {"groups": [{"examples": [about, {"owner": "org:70", "schedule": "y"}]}]},
        }.items():
            message = {"target": target, "severity": Severity.ERROR, "previous_id": None}
            session.add(AlertMessage(payload=payload, sent_at=START, **message))


@pytest.fixture
def schedules(dynbeat):
    for owner in (*OWNERS, FORMER, *OTHERS):
        fill(dynbeat, owner)
    dynbeat.schedules.delete_owner(FORMER)
    for group in (GROUP, INNER, "org:70/"):
        dynbeat.schedules.for_group(group).hold(actor="alice")
    return dynbeat.schedules


def lines(dynbeat):
    """Return the rows of the tables, except messages, by whether they are of the group."""
    rows = {line for line in everything(dynbeat) if "dynbeat_alert_message" not in line}
    of_group = {line for line in rows if "'org:7/" in line}
    return of_group, rows - of_group


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a transaction"])
def test_only_the_record_of_the_erasure_of_the_group_is_left(dynbeat, schedules, within):
    _, others = lines(dynbeat)
    deleted = []
    with Session(dynbeat.context.database.engine) as session:
        number = schedules.for_group(GROUP).delete_owners(
            erase_history=True,
            expected=2 * len(OWNERS),
            progress=deleted.append,
            actor="admin",
            reason="contract ended",
            session=session if within else None,
        )
        session.commit()

    assert number == 2 * len(OWNERS)
    (change,) = schedules.for_group(GROUP).changes()
    assert (change.owner, change.action, change.actor) == (GROUP, "erase", "admin")
    of_group, left = lines(dynbeat)
    assert left == others
    assert [line.partition(":")[0] for line in of_group] == ["dynbeat_change"]
    assert deleted == sorted(deleted)
    assert deleted[-1] > 40
    with Session(dynbeat.context.database.engine) as session:
        payloads = session.scalars(select(AlertMessage.payload)).all()
        notices = AlertMessage.target.startswith("owner:")
        count = session.scalar(select(func.count()).where(notices))
    assert not any("org:7/" in str(payload) for payload in payloads)
    assert count == len(OTHERS)


def test_without_erase_history_the_runs_and_changes_stay(dynbeat, schedules):
    before = schedules.for_group(GROUP).count_runs().count
    _, others = lines(dynbeat)

    assert schedules.for_group(GROUP).delete_owners(actor="admin") == 2 * len(OWNERS)

    assert not schedules.for_group(GROUP).list().items
    assert schedules.for_group(GROUP).count_runs().count == before
    assert len(schedules.for_group(GROUP).changes(action="delete", actor="admin")) == 8
    assert lines(dynbeat)[1] == others
    with Session(dynbeat.context.database.engine) as session:
        held = session.scalars(select(Hold.owner)).all()
        zoned = session.scalars(select(Owner.owner)).all()
    assert not [each for each in (*held, *zoned) if each.startswith("org:7/")]
    assert "org:70/" in held


@pytest.mark.parametrize("erase_history", [False, True])
def test_another_number_of_schedules_than_expected_changes_nothing(
    dynbeat, schedules, erase_history
):
    before = everything(dynbeat)

    for expected in (7, 9, -1, True):
        with pytest.raises(InvalidScheduleError) as caught:
            schedules.for_group(GROUP).delete_owners(expected=expected, erase_history=erase_history)
        assert caught.value.field == "expected"

    assert everything(dynbeat) == before


def test_the_group_stays_held_until_its_schedules_are_deleted(schedules, beat, clock):
    for owner in OWNERS:
        schedules.for_owner(owner).release(all_actors=True)
    held = []

    def note(_deleted):
        clock.advance(60)
        beat.run_until_idle()
        held.append(schedules.for_group(GROUP).holds()[0].owner)

    schedules.for_group(GROUP).delete_owners(progress=note)

    assert set(held) == {GROUP}
    started = [run for run in beat.publisher.sent if run.owner.startswith(GROUP)]
    assert not [run for run in started if run.origin == "schedule"]


def test_an_interrupted_erasure_leaves_no_schedule_that_fires_and_can_be_repeated(
    dynbeat, schedules
):
    def interrupt(_deleted):
        raise KeyboardInterrupt

    of_group = schedules.for_group(GROUP)
    with pytest.raises(KeyboardInterrupt):
        of_group.delete_owners(erase_history=True, progress=interrupt)
    assert not any(each.enabled for each in of_group.list())

    assert of_group.delete_owners(erase_history=True) == 2 * len(OWNERS)
    with Session(dynbeat.context.database.engine) as session:
        for table in (Schedule, Run, Request):
            owners = set(session.scalars(select(table.owner)).all())
            assert not [each for each in owners if each and each.startswith(GROUP)]
        actions = session.scalars(select(Change.action).where(Change.owner == GROUP)).all()
    assert set(actions) == {"erase"}


@pytest.mark.parametrize(
    ("field", "given"), [("erase_history", 1), ("progress", 1), ("actor", "x" * 256)]
)
def test_an_invalid_argument_is_refused(dynbeat, schedules, field, given):
    before = everything(dynbeat)
    with pytest.raises(InvalidScheduleError) as caught:
        schedules.for_group(GROUP).delete_owners(**{field: given})
    assert caught.value.field == field
    assert everything(dynbeat) == before
