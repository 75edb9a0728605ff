"""Each edit writes one change, in its own transaction."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, InvalidArgumentError, ScheduleExistsError
from celery_dynbeat.beat.config_sync import sync
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import each_database


def create(mine, name="n", **given):
    return mine.create(name, task="t", trigger=MINUTELY, **given)


def newest(mine, name="n"):
    return mine.changes(name)[0]


def actions(page):
    return [change.action for change in page]


@pytest.fixture
def session(dynbeat):
    with Session(dynbeat.context.database.engine) as opened:
        yield opened


def test_a_create_has_the_given_fields_as_after(mine):
    start_at = START + timedelta(hours=1)
    made = create(mine, kwargs={"user": 42}, queue="mail", expires_after=300, start_at=start_at)

    change = newest(mine)
    assert (change.action, change.owner, change.name) == ("create", "user:42", "n")
    assert (change.actor, change.reason, change.before) == ("", "", None)
    assert change.changed_at == made.created_at
    assert change.after == {
        "task": "t",
        "trigger": made.trigger.to_json(),
        "kwargs": {"user": 42},
        "options": {"queue": "mail"},
        "enabled": True,
        "expires_after": 300.0,
        "start_at": start_at.isoformat(),
        "version": 1,
    }


def test_an_update_has_only_the_fields_that_differ(mine):
    create(mine, description="old")
    mine.update("n", trigger=Cron("0 9 * * *", timezone="Asia/Seoul"), description="new", window=5)

    change = newest(mine)
    assert change.action == "update"
    assert change.before == {
        "trigger": MINUTELY.to_json(),
        "description": "old",
        "window": None,
        "version": 1,
    }
    assert change.after == {
        "trigger": Cron("0 9 * * *", timezone="Asia/Seoul").to_json(),
        "description": "new",
        "window": 5.0,
        "version": 2,
    }


def test_an_update_that_changes_nothing_writes_nothing(mine):
    create(mine, description="same")
    mine.update("n", description="same")
    mine.upsert("n", task="t", trigger=MINUTELY)
    mine.resume("n")

    assert actions(mine.changes("n")) == ["create"]


def test_an_upsert_is_a_create_or_an_update(mine):
    mine.upsert("n", task="t", trigger=MINUTELY)
    mine.upsert("n", task="t", trigger=Every(120))

    assert actions(mine.changes("n")) == ["update", "create"]


def test_pause_and_resume_have_the_reason(dynbeat, mine):
    create(mine)
    mine.pause("n", reason="unpaid")
    with dynbeat.acting(actor="bob", reason="ticket 12"):
        mine.resume("n")
        mine.pause("n", reason="unpaid again")

    again, resumed, paused, _ = mine.changes("n")
    assert (paused.action, paused.reason, paused.actor) == ("pause", "unpaid", "")
    assert paused.before == {"enabled": True, "paused_reason": None, "version": 1}
    assert paused.after == {"enabled": False, "paused_reason": "unpaid", "version": 2}
    assert (resumed.action, resumed.reason, resumed.actor) == ("resume", "ticket 12", "bob")
    assert (again.reason, again.after["paused_reason"]) == ("unpaid again", "unpaid again")
    assert again.actor == "bob"


def test_a_pause_takes_the_reason_of_its_block(dynbeat, mine):
    create(mine)
    with dynbeat.acting(actor="bob", reason="ticket 12"):
        assert mine.pause("n").paused_reason == "ticket 12"


def test_each_change_names_the_actor_and_the_reason_of_its_scope(dynbeat):
    by = {"actor": "ann", "reason": "ticket 12"}
    mine = dynbeat.schedules.for_owner("user:42", **by)
    create(mine)
    mine.create_many([{"name": "m", "task": "t", "trigger": MINUTELY}])
    mine.upsert("m", task="u", trigger=MINUTELY)
    mine.update("n", tags=["red"])
    mine.pause("n")
    mine.resume("n")
    fire_time = mine.upcoming("n")[0].fire_at
    mine.skip("n", fire_time)
    mine.unskip("n", fire_time)
    mine.set_timezone("Asia/Seoul")
    mine.cancel_run(mine.run_now("n").id)
    mine.run_now("n")
    mine.cancel_runs()
    mine.hold()
    mine.release()
    mine.pause_many(everything=True)
    mine.resume_many(everything=True)
    mine.update_many({"tags": ["x"]}, everything=True)
    mine.delete_many(tag="y")
    mine.rename("n", "o")
    mine.delete("o")
    dynbeat.schedules.bound(**by).delete_owner(mine.owner)

    changes = mine.changes()
    assert {(each.actor, each.reason) for each in changes} == {("ann", "ticket 12")}
    assert {each.action for each in changes} >= {
        *("create", "update", "pause", "resume", "skip", "unskip", "set_timezone", "run_now"),
        *("cancel", "hold", "release", "delete", "rename"),
    }


def test_a_call_names_one_of_both_and_its_block_the_other(dynbeat, mine):
    with dynbeat.acting(actor="bob", reason="ticket 12"):
        create(mine.bound(actor="ann"))
        mine.pause("n", reason="unpaid")
        mine.bound(actor="", reason="").resume("n")

    found = [(each.actor, each.reason) for each in mine.changes()]
    assert found == [("", ""), ("bob", "unpaid"), ("ann", "ticket 12")]


@each_database
def test_changes_until_an_instant(mine, clock):
    create(mine)
    clock.advance(60)
    mine.pause("n")

    assert [each.action for each in mine.changes(until=clock.now())] == ["create"]
    assert [each.action for each in mine.changes(since=clock.now())] == ["pause"]


def test_a_delete_has_the_old_fields_and_stays_readable(mine):
    create(mine, tags=["red"])
    mine.delete("n")

    change = newest(mine)
    assert (change.action, change.after) == ("delete", None)
    assert change.before["tags"] == ["red"]
    assert change.before["trigger"] == MINUTELY.to_json()


def test_run_now_and_backfills_are_changes(mine, clock):
    create(mine)
    clock.advance(600)
    run = mine.run_now("n")
    backfill = mine.backfill("n", since=START, until=clock.now() + timedelta(seconds=1))
    mine.bound(actor="alice", reason="too many").cancel_runs(batch_id=backfill.batch_id)

    cancelled, requested, started, _ = mine.changes("n")
    assert (started.action, started.after) == ("run_now", {"run_id": run.id})
    assert (requested.action, cancelled.action) == ("backfill", "cancel")
    assert requested.after["batch_id"] == backfill.batch_id
    assert (cancelled.actor, cancelled.reason) == ("alice", "too many")


def test_a_hold_and_its_release_are_changes_of_the_owner(dynbeat, mine):
    with dynbeat.acting(actor="alice"):
        mine.hold(reason="incident 7")
        mine.hold(reason="incident 8")
        mine.release()
        dynbeat.schedules.hold(reason="all")

    released, changed, held = mine.changes("")
    assert (held.action, held.actor, held.reason) == ("hold", "alice", "incident 7")
    assert (changed.before["reason"], changed.after["reason"]) == ("incident 7", "incident 8")
    assert (released.action, released.after) == ("release", None)
    assert dynbeat.schedules.changes()[0].owner is None


def test_reruns_are_changes(dynbeat, mine, clock):
    create(mine)
    with dynbeat.acting(actor="alice", reason="incident 7"):
        result = mine.bound(reason="incident 8").rerun_many(since=clock.now(), name="n")
    dynbeat.schedules.rerun_many(since=clock.now())

    requested, _ = mine.changes("n")
    assert requested.action == "rerun_many"
    assert (requested.after["created"], result.total) == (0, 0)
    assert (requested.actor, requested.reason) == ("alice", "incident 8")
    assert dynbeat.schedules.changes()[0].owner is None


@each_database
def test_a_rollback_by_the_caller_removes_the_change(mine, session):
    create(mine, "kept")
    create(mine.bound(session=session), "rolled back")
    mine.bound(session=session).pause("kept")
    assert len(mine.bound(session=session).changes()) == 3
    session.rollback()

    assert actions(mine.changes()) == ["create"]


def test_a_refused_edit_writes_nothing(mine):
    create(mine)
    with pytest.raises(ScheduleExistsError):
        create(mine)
    with pytest.raises(InvalidArgumentError):
        mine.update("n", trigger=MINUTELY, end_at=START - timedelta(days=1))

    assert actions(mine.changes()) == ["create"]


def test_create_many_writes_one_change_for_each_schedule(dynbeat, mine):
    new = [{"name": f"n{i}", "task": "t", "trigger": MINUTELY} for i in range(1_200)]
    statements = []
    event.listen(
        dynbeat.context.database.engine,
        "before_cursor_execute",
        lambda _c, _cur, sql, *_: statements.append(sql),
    )
    with dynbeat.acting(actor="importer"):
        dynbeat.schedules.create_many([{**each, "owner": "user:42"} for each in new])

    page = mine.changes(limit=1_000)
    rest = mine.changes(limit=1_000, after=page.cursor)
    assert {change.name for change in [*page, *rest]} == {each["name"] for each in new}
    assert {change.actor for change in [*page, *rest]} == {"importer"}
    assert sum("INTO dynbeat_change" in sql for sql in statements) == 3


@pytest.mark.parametrize("within", [False, True])
def test_delete_owner_writes_one_change_for_each_schedule(dynbeat, mine, session, within):
    create(dynbeat.schedules.for_owner("user:421"))
    dynbeat.schedules.create_many(
        {"owner": "user:42", "name": f"n{i}", "task": "t", "trigger": MINUTELY} for i in range(600)
    )
    dynbeat.schedules.bound(session=session if within else None).delete_owner("user:42")
    session.commit()

    page = mine.changes(action="delete", limit=1_000)
    assert {change.name for change in page} == {f"n{i}" for i in range(600)}
    assert page[0].before["task"] == "t"
    assert len(mine.changes("n1")) == 2


def test_each_thread_has_its_actor(dynbeat):
    def act(number):
        owner = dynbeat.schedules.for_owner(f"user:{number}")
        with dynbeat.acting(actor=f"actor:{number}"):
            for name in ("a", "b"):
                create(owner, name)
        return {change.actor for change in owner.changes()}

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(act, range(8))) == [{f"actor:{i}"} for i in range(8)]


def test_an_owner_reads_only_its_own_changes(dynbeat, mine):
    other = dynbeat.schedules.for_owner("user:421")
    create(mine)
    create(other)

    assert [change.owner for change in mine.changes()] == ["user:42"]
    assert [change.owner for change in other.changes("n")] == ["user:421"]
    assert [change.owner for change in dynbeat.schedules.changes()] == ["user:421", "user:42"]
    assert len(dynbeat.schedules.changes(owner="user:42")) == 1


@each_database
def test_pages_are_complete_and_newest_first(dynbeat, mine, clock):
    for number in range(25):
        create(mine, f"n{number}")
        clock.advance(number % 3)

    for read in (mine.changes, dynbeat.schedules.changes):
        seen, after = [], None
        while not seen or after:
            page = read(limit=4, after=after)
            seen.extend(page)
            after = page.cursor
        assert [change.name for change in seen] == [f"n{i}" for i in reversed(range(25))]


@each_database
def test_filters_on_actor_action_and_time(dynbeat, mine, clock):
    create(mine)
    clock.advance(60)
    with dynbeat.acting(actor="alice"):
        mine.pause("n")
    clock.advance(60)
    mine.resume("n")

    everywhere = dynbeat.schedules
    assert actions(everywhere.changes(actor="alice")) == ["pause"]
    assert actions(mine.changes(actor="alice")) == ["pause"]
    assert actions(everywhere.changes(actor="")) == ["resume", "create"]
    assert actions(everywhere.changes(action="create")) == ["create"]
    assert actions(mine.changes("n", since=START + timedelta(seconds=60))) == ["resume", "pause"]
    assert actions(everywhere.changes(since=START + timedelta(seconds=61))) == ["resume"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a\x00"),
        ("name", 5),
        ("actor", 5),
        ("action", "destroy"),
        ("since", START.replace(tzinfo=None)),
        ("limit", 0),
        ("limit", 1_001),
        ("after", "nonsense"),
        ("after", "W10="),
        ("after", "WyIyMDI2LTExLTIyIiwgMV0="),
        ("after", 5),
    ],
)
def test_an_invalid_argument_is_refused(mine, field, value):
    with pytest.raises(InvalidArgumentError) as caught:
        mine.changes(**{field: value})
    assert caught.value.field == field


@each_database
def test_hostile_texts_come_back_unchanged(dynbeat, mine):
    text = "'; DROP TABLE dynbeat_change; -- \\u0000 \\ \" % {0} Ünï ☃ \U0001f600"
    deep = []
    for _ in range(28):
        deep = [deep]
    with dynbeat.acting(actor=text.strip(), reason=text):
        create(mine, kwargs={text: [text], "nul": "a\x00b", "deep": deep})
        dynbeat.schedules.create_many(
            {"owner": "user:42", "name": f"m{i}", "task": "t", "trigger": MINUTELY, "args": [text]}
            for i in range(2)
        )

    change = newest(mine)
    assert (change.actor, change.reason) == (text, text)
    assert change.after["kwargs"] == {text: [text], "nul": "a\x00b", "deep": deep}
    assert newest(mine, "m1").after["args"] == [text]


@each_database
def test_the_longest_texts_are_stored(dynbeat, mine):
    with dynbeat.acting(actor="é" * 255, reason="\U0001f600" * 1_024):
        create(mine)

    assert newest(mine).reason == "\U0001f600" * 1_024


def test_a_change_is_ready_for_json(mine):
    create(mine, end_at=START + timedelta(days=1))
    assert json.loads(json.dumps(newest(mine).to_dict()))["after"]["end_at"].startswith("2026")


def test_a_row_with_values_that_json_lacks_can_be_repaired_and_deleted(dynbeat, mine):
    create(mine)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'broken', args = '[1e400]'")
    mine.delete("n")

    before = newest(mine).before
    assert before["trigger"]["spec"] == "broken"
    assert math.isfinite(json.loads(json.dumps(before))["version"])


@pytest.mark.parametrize("column", ["args", "kwargs", "options"])
@each_database
def test_an_owner_with_numbers_that_json_lacks_can_be_corrected_and_deleted(dynbeat, mine, column):
    create(mine)
    create(mine, "m")
    value = "[1e400]" if column == "args" else '{"priority": 1e400}'
    execute(dynbeat, f"UPDATE dynbeat_schedule SET {column} = :value", value=value)

    mine.update("n", **{column: [] if column == "args" else {}})
    assert isinstance(newest(mine).before[column], str)
    assert dynbeat.schedules.delete_owner("user:42") == 2


def test_without_the_setting_nothing_is_written(limited):
    mine = limited(audit_retention=0).schedules.for_owner("user:42")
    create(mine)
    mine.pause("n")
    mine.delete("n")

    assert mine.changes() == []


def test_beat_schedule_is_an_actor(limited):
    dynbeat = limited()
    dynbeat.app.conf.beat_schedule = {"entry": {"task": "t", "schedule": 60.0}}
    sync(dynbeat.context)
    dynbeat.app.conf.beat_schedule = {"entry": {"task": "t", "schedule": "nonsense"}}
    sync(dynbeat.context)
    dynbeat.app.conf.beat_schedule = {}
    sync(dynbeat.context)

    page = dynbeat.schedules.for_owner("").changes("entry")
    assert actions(page) == ["delete", "pause", "create"]
    assert {change.actor for change in page} == {"beat_schedule"}
