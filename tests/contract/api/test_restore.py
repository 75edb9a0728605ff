"""restore() brings back what the audit knows of a schedule."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_dynbeat import (
    AnyOf,
    ChangeNotFoundError,
    Cron,
    Every,
    InvalidScheduleError,
    InvalidTriggerError,
    Once,
    OwnerLimitError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    StaleScheduleError,
)
from celery_dynbeat.api.edit import restoring
from tests.security.lookalikes import everything
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.suites import one_database

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "audit.md"
HOUR = timedelta(hours=1)
#: A value of each field that the audit contains.
FIELDS = {
    "args": [1, {"a": None}],
    "kwargs": {"user": 42},
    "options": {"queue": "mail", "priority": 3, "headers": {"x": "y"}},
    "start_at": START + HOUR,
    "end_at": START + 1000 * HOUR,
    "max_runs": 7,
    "catch_up": "all",
    "catch_up_window": timedelta(minutes=5),
    "expires_after": timedelta(seconds=90.5),
    "jitter": timedelta(seconds=5),
    "overlap": "skip",
    "max_run_time": HOUR,
    "on_lost": "rerun",
    "pause_after_failures": 0,
    "retry": {"times": 3, "delay": 10},
    "description": "d",
    "tags": ["b", "a"],
    "alerts": {"after_failures": 3, "late_after": 120},
}
TRIGGERS = [
    Cron("H 9 * * mon-fri", timezone="Asia/Seoul"),
    Cron("0 9 * * *"),
    Every(HOUR, anchor=START),
    AnyOf(Cron("0 9 * * mon-fri"), Cron("0 12 * * *", timezone="Europe/Berlin")),
    Once(START + 300 * HOUR),
]


def test_each_field_of_a_schedule_is_restored():
    assert {"task", *FIELDS} == restoring._FIELDS


def state(info):
    """Return the fields of a schedule that a user sets."""
    own = {name: getattr(info, name) for name in FIELDS}
    trigger = (info.given_trigger, info.timezone, info.inherits_timezone)
    return own, trigger, info.task, info.enabled, info.paused_reason, info.paused_until


def last(mine, action="delete"):
    """Return the id of the newest edit with an action."""
    return mine.changes(action=action)[0].id


@pytest.mark.parametrize("trigger", TRIGGERS, ids=repr)
@pytest.mark.parametrize("paused", [False, True])
def test_a_deleted_schedule_has_the_fields_that_it_had(mine, clock, trigger, paused):
    mine.set_timezone("Asia/Tokyo")
    fields = {**FIELDS, "start_at": None, "end_at": None} if trigger.kind == "once" else FIELDS
    before = mine.create("n", task="t", trigger=trigger, **fields)
    if paused:
        before = mine.pause("n", reason="on holiday", until=10 * HOUR)
    mine.delete("n")
    clock.advance(60)

    restored = mine.restore(last(mine), actor="alice", reason="ticket 12")

    assert state(restored) == state(before)
    assert mine.get("n") == restored
    assert (restored.version, restored.run_count) == (1, 0)
    change = mine.changes("n")[0]
    assert (change.action, change.actor, change.reason) == ("restore", "alice", "ticket 12")
    assert change.before is None
    assert change.after["task"] == "t"


def test_a_deleted_schedule_is_planned_from_now(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=Every(60, anchor=START))
    mine.delete("n")
    clock.advance(10 * HOUR.total_seconds() + 30)

    restored = mine.restore(last(mine))
    beat.run_until_idle()
    assert (restored.next_run_at, sent) == (clock.now() + timedelta(seconds=30), [])
    clock.advance(30)
    beat.run_until_idle()

    assert [run.scheduled_for for run in sent] == [clock.now()]


def test_a_pause_that_has_ended_meanwhile_is_not_restored(mine, clock):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.pause("n", until=HOUR)
    mine.delete("n")
    clock.advance(2 * HOUR.total_seconds())

    assert mine.restore(last(mine)).enabled


@pytest.mark.parametrize("seconds", [0, 1, 3600])
def test_a_one_off_that_passed_is_refused_also_within_the_grace(dynbeat, mine, clock, seconds):
    mine.create("n", task="t", trigger=Once(START + HOUR))
    mine.create("m", task="t", trigger=Once(START + HOUR))
    mine.update("m", trigger=MINUTELY)
    mine.delete("n")
    clock.advance(HOUR.total_seconds() + seconds)
    before = everything(dynbeat)

    for change_id in (last(mine), last(mine, "update")):
        with pytest.raises(InvalidScheduleError, match="passed") as caught:
            mine.restore(change_id)
        assert caught.value.field == "trigger"

    assert everything(dynbeat) == before


def test_an_earlier_version_has_the_fields_before_the_edit_and_later_ones(mine):
    mine.create("n", task="t", trigger=Cron("0 9 * * *"), **FIELDS)
    mine.update("n", description="kept")
    first = mine.get("n")
    changed = dict.fromkeys(FIELDS.keys() - {"args", "kwargs", "options", "description", "tags"})
    mine.update("n", **changed)
    target = last(mine, "update")
    mine.update("n", task="u", args=[], kwargs={}, options={}, tags=[], description="")
    mine.update("n", trigger=Cron("0 10 * * *", timezone="UTC"))
    latest = mine.get("n")

    restored = mine.restore(target, actor="alice")

    assert state(restored) == state(first)
    assert (restored.id, restored.version) == (first.id, latest.version + 1)
    undo = mine.changes("n")[0]
    assert (undo.action, undo.actor, undo.before["task"]) == ("restore", "alice", "u")
    assert state(mine.restore(undo.id)) == state(latest)


@pytest.mark.parametrize(
    "steps",
    [
        [Cron("0 9 * * *"), Cron("0 9 * * *", timezone="UTC")],
        [Cron("0 9 * * *", timezone="UTC"), Cron("0 9 * * *")],
        [Cron("0 8 * * *"), Cron("0 9 * * *"), Cron("0 9 * * *", timezone="UTC"), MINUTELY],
        [Cron("0 8 * * *", timezone="UTC"), Cron("0 9 * * *"), Cron("0 9 * * *", timezone="UTC")],
    ],
)
def test_a_restored_trigger_follows_the_zone_of_its_owner_only_if_it_did(mine, steps):
    mine.create("n", task="t", trigger=steps[0])
    infos = [mine.get("n")]
    for trigger in steps[1:]:
        mine.update("n", trigger=trigger)
        infos.append(mine.get("n"))
    updates = [change.id for change in mine.changes("n", action="update")][::-1]

    for info, change_id in reversed(list(zip(infos, updates, strict=False))):
        restored = mine.restore(change_id)
        assert restored.given_trigger == info.given_trigger
        assert restored.inherits_timezone == info.inherits_timezone


@pytest.mark.parametrize("zone", ["Asia/Seoul", None])
def test_a_restored_trigger_has_its_zone_after_the_owner_moved_to_another(mine, zone):
    mine.set_timezone("Asia/Seoul")
    first = mine.create("n", task="t", trigger=Cron("0 9 * * *", timezone=zone))
    mine.update("n", trigger=Cron("0 9 * * *", timezone=None if zone else "Asia/Seoul"))
    mine.set_timezone("Europe/Berlin")

    restored = mine.restore(last(mine, "update"))

    assert restored.given_trigger == first.given_trigger
    assert restored.timezone == (zone or "Europe/Berlin")
    assert restored.inherits_timezone == first.inherits_timezone


def test_a_restore_of_an_update_keeps_a_pause_and_its_ping_url(limited):
    dynbeat = limited(ping_hosts=["hc.example"])
    mine = dynbeat.schedules.for_owner("user:42")
    mine.create("n", task="t", trigger=MINUTELY, ping_url="https://hc.example/secret")
    mine.update("n", description="new", ping_url="https://hc.example/other")
    mine.pause("n", reason="why")

    restored = mine.restore(last(mine, "update"))

    assert (restored.description, restored.enabled, restored.paused_reason) == ("", False, "why")
    assert restored.ping_url == "https://hc.example/other"
    mine.delete("n")
    assert mine.restore(last(mine)).ping_url is None


def test_a_restore_that_changes_nothing_writes_nothing(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", description="new")
    target = last(mine, "update")
    mine.restore(target)
    before = everything(dynbeat)

    mine.restore(target)

    assert everything(dynbeat) == before


def test_the_edits_of_another_schedule_of_the_name_are_not_restored(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", description="of the first")
    of_first = last(mine, "update")
    mine.delete("n")
    mine.create("n", task="u", trigger=MINUTELY)
    mine.update("n", description="of the second")
    mine.create("renamed", task="t", trigger=MINUTELY)
    mine.update("renamed", description="x")
    of_renamed = last(mine, "update")
    mine.rename("renamed", "renamed 2")
    mine.create("renamed", task="t", trigger=MINUTELY)
    before = everything(dynbeat)

    for change_id in (of_first, of_renamed):
        with pytest.raises(InvalidScheduleError, match="another schedule") as caught:
            mine.restore(change_id)
        assert caught.value.field == "change_id"

    assert everything(dynbeat) == before


def test_an_edit_before_a_move_is_not_restored_by_either_owner(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", description="x")
    update = last(mine, "update")
    dynbeat.schedules.move("n", owner=mine.owner, to="user:43")
    mine.create("n", task="u", trigger=MINUTELY)

    for calls in (mine, dynbeat.schedules):
        with pytest.raises(InvalidScheduleError, match="another schedule"):
            calls.restore(update)
    with pytest.raises(ChangeNotFoundError):
        dynbeat.schedules.for_owner("user:43").restore(update)
    mine.delete("n")
    with pytest.raises(InvalidScheduleError, match="another schedule"):
        mine.restore(update)


def test_an_edit_before_a_restored_deletion_is_not_of_the_new_schedule(mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", description="x")
    update = last(mine, "update")
    mine.delete("n")
    mine.restore(last(mine))

    with pytest.raises(InvalidScheduleError, match="a later edit is a 'restore'"):
        mine.restore(update)


def undo_as_documented(mine):
    """Execute the code of the page about the audit that undoes an edit before a rename."""
    _, section = PAGE.read_text().split("\n### Undo an edit before a rename\n")
    code = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    exec(code, {"mine": mine})  # noqa: S102 - the page is our own


@one_database
@pytest.mark.parametrize("trigger", [TRIGGERS[0], TRIGGERS[1]], ids=repr)
def test_the_example_of_the_page_undoes_an_edit_before_a_rename(mine, trigger):
    before = mine.create("digest", task="t", trigger=trigger, **FIELDS)
    changed = dict.fromkeys(FIELDS.keys() - {"args", "kwargs", "options", "description", "tags"})
    changed.update(args=[], kwargs={}, options={}, tags=[], description="")
    mine.update("digest", task="u", trigger=MINUTELY, **changed)
    mine.rename("digest", "summary")
    with pytest.raises(InvalidScheduleError, match="another schedule"):
        mine.restore(mine.changes("digest", action="update")[0].id)

    undo_as_documented(mine)

    assert state(mine.get("summary")) == state(before)


@one_database
def test_the_example_of_the_page_clears_fields_that_were_not_set(mine):
    before = mine.create("digest", task="t", trigger=MINUTELY)
    mine.update("digest", **FIELDS)
    mine.rename("digest", "summary")

    undo_as_documented(mine)

    assert state(mine.get("summary")) == state(before)


def test_other_edits_cannot_be_restored(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.pause("n")
    mine.resume("n")
    mine.run_now("n")
    mine.rename("n", "m")
    mine.hold()
    mine.set_timezone("Asia/Seoul")
    before = everything(dynbeat)

    for change in mine.changes():
        assert not restoring.is_restorable(change)
        with pytest.raises(InvalidScheduleError) as caught:
            mine.restore(change.id)
        assert caught.value.field == "change_id"
    for given in (0, -1, True, "1", 2**63):
        with pytest.raises(InvalidScheduleError):
            mine.restore(given)
    with pytest.raises(ChangeNotFoundError, match="owner 'user:42'"):
        mine.restore(10**9)
    with pytest.raises(ChangeNotFoundError):
        dynbeat.schedules.restore(10**9)

    assert everything(dynbeat) == before


def test_the_limits_and_the_rules_are_checked_again(limited):
    free = limited().schedules.for_owner("user:42")
    free.create("n", task="t", trigger=MINUTELY)
    free.create("m", task="t", trigger=MINUTELY)
    free.update("m", task="u")
    free.delete("n")
    deletion, update = last(free), last(free, "update")

    for settings, error, match in (
        ({"max_schedules_per_owner": 1}, OwnerLimitError, "has 1 schedules"),
        ({"allowed_tasks": ["u"]}, InvalidScheduleError, "allowed_tasks"),
        ({"min_interval": 3600}, InvalidScheduleError, "min_interval"),
    ):
        mine = limited(**settings).schedules.for_owner("user:42")
        with pytest.raises(error, match=match):
            mine.restore(deletion)
    with pytest.raises(InvalidScheduleError, match="allowed_tasks"):
        limited(allowed_tasks=["u"]).schedules.for_owner("user:42").restore(update)
    assert free.restore(deletion).name == "n"


def test_a_schedule_of_the_name_is_not_replaced(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.delete("n")
    mine.create("n", task="new", trigger=MINUTELY)
    before = everything(dynbeat)

    with pytest.raises(ScheduleExistsError):
        mine.restore(last(mine))

    assert everything(dynbeat) == before


def test_the_schedule_of_an_update_must_exist_and_have_the_expected_version(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", description="x")
    update = last(mine, "update")
    with pytest.raises(StaleScheduleError):
        mine.restore(update, expected_version=1)
    execute(dynbeat, "DELETE FROM dynbeat_schedule")
    with pytest.raises(ScheduleNotFoundError):
        mine.restore(update)


def test_a_row_of_beat_schedule_is_not_restored(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", description="x")
    execute(dynbeat, "UPDATE dynbeat_schedule SET managed_by = 'config'")

    with pytest.raises(InvalidScheduleError, match="beat_schedule"):
        mine.restore(last(mine, "update"))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ("{}", InvalidScheduleError),
        ('{"task": "t"}', InvalidScheduleError),
        ('{"task": "t", "trigger": 7}', InvalidScheduleError),
        ('{"task": "t", "trigger": {"kind": "cron", "spec": "x"}}', InvalidTriggerError),
        ('{"task": 1, "trigger": {"kind": "every", "spec": "PT1M"}}', InvalidScheduleError),
        (
            '{"task": "t", "start_at": "x", "trigger": {"kind": "every", "spec": "PT1M"}}',
            InvalidScheduleError,
        ),
    ],
)
def test_damaged_values_of_the_audit_are_refused(dynbeat, mine, values, error):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.delete("n")
    execute(dynbeat, "UPDATE dynbeat_change SET old_values = :v WHERE action = 'delete'", v=values)

    with pytest.raises(error):
        mine.restore(last(mine))
    assert not mine.list().items


def test_too_many_later_edits_are_refused(mine, monkeypatch):
    monkeypatch.setattr(restoring, "MAX_LATER", 3)
    monkeypatch.setattr(restoring, "_PAGE", 2)
    mine.create("n", task="t", trigger=MINUTELY)
    mine.update("n", description="x")
    update = last(mine, "update")
    for _ in range(3):
        mine.run_now("n")
    assert mine.restore(update).description == ""
    mine.run_now("n")
    with pytest.raises(InvalidScheduleError, match="later edits"):
        mine.restore(update)


def test_an_edit_of_an_earlier_schedule_is_refused_also_if_the_audit_was_off(limited, clock):
    mine = limited().schedules.for_owner("user:42")
    unaudited = limited(audit=False).schedules.for_owner("user:42")
    mine.create("n", task="t", trigger=MINUTELY, kwargs={"old": 1})
    mine.update("n", kwargs={"old": 2})
    change = mine.changes("n")[0]
    clock.advance(1)
    unaudited.delete("n")
    unaudited.create("n", task="other", trigger=MINUTELY, kwargs={"new": 1})

    with pytest.raises(InvalidScheduleError, match="earlier schedule"):
        mine.restore(change.id)

    assert mine.get("n").kwargs == {"new": 1}


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_schedule_that_got_the_name_after_the_snapshot_is_not_changed(request, kind, clock):
    url = request.getfixturevalue(f"{kind}_url")
    engine = create_engine(url, isolation_level="REPEATABLE READ")
    with application(url, clock=clock) as dynbeat:
        dynbeat.context.prepare()
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY)
        mine.create("m", task="t", trigger=MINUTELY, description="of m")
        clock.advance(10)
        mine.update("n", description="of n")
        update = last(mine, "update")
        with Session(engine) as session:
            # The first read opens the snapshot.
            mine.list(session=session)
            mine.rename("n", "old")
            mine.rename("m", "n")
            before = everything(dynbeat)

            # PostgreSQL refuses to lock a row that is newer than the snapshot.
            with pytest.raises((InvalidScheduleError, OperationalError)):
                mine.restore(update, session=session)
            session.commit()

        assert everything(dynbeat) == before
    engine.dispose()
