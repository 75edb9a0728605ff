"""delete_owner(erase_history=True) leaves nothing of an owner but the record of the erasure."""

import json

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from celery_dynbeat.api import owner, schedules
from celery_dynbeat.common.alert_kinds import WORDS, AlertKind
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Alert, Change, Hold, Owner, Run, Schedule
from tests.security.lookalikes import everything
from tests.support.applications import MINUTELY, START
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

SECRET = "bob@example.com"


@pytest.fixture
def session(dynbeat):
    with Session(dynbeat.context.database.engine) as opened:
        yield opened


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(schedules, "BATCH_SIZE", 3)


def alert(schedule, kind):
    is_open = kind == AlertKind.FAILING
    return Alert(
        schedule_id=schedule.id,
        owner=schedule.owner,
        name=schedule.name,
        kind=kind,
        task="t",
        opened_at=START,
        cause=SECRET,
        recovered_at=None if is_open else START,
    )


@pytest.fixture
def filled(dynbeat, mine, clock, beat):
    """Give an owner with rows in each table."""
    for name in ("a", "b"):
        mine.create(name, task="t", trigger=MINUTELY, kwargs={"email": SECRET}, catch_up="all")
        mine.update(name, kwargs={"email": SECRET, "more": 1})
    clock.advance(600)
    beat.run_until_idle()
    mine.run_now("a")
    mine.backfill("a", since=START, until=clock.now())
    mine.hold(reason=f"asked by {SECRET}")
    with Session(dynbeat.context.database.engine) as session, session.begin():
        session.add(Owner(owner=mine.owner, timezone="Asia/Seoul"))
        # More than a batch.
        for kind in WORDS:
            session.add(alert(mine.get("a"), kind))
    return mine


def count(dynbeat, table):
    with Session(dynbeat.context.database.engine) as session:
        return session.scalar(select(func.count()).select_from(table))


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a transaction"])
def test_only_the_record_of_the_erasure_is_left(dynbeat, filled, session, within):
    deleted = []
    with dynbeat.acting(actor="admin", reason="request 7"):
        number = dynbeat.schedules.bound(session=session if within else None).delete_owner(
            filled.owner, erase_history=True, progress=deleted.append
        )
    session.commit()

    assert number == 2
    for table in (Schedule, Run, Hold, Owner, Alert):
        assert count(dynbeat, table) == 0
    (change,) = filled.changes()
    assert (change.action, change.actor, change.reason) == ("erase", "admin", "request 7")
    assert (change.name, change.before, change.after) == ("", None, None)
    assert not any(SECRET in line for line in everything(dynbeat))
    assert deleted == sorted(deleted)
    assert deleted[-1] >= 20


def test_an_interrupted_erasure_leaves_no_schedule_that_fires_and_can_be_repeated(
    dynbeat, filled, beat, sent, clock
):
    def interrupt(_deleted):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dynbeat.schedules.delete_owner(filled.owner, erase_history=True, progress=interrupt)
    already_sent = len(sent)
    clock.advance(600)
    beat.run_until_idle()
    assert len(sent) == already_sent
    assert not any(schedule.enabled for schedule in filled.list())

    assert dynbeat.schedules.delete_owner(filled.owner, erase_history=True) == 2
    assert count(dynbeat, Run) == 0
    assert {change.action for change in filled.changes()} == {"erase"}


def test_what_is_added_during_the_erasure_is_deleted(dynbeat, filled):
    def add(_deleted):
        if filled.list():
            filled.run_now("a")

    # After each batch of runs another run exists: the end deletes the last one.
    calls = []

    def add_thrice(deleted):
        calls.append(deleted)
        if len(calls) <= 3:
            add(deleted)

    dynbeat.schedules.delete_owner(filled.owner, erase_history=True, progress=add_thrice)

    assert count(dynbeat, Run) == count(dynbeat, Schedule) == 0
    assert count(dynbeat, Change) == 1


def test_messages_of_erased_runs_are_refused_and_a_running_task_ends(
    dynbeat, mine, clock, beat, sent
):
    mine.create("a", task="t", trigger=MINUTELY)
    worker = WorkerStub(dynbeat)
    for _ in range(2):
        clock.advance(60)
        beat.run_until_idle()
    running, waiting = sent
    assert worker.start(running)

    dynbeat.schedules.delete_owner(mine.owner, erase_history=True)

    assert not worker.start(waiting)
    assert not worker.start(waiting, redelivered=True)
    for status in (Status.FAILED, Status.SUCCEEDED):
        worker.finish(running, status)
    assert count(dynbeat, Run) == 0


def test_an_export_has_each_row_of_the_owner_once(dynbeat, filled, session, monkeypatch):
    dynbeat.schedules.for_owner("user:421").create("a", task="t", trigger=MINUTELY)
    monkeypatch.setattr(owner, "BATCH_SIZE", 4)
    text = "\n".join(json.dumps(line) for line in filled.export())
    lines = [json.loads(line) for line in text.splitlines()]

    numbers = {}
    for line in lines:
        numbers[line["record"]] = numbers.get(line["record"], 0) + 1
        assert line["owner"] == "user:42"
    runs = len(filled.runs(limit=1_000))
    changes = len(filled.changes(limit=1_000))
    assert numbers == {
        "owner": 1,
        "schedule": 2,
        "run": runs,
        "change": changes,
        "alert": len(WORDS),
        "hold": 1,
    }
    owned = ["alert", "hold"]
    assert list(numbers) == ["owner", "schedule", "run", "change", *owned]
    assert lines[0]["timezone"] == "Asia/Seoul"
    schedule = next(line for line in lines if line["record"] == "schedule")
    assert {"record": "schedule", **filled.get("a").to_dict()} == schedule
    assert [*filled.bound(session=session).export()][1:] == lines[1:]


@each_database
def test_an_export_reads_in_batches(mine, clock, beat, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.api.owner.BATCH_SIZE", 4)
    mine.create("a", task="t", trigger=MINUTELY, catch_up="all")
    clock.advance(60 * 25)
    beat.run_until_idle()

    runs = [line for line in mine.export() if line["record"] == "run"]
    assert len({line["id"] for line in runs}) == len(runs) == 25
    assert [line["fire_at"] for line in runs] == sorted(
        (line["fire_at"] for line in runs), reverse=True
    )
