"""The effect of an edit on the next fire time and on the runs that have not started."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import text

from celery_dynbeat import (
    ConflictError,
    Every,
    InvalidArgumentError,
    Once,
)
from tests.support.applications import MINUTELY, START, application
from tests.support.waiting import wait_until


def statuses(mine):
    return sorted(run.status for run in mine.runs())


@pytest.fixture
def made(mine):
    return mine.create("n", task="t", trigger=MINUTELY, queue="q", args=[1])


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


def test_an_edit_of_an_older_version_is_rejected(mine, made):
    mine.update("n", task="u", expected_version=made.version)

    with pytest.raises(ConflictError, match="another caller has changed it") as caught:
        mine.update("n", task="v", expected_version=made.version)

    assert caught.value.code == "stale"
    assert caught.value.params["expected_version"] == 1
    assert caught.value.params["version"] == 2
    assert mine.get("n").task == "u"


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
def test_a_delete_revokes_unstarted_runs_and_keeps_the_history(mine, clock, beat):
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    mine.run_now("n")

    mine.delete("n")

    assert statuses(mine) == ["revoked", "revoked"]
    assert {run.schedule_id for run in mine.runs("n")} == {None}
    assert not mine.list()


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
