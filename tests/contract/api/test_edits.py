"""The effect of an edit on the next fire time and on the runs that have not started."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import text

from celery_dynbeat import (
    ConflictError,
    Every,
    InvalidArgumentError,
    NotFoundError,
    Once,
)
from tests.support.applications import MINUTELY, START, application
from tests.support.waiting import wait_until


def statuses(mine):
    return sorted(run.status for run in mine.runs())


@pytest.fixture
def made(mine):
    return mine.create("n", task="t", trigger=MINUTELY, queue="q", args=[1])


def test_a_new_trigger_sets_the_next_fire_time_from_now(mine, clock, made):
    clock.advance(timedelta(seconds=90))

    edited = mine.update("n", trigger=Every(300))

    assert edited.next_run_at == clock.now() + timedelta(seconds=300)
    assert edited.version == made.version + 1


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("args", [1], [True]),
        ("args", [1.0], [1]),
        ("kwargs", {"a": {"b": False}}, {"a": {"b": 0}}),
        ("options", {"headers": {"a": 1}}, {"headers": {"a": True}}),
    ],
)
def test_values_that_are_equal_in_python_but_not_in_json_are_an_edit(mine, field, before, after):
    mine.create("a", task="t", trigger=MINUTELY, **{field: before})

    edited = mine.update("a", **{field: after})

    assert repr(getattr(edited, field)) == repr(getattr(mine.get("a"), field)) == repr(after)
    assert repr(mine.changes("a")[0].after[field]) == repr(after)
    assert mine.update("a", **{field: after}).version == edited.version


@pytest.mark.parametrize(
    "change",
    [
        {"task": "u"},
        {"args": [2]},
        {"kwargs": {"a": 1}},
        {"queue": "other"},
        {"description": "new"},
        {"tags": ["x"]},
        {"expires_after": 5},
        {"catch_up": "all"},
    ],
)
def test_other_edits_do_not_move_the_next_run(mine, clock, made, change):
    clock.advance(timedelta(seconds=90))

    edited = mine.update("n", **change)

    assert edited.next_run_at == made.next_run_at
    assert edited.version == made.version + 1


@pytest.mark.parametrize("call", ["update", "upsert"])
def test_several_small_edits_cannot_exceed_the_payload_limit(limited, call):
    mine = limited(max_payload_bytes=1000).schedules.for_owner("user:42")
    mine.create("n", task="t", trigger=MINUTELY, args=["a" * 600])
    whole = {"task": "t", "trigger": MINUTELY} if call == "upsert" else {}

    with pytest.raises(InvalidArgumentError, match="dynbeat_max_payload_bytes allows 1000"):
        getattr(mine, call)("n", kwargs={"a": "x" * 600}, **whole)

    assert getattr(mine, call)("n", args=[], kwargs={"a": "x" * 600}, **whole).args == []


def test_an_edit_with_the_same_values_changes_nothing(mine, clock, made):
    clock.advance(timedelta(seconds=30))

    edited = mine.update("n", trigger=MINUTELY, task="t", queue="q", args=(1,))

    assert edited == made
    assert mine.get("n") == made


def test_a_queue_changes_only_its_entry_of_the_options(mine):
    mine.create("n", task="t", trigger=MINUTELY, queue="a", options={"time_limit": 3})

    assert mine.update("n", queue="b").options == {"queue": "b", "time_limit": 3}


def test_an_edit_of_an_older_version_is_rejected(mine, made):
    mine.update("n", task="u", expected_version=made.version)

    with pytest.raises(ConflictError, match="another caller has changed it") as caught:
        mine.update("n", task="v", expected_version=made.version)

    assert caught.value.code == "stale"
    assert caught.value.params["expected_version"] == 1
    assert caught.value.params["version"] == 2
    assert mine.get("n").task == "u"


def test_an_edit_cannot_set_end_at_to_the_past(mine, clock):
    made = mine.create("n", task="t", trigger=MINUTELY, end_at=START + timedelta(hours=1))
    clock.move_to(START + timedelta(minutes=30))
    for past in (START + timedelta(minutes=30), START + timedelta(minutes=1)):
        with pytest.raises(InvalidArgumentError, match="lies in the past") as caught:
            mine.update("n", end_at=past)
        assert (caught.value.field, caught.value.code) == ("end_at", "past")
    # An end that has passed since it was set does not prevent another edit.
    clock.move_to(made.end_at + timedelta(hours=1))
    assert mine.update("n", end_at=made.end_at, description="d").description == "d"


@pytest.mark.usefixtures("made")
def test_an_edit_cannot_set_end_at_before_start_at(mine):
    mine.update("n", start_at=START + timedelta(days=2))

    with pytest.raises(InvalidArgumentError) as caught:
        mine.update("n", end_at=START + timedelta(days=1))

    assert caught.value.field == "end_at"


@pytest.mark.parametrize("call", ["update", "pause", "resume", "delete", "get", "run_now"])
def test_a_missing_schedule_raises_not_found(mine, call):
    with pytest.raises(NotFoundError) as caught:
        getattr(mine, call)("nothing")

    assert (caught.value.owner, caught.value.name) == ("user:42", "nothing")


@pytest.mark.parametrize("call", ["pause", "resume", "delete"])
def test_each_change_accepts_an_expected_version(mine, made, call):
    with pytest.raises(ConflictError, match="another caller has changed it"):
        getattr(mine, call)("n", expected_version=9)

    assert mine.get("n") == made


def test_upsert_moves_a_one_off_and_revokes_its_run_that_has_not_started(mine, clock, beat):
    mine.upsert("cool-down", task="t", trigger=Once(START + timedelta(minutes=5)))
    clock.advance(timedelta(minutes=5))
    beat.run_until_idle()

    moved = mine.upsert("cool-down", task="t", trigger=Once(START + timedelta(minutes=9)))

    assert moved.next_run_at == START + timedelta(minutes=9)
    assert statuses(mine) == ["revoked"]
    clock.move_to(START + timedelta(minutes=9))
    beat.run_until_idle()
    assert statuses(mine) == ["revoked", "sent"]


def test_upsert_keeps_the_fields_that_are_not_given(mine, made):
    edited = mine.upsert("n", task="u", trigger=MINUTELY)

    assert (edited.task, edited.args, edited.options) == ("u", [1], {"queue": "q"})
    assert edited.next_run_at == made.next_run_at


@pytest.mark.usefixtures("made")
def test_a_pause_revokes_unstarted_runs_except_manual_runs(mine, clock, beat, sent):
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    manual = mine.run_now("n")

    paused = mine.pause("n", reason="on holiday")

    assert (paused.enabled, paused.paused_reason, paused.next_run_at) == (
        False,
        "on holiday",
        None,
    )
    assert {run.origin: run.status for run in mine.runs()} == {
        "schedule": "revoked",
        "manual": "pending",
    }
    clock.advance(timedelta(hours=1))
    beat.run_until_idle()
    assert sent[-1].run_id == manual.id
    assert len(sent) == 2


@pytest.mark.usefixtures("made")
def test_a_resume_sets_the_next_fire_time_from_now_and_sends_no_missed_run(mine, clock, beat, sent):
    mine.pause("n")
    clock.advance(timedelta(hours=1, seconds=5))

    resumed = mine.resume("n")
    beat.run_until_idle()

    assert resumed.next_run_at == START + timedelta(hours=1, minutes=1)
    assert (resumed.enabled, resumed.paused_reason, sent) == (True, None, [])


def test_a_one_off_whose_instant_passed_during_a_pause_is_finished(mine, clock):
    mine.create("once", task="t", trigger=Once(START + timedelta(minutes=1)))
    mine.pause("once")
    clock.advance(timedelta(minutes=2))

    resumed = mine.resume("once")

    assert (resumed.next_run_at, resumed.finished_at) == (None, clock.now())


@pytest.mark.usefixtures("made")
def test_an_edit_of_a_paused_schedule_does_not_resume_it(mine):
    mine.pause("n")

    assert mine.update("n", trigger=Every(5)).next_run_at is None
    assert mine.resume("n").next_run_at == START + timedelta(seconds=5)


@pytest.mark.usefixtures("made")
def test_a_delete_revokes_unstarted_runs_and_keeps_the_history(mine, clock, beat):
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    mine.run_now("n")

    mine.delete("n")

    assert statuses(mine) == ["revoked", "revoked"]
    assert {run.schedule_id for run in mine.runs("n")} == {None}
    assert not mine.list()


def test_run_now_does_not_change_the_schedule_and_two_calls_create_two_runs(mine, beat, sent, made):
    first, second = mine.run_now("n"), mine.run_now("n")

    beat.run_until_idle()

    assert sorted(run.run_id for run in sent) == sorted([first.id, second.id])
    assert (first.origin, first.status, first.fire_at) == ("manual", "pending", START)
    assert second.fire_at == START + timedelta(microseconds=1)
    assert mine.get("n") == made


def test_none_removes_a_queue(mine):
    mine.create("n", task="t", trigger=MINUTELY, queue="mail", priority=3)

    changed = mine.update("n", queue=None)

    assert changed.options == {"priority": 3}


@pytest.mark.parametrize("reason", [5, "x" * 5_000])
def test_an_invalid_reason_is_rejected_with_its_field(mine, reason):
    mine.create("n", task="t", trigger=MINUTELY)

    with pytest.raises(InvalidArgumentError) as caught:
        mine.pause("n", reason=reason)

    assert caught.value.field == "reason"
    assert mine.get("n").enabled


def test_a_time_that_has_passed_when_it_is_edited_is_rejected(mine, clock):
    mine.create("digest", task="t", trigger=MINUTELY)
    clock.advance(timedelta(hours=1))

    with pytest.raises(InvalidArgumentError, match="never fire") as caught:
        mine.update("digest", trigger=Once(START + timedelta(minutes=1)))

    assert f"it is {clock.now():%Y-%m-%d %H:%M} UTC now" in str(caught.value)


EDITS = {
    "update": lambda mine: mine.update("n", trigger=Every(30)),
    "upsert": lambda mine: mine.upsert("n", task="u", trigger=Every(30)),
    "pause": lambda mine: mine.pause("n"),
    "resume": lambda mine: mine.resume("paused"),
    "delete": lambda mine: mine.delete("n"),
    "skip": lambda mine: mine.skip("n", START + timedelta(hours=3)),
    "unskip": lambda mine: mine.unskip("skipped", START + timedelta(hours=3)),
    "run_now": lambda mine: mine.run_now("n"),
    "backfill": lambda mine: mine.backfill(
        "n", since=START, until=START + timedelta(hours=1) + timedelta(seconds=1)
    ),
    "set_timezone": lambda mine: mine.set_timezone("Asia/Seoul"),
    "hold": lambda mine: mine.hold(reason="r", until=START + timedelta(hours=9)),
    "release": lambda mine: mine.release(),
    "cancel_run": lambda mine: mine.cancel_run(mine.runs(origin="manual")[0].id),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_reads_the_clock_after_it_holds_the_lock(postgresql_url, clock, name):
    # With an earlier instant, a fire time of the old trigger before the commit could be planned.
    with application(postgresql_url, clock=clock) as dynbeat, ThreadPoolExecutor(1) as threads:
        mine = dynbeat.schedules.for_owner("user:42")
        for each in ("n", "paused", "skipped"):
            mine.create(each, task="t", trigger=Every(60))
        mine.create("zoned", task="t", trigger="0 9 * * *")
        mine.pause("paused")
        mine.skip("skipped", START + timedelta(hours=3))
        if name == "cancel_run":
            mine.run_now("n")
        if name in {"hold", "release"}:
            mine.hold(reason="before")
        # pg_locks has the waits of every database of the server.
        waiting = text(
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE NOT granted AND datname = current_database()"
        )
        with dynbeat.context.database.engine.connect() as other:
            for table in ("schedule", "run", "hold"):
                other.execute(text(f"SELECT * FROM dynbeat_{table} FOR UPDATE"))
            edit = threads.submit(EDITS[name], mine)
            wait_until(lambda: other.execute(waiting).scalar_one(), within=10)
            clock.advance(timedelta(hours=2))
            other.rollback()
            edit.result(10)

        latest = mine.changes(limit=1)[0]
        assert latest.changed_at == clock.now()
