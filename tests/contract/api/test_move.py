"""move() gives a schedule with its history to another owner."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from celery_dynbeat import (
    Cron,
    Every,
    InvalidScheduleError,
    Once,
    OwnerLimitError,
    RunNotFoundError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    StaleScheduleError,
)
from celery_dynbeat.api import OwnerSchedules
from celery_dynbeat.api.edit import moves
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.alert_models import Alert
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.slot_models import Slot
from celery_dynbeat.planning import key_for
from celery_dynbeat.store import holds
from celery_dynbeat.store.schedules import moves as store
from celery_dynbeat.testing import ManualBeat
from tests.security.lookalikes import everything
from tests.support.applications import MINUTELY, START, application, execute, instants
from tests.support.lock_waits import wait_for_lock_wait
from tests.support.worker_stub import WorkerStub

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(moves, "BATCH_SIZE", 2)


@pytest.fixture
def theirs(dynbeat):
    return dynbeat.schedules.for_owner("user:43")


@pytest.fixture
def with_history(dynbeat, mine, beat, clock):
    """Give a schedule with ended, running and pending runs, a backfill, an alert and a slot."""
    mine.create("n", task="t", trigger=Every(60, anchor=START - HOUR))
    for _ in range(7):
        clock.advance(60)
        beat.run_until_idle()
    ended = "UPDATE dynbeat_run SET status = 'succeeded', finished_at = scheduled_for"
    execute(dynbeat, f"{ended}, overdue_at = NULL WHERE scheduled_for < :at", at=clock.now())
    pending = mine.run_now("n")
    mine.backfill("n", since=START - HOUR, until=START - HOUR / 2)
    mine.skip("n", mine.upcoming("n")[1].at)
    opened = {"opened_at": START, "last_at": START, "checked_at": START}
    alert = {"owner": mine.owner, "name": "n", "kind": "failed", "target": "default", **opened}
    with Session(dynbeat.context.database.engine) as session, session.begin():
        session.add(Alert(schedule_id=mine.get("n").id, **alert))
        session.add(Slot(run_id=pending.id, owner=mine.owner))
    # A schedule that stays.
    mine.create("other", task="t", trigger=MINUTELY)
    mine.run_now("other")
    return mine


def move(dynbeat, **given):
    return dynbeat.schedules.move(**{"name": "n", "owner": "user:42", "to": "user:43", **given})


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a transaction"])
def test_the_schedule_keeps_its_id_its_times_and_its_history(dynbeat, with_history, theirs, within):
    before = with_history.get("n")
    runs = list(with_history.runs("n"))
    (backfill,) = with_history.requests()
    skipped = with_history.upcoming("n", with_skipped=True)
    with Session(dynbeat.context.database.engine) as session:
        given = {"session": session} if within else {}
        moved = move(dynbeat, actor="admin", reason="ticket 9", **given)
        session.commit()

    assert theirs.get("n") == moved
    assert (moved.id, moved.owner, moved.version) == (before.id, "user:43", before.version + 1)
    for field in ("next_run_at", "run_count", "last_run_at", "failing_since", "created_at"):
        assert getattr(moved, field) == getattr(before, field)
    assert [each.id for each in theirs.runs("n")] == [each.id for each in runs]
    assert {each.owner for each in theirs.runs()} == {"user:43"}
    assert theirs.count_runs().count == len(runs) > 7
    assert theirs.upcoming("n", with_skipped=True) == skipped
    assert [each.id for each in theirs.requests()] == [backfill.id]
    # Without a recipient the new owner gets no notice.
    assert [(each.schedule, each.owner_notice) for each in theirs.alerts()] == [("n", None)]
    assert [each.name for each in with_history.list()] == ["other"]
    assert {each.name for each in with_history.runs()} == {"other"}
    assert (with_history.requests(), with_history.alerts()) == ([], [])
    with Session(dynbeat.context.database.engine) as session:
        assert session.scalars(select(Slot.owner)).all() == ["user:43"]
    with pytest.raises(RunNotFoundError):
        with_history.get_run(runs[0].id)


def test_the_move_is_in_the_audit_of_both_owners_and_names_no_other_owner(
    dynbeat, with_history, theirs
):
    moved = move(dynbeat, actor="admin", reason="ticket 9")

    for owner in (with_history, theirs):
        change = owner.changes("n")[0]
        assert (change.action, change.actor, change.reason) == ("move", "admin", "ticket 9")
        assert change.after["schedule_id"] == moved.id
    other = {"user:42": "user:43", "user:43": "user:42"}
    for change in dynbeat.schedules.changes(action="move"):
        assert other[change.owner] not in str((change.before, change.after))
    assert [each.action for each in with_history.changes("n")][-1] == "create"


@pytest.mark.usefixtures("with_history")
def test_the_moved_schedule_continues_and_unfinished_runs_can_end(
    dynbeat, theirs, beat, clock, sent
):
    move(dynbeat)
    (pending,) = theirs.runs(status="pending", origin="manual")
    beat.run_until_idle()
    clock.advance(60)
    beat.run_until_idle()

    assert theirs.get_run(pending.id).status == Status.SENT
    found = [run for run in sent if run.scheduled_for == clock.now() and run.name == "n"]
    assert [run.owner for run in found] == ["user:43"]
    assert theirs.cancel_run(pending.id).status == Status.REVOKED


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a transaction"])
def test_an_interrupted_move_can_be_repeated(dynbeat, with_history, theirs, monkeypatch, within):
    number = with_history.count_runs("n").count
    interrupt_the_history(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        move(dynbeat)
    monkeypatch.undo()
    assert theirs.get("n").enabled
    assert 0 < theirs.count_runs().count < number

    with Session(dynbeat.context.database.engine) as session:
        given = {"session": session} if within else {}
        # The version is that before the move.
        moved = move(dynbeat, expected_version=1, **given)
        session.commit()

    assert moved == theirs.get("n")
    assert theirs.count_runs().count == number
    assert [each.action for each in theirs.changes("n")] == ["move"]
    with pytest.raises(ScheduleNotFoundError):
        move(dynbeat)


def interrupt_the_history(monkeypatch, batch=2):
    """Let a batch of ended runs fail."""
    original, calls = store.move_ended, []

    def interrupted(*args, **given):
        calls.append(given)
        if len(calls) == batch:
            raise KeyboardInterrupt
        return original(*args, **given)

    monkeypatch.setattr(store, "move_ended", interrupted)


def test_an_interrupted_move_leaves_the_rest_of_the_history_to_the_erasure_of_the_old_owner(
    dynbeat, with_history, theirs, monkeypatch
):
    interrupt_the_history(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        move(dynbeat)

    dynbeat.schedules.delete_owner(with_history.owner, erase_history=True)

    assert {run.owner for run in theirs.runs("n")} == {"user:43"}


def test_a_move_whose_schedule_was_edited_first_moves_no_history(dynbeat, with_history, theirs):
    with_history.update("n", description="edited")

    with pytest.raises(StaleScheduleError):
        move(dynbeat, expected_version=1)

    assert {run.owner for run in with_history.runs("n")} == {"user:42"}
    assert theirs.runs() == []


@pytest.mark.usefixtures("with_history")
def test_the_later_of_two_moves_at_the_same_time_decides(dynbeat, monkeypatch):
    original = store.move_ended

    def moved_on(*args, **given):
        monkeypatch.setattr(store, "move_ended", original)
        last = original(*args, **given)
        args[0].commit()
        move(dynbeat, owner="user:43", to="user:44")
        return last

    monkeypatch.setattr(store, "move_ended", moved_on)
    move(dynbeat)

    owners = {run.owner for run in dynbeat.schedules.for_owner("user:44").runs("n")}
    assert owners == {"user:42", "user:44"}
    assert dynbeat.schedules.for_owner("user:43").runs() == []
    # The rest still belongs to the first owner. Its move is repeated to the last owner.
    move(dynbeat, to="user:44")
    assert {run.owner for run in dynbeat.schedules.runs(name="n")} == {"user:44"}


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED])
def test_a_run_that_ends_between_the_steps_of_a_move_belongs_to_the_new_owner(
    dynbeat, with_history, theirs, beat, clock, sent, monkeypatch, status
):
    number, worker = with_history.count_runs("n").count, WorkerStub(dynbeat)
    sent.clear()
    clock.advance(60)
    beat.run_until_idle()
    (run,) = (run for run in sent if (run.name, run.scheduled_for) == ("n", clock.now()))
    assert worker.start(run)

    interrupt_the_history(monkeypatch, batch=1)
    with pytest.raises(KeyboardInterrupt):
        move(dynbeat)
    monkeypatch.undo()
    worker.finish(run, status)
    move(dynbeat)

    ended = theirs.get_run(run.run_id)
    assert (ended.status, ended.finished_at) == (status, clock.now())
    assert (theirs.get("n").failing_since is None) == (status == Status.SUCCEEDED)
    assert theirs.count_runs().count > number
    assert with_history.runs("n") == []


@pytest.mark.parametrize("last", ["user:42", "user:44"])
def test_a_second_move_while_history_is_left_keeps_each_run(
    dynbeat, with_history, monkeypatch, last
):
    number = with_history.count_runs("n").count
    interrupt_the_history(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        move(dynbeat)
    monkeypatch.undo()

    move(dynbeat, owner="user:43", to=last)
    if last == "user:44":
        # The first move cannot be completed any more: its new owner does not have the schedule.
        with pytest.raises(ScheduleNotFoundError):
            move(dynbeat)
        left = dynbeat.schedules.count_runs(owner="user:42", name="n").count
        assert 0 < left < number
        move(dynbeat, to="user:44")

    assert {run.owner for run in dynbeat.schedules.runs(name="n")} == {last}
    assert dynbeat.schedules.for_owner(last).count_runs("n").count == number


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({"name": "missing"}, ScheduleNotFoundError, None),
        ({"owner": "user:7"}, ScheduleNotFoundError, None),
        ({"expected_version": 9}, StaleScheduleError, None),
        ({"to": "user:42"}, InvalidScheduleError, "to"),
        ({"to": "org:7/"}, InvalidScheduleError, "to"),
        ({"to": None}, InvalidScheduleError, "to"),
        ({"to": "x" * 256}, InvalidScheduleError, "to"),
        ({"owner": "org:7/"}, InvalidScheduleError, "owner"),
        ({"name": ""}, InvalidScheduleError, "name"),
        ({"name": "config"}, InvalidScheduleError, "name"),
    ],
)
@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a transaction"])
def test_an_invalid_move_changes_nothing(dynbeat, with_history, given, error, field, within):
    with_history.create("config", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET managed_by = 'config' WHERE name = 'config'")
    before = without_owner_rows(dynbeat)

    with Session(dynbeat.context.database.engine) as session:
        with pytest.raises(error) as caught:
            move(dynbeat, **given, **({"session": session} if within else {}))
        session.rollback()

    assert getattr(caught.value, "field", None) == field
    assert without_owner_rows(dynbeat) == before


def without_owner_rows(dynbeat):
    """Return all rows but those of owners: the lock of a zone inserts one."""
    return {line for line in everything(dynbeat) if not line.startswith("dynbeat_owner:")}


def test_a_name_that_the_new_owner_has_is_refused(dynbeat, with_history, theirs):
    theirs.create("n", task="theirs", trigger=MINUTELY)
    before = without_owner_rows(dynbeat)

    with pytest.raises(ScheduleExistsError) as caught:
        move(dynbeat)

    assert (caught.value.owner, caught.value.name) == ("user:43", "n")
    assert without_owner_rows(dynbeat) == before
    assert with_history.get("n").owner == "user:42"


def test_the_limits_of_the_new_owner_apply(limited):
    table = {
        "org:7/": {"max_schedules": 3},
        "org:7/full": {"max_schedules": 1},
        "org:7/slow": {"min_interval": 3600},
        "org:7/mail": {"allowed_tasks": ["mail.*"]},
    }
    dynbeat = limited(owner_limits=table)
    schedules = dynbeat.schedules
    for owner in ("user:42", "org:7/full", "org:7/a", "org:7/b"):
        schedules.for_owner(owner).create("n", task="t", trigger=MINUTELY)
    schedules.for_owner("user:42").create("m", task="t", trigger=MINUTELY)

    def moved(name, owner, to):
        return schedules.move(name, owner=owner, to=to).owner

    with pytest.raises(OwnerLimitError) as caught:
        moved("m", "user:42", "org:7/full")
    assert caught.value.limit_owner == "org:7/"
    with pytest.raises(OwnerLimitError):
        moved("m", "user:42", "org:7/c")
    # Within the group, the number of its schedules stays the same.
    schedules.for_owner("org:7/a").rename("n", "a")
    assert moved("a", "org:7/a", "org:7/b") == "org:7/b"
    with pytest.raises(OwnerLimitError) as caught:
        moved("a", "org:7/b", "org:7/full")
    assert caught.value.limit_owner == "org:7/full"
    with pytest.raises(InvalidScheduleError, match="min_interval"):
        moved("a", "org:7/b", "org:7/slow")
    with pytest.raises(InvalidScheduleError, match="allowed_tasks"):
        moved("a", "org:7/b", "org:7/mail")
    assert moved("a", "org:7/b", "user:42") == "user:42"
    assert moved("m", "user:42", "org:7/c") == "org:7/c"


def test_a_schedule_that_follows_the_zone_follows_that_of_the_new_owner(dynbeat, mine, theirs):
    mine.set_timezone("Europe/Berlin")
    theirs.set_timezone("Asia/Seoul")
    mine.create("n", task="t", trigger=Cron("0 12 * * *"))
    mine.create("fixed", task="t", trigger=Cron("0 12 * * *", timezone="Europe/Berlin"))
    mine.create("paused", task="t", trigger=Cron("0 12 * * *"), enabled=False)
    fixed = mine.get("fixed").next_run_at

    moved = {name: move(dynbeat, name=name) for name in ("n", "fixed", "paused")}

    assert moved["n"].timezone == moved["paused"].timezone == "Asia/Seoul"
    assert moved["n"].next_run_at == START.replace(day=22, hour=3)
    assert (moved["fixed"].timezone, moved["fixed"].next_run_at) == ("Europe/Berlin", fixed)
    assert (moved["paused"].next_run_at, moved["paused"].enabled) == (None, False)
    assert theirs.set_timezone("UTC") == 2


def test_fire_times_that_passed_are_recorded_as_skipped_if_the_zone_changes(
    dynbeat, mine, theirs, clock, beat
):
    theirs.set_timezone("Asia/Seoul")
    mine.create("n", task="t", trigger=Cron("0 * * * *"))
    clock.advance(timedelta(hours=2, minutes=1))

    move(dynbeat)
    beat.run_until_idle()

    (run,) = theirs.runs()
    assert (run.status, run.fire_count, run.owner) == ("skipped", 2, "user:43")


def test_a_trigger_with_an_h_keeps_its_fire_times(dynbeat, mine, theirs):
    mine.create("n", task="t", trigger=Cron("H H * * *"))
    before = instants(mine.upcoming("n"))

    move(dynbeat)

    assert instants(theirs.upcoming("n")) == before


def test_a_hold_of_the_old_owner_ends_for_the_schedule(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(actor="alice")
    clock.advance(60)
    beat.run_until_idle()
    assert mine.get("n").held_at is not None

    moved = move(dynbeat)
    beat.run_until_idle()

    assert (moved.held_at, moved.next_run_at) == (None, clock.now())
    assert [run.owner for run in sent] == ["user:43"]


def test_a_hold_of_the_new_owner_applies(dynbeat, mine, theirs, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    theirs.hold(actor="alice")
    move(dynbeat)
    clock.advance(60)
    beat.run_until_idle()

    assert sent == []
    with Session(dynbeat.context.database.engine) as session:
        assert session.scalar(select(Schedule.next_run_at)) == holds.NEVER


def test_a_quarantined_schedule_stays_quarantined(dynbeat, mine, theirs):
    mine.create("n", task="t", trigger=Cron("0 12 * * *"))
    theirs.set_timezone("Asia/Seoul")
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET trigger_spec = 'x', error = 'bad', next_run_at = NULL,"
        " next_fire_at = NULL",
    )

    moved = move(dynbeat)

    assert (moved.owner, moved.state, moved.timezone) == ("user:43", "quarantined", "Asia/Seoul")


def test_the_arguments_of_a_run_before_the_move_are_not_guessed(dynbeat, mine, theirs, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY, kwargs={"a": 1})
    clock.advance(60)
    beat.run_until_idle()
    clock.advance(3600)
    mine.update("n", kwargs={"a": 2})
    move(dynbeat)
    run = theirs.runs("n")[-1]
    theirs.update("n", kwargs={"a": 3})

    assert theirs.run_arguments(run.id).unknown


@pytest.mark.parametrize("to", ["user:43", "g/b", "h/c", ""])
def test_a_run_that_waits_for_a_slot_is_sent_after_the_move(limited, clock, to):
    dynbeat = limited(owner_limits={"g/": {"max_running": 1}, "h/": {"max_running": 5}})
    beat, worker = ManualBeat(dynbeat), WorkerStub(dynbeat)
    worker.heartbeat()
    old = dynbeat.schedules.for_owner("g/a")
    old.create("first", task="t", trigger=Once(START + timedelta(seconds=10)))
    old.create("n", task="t", trigger=Once(START + timedelta(seconds=20)))
    for _ in range(2):
        clock.advance(10)
        beat.run_until_idle()
    (first,) = beat.publisher.sent
    worker.start(first)

    move(dynbeat, owner="g/a", to=to)
    worker.finish(first, Status.SUCCEEDED)
    for _ in range(2):
        clock.advance(60)
        worker.heartbeat()
        beat.run_until_idle()

    assert [run.name for run in beat.publisher.sent] == ["first", "n"]
    (run,) = dynbeat.schedules.runs(owner=to, name="n")
    assert run.status == Status.SENT


def test_runs_that_are_newer_than_the_snapshot_of_the_transaction_move(mariadb_url, clock):
    engine = create_engine(mariadb_url, isolation_level="REPEATABLE READ")
    with application(mariadb_url, engine=engine, clock=clock) as dynbeat:
        dynbeat.context.prepare()
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY)
        with Session(engine) as session:
            assert mine.runs(session=session) == []
            for _ in range(2):
                clock.advance(60)
                ManualBeat(dynbeat).run_until_idle()
            ended = "UPDATE dynbeat_run SET status = 'lost', overdue_at = NULL, finished_at = :at"
            execute(dynbeat, f"{ended} WHERE scheduled_for < :at", at=clock.now())
            move(dynbeat, session=session)
            session.commit()

        assert mine.runs() == []
        assert dynbeat.schedules.count_runs(owner="user:43").count == 2
    engine.dispose()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_the_old_owner_cannot_rerun_a_run_while_it_moves(request, clock, kind):
    with application(request.getfixturevalue(f"{kind}_url"), clock=clock) as dynbeat:
        dynbeat.context.prepare()
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY)
        clock.advance(60)
        ManualBeat(dynbeat).run_until_idle()
        ended = "UPDATE dynbeat_run SET status = 'failed', overdue_at = NULL, finished_at = :at"
        execute(dynbeat, ended, at=clock.now())
        (run,) = mine.runs()
        engine = dynbeat.context.database.engine
        with ThreadPoolExecutor() as pool, Session(engine) as session:
            move(dynbeat, session=session)
            rerun = pool.submit(mine.rerun, run.id)
            wait_for_lock_wait(engine)
            session.commit()
            with pytest.raises(RunNotFoundError):
                rerun.result()


def test_a_request_of_the_old_owner_reruns_no_run_that_moved(dynbeat, mine, theirs, beat, clock):
    worker = WorkerStub(dynbeat)
    mine.create("n", task="t", trigger=MINUTELY, overlap="skip")
    for _ in range(2):
        clock.advance(60)
        worker.heartbeat()
        beat.run_until_idle()
        worker.start(beat.publisher.sent[-1])
        if len(beat.publisher.sent) == 1:
            worker.finish(beat.publisher.sent[0], Status.FAILED)
    mine.rerun_many(since=START)
    beat.run_until_idle()

    move(dynbeat)
    worker.finish(beat.publisher.sent[1], Status.SUCCEEDED)
    clock.advance(30)
    worker.heartbeat()
    beat.run_until_idle()

    assert theirs.runs(origin="rerun") == []
    assert [request.excluded for request in mine.requests()] == [1]


def test_the_shortest_interval_is_that_of_the_h_that_the_schedule_keeps(limited):
    trigger = Cron("H,30 * * * *", timezone="UTC")
    minutes = {f"user:{n}": hashed_minute(trigger, f"user:{n}") for n in range(1000)}
    near = next(owner for owner, minute in minutes.items() if minute == "29")
    far = next(owner for owner, minute in minutes.items() if minute == "5")
    limited().schedules.for_owner(near).create("n", task="t", trigger=trigger)

    with pytest.raises(InvalidScheduleError, match="min_interval"):
        limited(min_interval=600).schedules.move("n", owner=near, to=far)


def hashed_minute(trigger, owner):
    return trigger.hashed_by(key_for(owner, "n")).expression.partition(",")[0]


def test_an_owner_cannot_move_a_schedule():
    assert not hasattr(OwnerSchedules, "move")
