"""add, update, list, show, pause, resume, run, delete, runs, next."""

import json
from datetime import timedelta

import pytest

from celery_dynbeat import Cron, Every, NotFoundError, Once, RRule
from tests.support.applications import MINUTELY, START, execute, instants
from tests.support.suites import each_database

RUN_ID = "01a203ec-f449-7a5a-aa02-b03ca0cb18fc"
OWNER = ("--owner", "user:42")
TASK = ("--task", "t")


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("0 9 * * mon-fri", Cron("0 9 * * mon-fri", timezone="UTC")),
        ("CRON_TZ=Asia/Seoul 0 9 * * *", Cron("0 9 * * *", timezone="Asia/Seoul")),
        ("5m", Every(300)),
        ("PT90S", Every(90)),
        ("in 2h", Once(START + timedelta(hours=2))),
        ("2026-11-22T09:00", Once(START + timedelta(days=1))),
        ("TZ=Asia/Seoul 2026-11-22T18:00", Once(START + timedelta(days=1))),
        ("FREQ=WEEKLY;BYDAY=MO", RRule("FREQ=WEEKLY;BYDAY=MO", timezone="UTC")),
        ("@daily", Cron("@daily", timezone="UTC")),
    ],
)
def test_add_creates_a_schedule_with_any_trigger(shown, mine, text, trigger):
    (line,) = shown("add", "n", *TASK, *OWNER, "--trigger", text)

    assert line.startswith("added schedule 'n' of owner 'user:42'; next run 2026-")
    stored = mine.get("n").trigger
    assert (stored.kind, stored.spec, stored.timezone) == (
        trigger.kind,
        trigger.spec,
        trigger.timezone,
    )


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("add", "n", *TASK), 2, "add --trigger, such as --trigger '0 9 * * mon-fri'"),
        (("add", "n", *TASK, "--trigger", "99 * * * *"), 2, "value for --trigger: minute '99'"),
        (("add", "n", *TASK, "--trigger", "TZ=Asia/Seoul 5m"), 2, "leave TZ=Asia/Seoul out"),
        (("add", "n", *TASK, "--trigger", "TZ=X/Y 0 9 * * *"), 2, "unknown time zone 'X/Y'"),
        (("add", "n", *TASK, "--trigger", "2020-01-01T00:00Z"), 1, "would never fire"),
        (("add", "n", "--trigger", "5s"), 2, "Missing option '--task'"),
        (("add", "there", *TASK, "--trigger", "5s"), 1, "already has a schedule named 'there'"),
        (("update", "there"), 2, "give at least one option that changes a field"),
        (("update", "there", "--window", "5", "--clear", "window"), 2, "cannot be combined"),
        (("update", "nope", "--window", "5"), 1, "has no schedule named 'nope'"),
        (("show", "nope"), 1, "`dynbeat list` shows existing schedules"),
        (("show", "there", *OWNER), 1, "owner 'user:42' has no schedule named 'there'"),
        (("delete",), 2, "either the NAME of a schedule, --all-of-owner or a filter: --state"),
        (("delete", "there", "--all-of-owner"), 2, "either the NAME of a schedule"),
        (("delete", "there", "--tag", "x"), 2, "either the NAME of a schedule"),
        (("delete", "there", "--all-owners"), 2, "--all-owners needs a filter: --state"),
        (("pause",), 2, "give either the NAME of a schedule, --all or a filter: --state, --tag"),
        (("resume", "there", "--all"), 2, "give either the NAME of a schedule, --all or a filter"),
        (("resume", "--all", "--tag", "x"), 2, "give either the NAME of a schedule, --all or a"),
        (("pause", "--tag", ""), 1, "must not be empty"),
        (("pause", "there", "--all-owners"), 2, "--all-owners needs --all or a filter: --state"),
        (("pause", "--tag", "x"), 2, "this needs --yes"),
        (("delete", "there"), 2, "this needs --yes"),
        (("delete", "there", "--erase-history"), 2, "--erase-history needs --all-of-owner"),
        (("delete", "--all-of-owner", "--yes"), 2, "--all-of-owner needs --owner"),
        (("list", "--all-owners", *OWNER), 2, "--owner and --all-owners cannot be combined"),
        (("list", "--after", "x"), 1, "not a cursor"),
        (("list", "--limit", "0"), 2, "0 is not in the range 1<=x<=1000"),
        (("runs", "n", "--all-owners"), 2, "NAME and --all-owners cannot be combined"),
        (("runs", "--status", "bad"), 2, "'bad' is not one of 'pending'"),
        (("runs", RUN_ID), 1, f"there is no run {RUN_ID}"),
        (("skip", "there", "--next", "--undo"), 2, "--undo needs FIRE_TIME"),
        (("show", "nope"), 1, "has no schedule named 'nope'"),
        (("lst",), 2, "Did you mean one of these?\n    list"),
        (("list", "--onwer", "x"), 2, "Did you mean"),
        (("list", "--owner", "x" * 300), 1, "must have at most 255 characters"),
    ],
)
def test_a_refusal_has_one_clear_error_and_a_status(dynbeat, refused, arguments, status, words):
    dynbeat.schedules.for_owner("").create("there", task="t", trigger=MINUTELY)

    exit_status, stderr = refused(*arguments)

    assert (exit_status, words in stderr) == (status, True), stderr
    if status == 1:
        assert len(stderr.splitlines()) == 1


def test_an_error_with_json_is_an_object_on_stdout(command):
    result = command("show", "nope", "--json")

    assert result.exit_code == 1
    error = json.loads(result.stdout)
    assert error["ok"] is False
    assert "has no schedule named 'nope'" in error["error"]
    assert not result.stderr


def test_update_changes_the_given_fields_only(shown, mine):
    mine.create("n", task="t", trigger=MINUTELY, window=5, queue="q", tags=["a"], max_runs=3)

    shown("update", "n", *OWNER, "--trigger", "0 10 * * *", "--clear", "window", "--clear", "tags")

    info = mine.get("n")
    assert info.trigger == Cron("0 10 * * *", timezone="UTC")
    assert (info.window, info.tags, info.options, info.max_runs) == (None, [], {"queue": "q"}, 3)


def test_show_has_the_next_fire_times_and_the_last_runs(shown, as_json, mine, beat, clock):
    mine.create("n", task="t", trigger=MINUTELY, description="d\x1b[31m")
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    lines = dict(line.split("\t", 1) for line in shown("show", "n", *OWNER))
    (shown_as_json,) = as_json("show", "n", *OWNER)

    assert lines["description"] == "d\\x1b[31m"
    assert lines["meaning"] == "Every minute"
    assert lines["state"] == "active"
    assert shown_as_json["upcoming"] == [
        each.to_dict() for each in mine.upcoming("n", with_skipped=True)
    ]
    assert len(shown_as_json["runs"]) == 1
    assert shown_as_json["runs"] == [run.to_dict() for run in mine.runs("n", limit=5)]


def test_show_reads_a_schedule_with_a_damaged_trigger(dynbeat, shown, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'x\x07y'")

    lines = dict(line.split("\t", 1) for line in shown("show", "n", *OWNER))

    assert lines["state"] == "quarantined"
    assert "trigger" not in lines
    assert "\x07" not in lines["error"]


def test_delete_asks_before_it_deletes(refused, shown, mine, monkeypatch):
    mine.create("n", task="t", trigger=MINUTELY)
    assert refused("delete", "n", *OWNER)[0] == 2
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation.Invocation.can_ask", True)

    assert refused("delete", "n", *OWNER, input="n\n")[0] == 1
    assert mine.get("n")

    shown("delete", "n", *OWNER, input="y\n")
    with pytest.raises(NotFoundError):
        mine.get("n")


def test_delete_tag_counts_asks_and_deletes_the_tagged_schedules(
    shown, refused, dynbeat, mine, monkeypatch
):
    for name in ("a", "b", "c"):
        mine.create(name, task="t", trigger=Every(60), tags=["import:x"] if name != "c" else [])
    other = dynbeat.schedules.for_owner("other")
    other.create("d", task="t", trigger=Every(60), tags=["import:x"])
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation.Invocation.can_ask", True)
    everything = ("delete", "--tag", "import:x", "--all-owners")

    status, output = refused(*everything, input="n\n")
    assert (status, "Delete 3 schedules with the tag 'import:x' of all owners?" in output) == (1, 1)
    assert shown("delete", "--tag", "import:x", *OWNER, "--yes") == [
        "deleted 2 schedules with the tag 'import:x' of owner 'user:42'"
    ]
    assert shown(*everything, "--yes")[-1].startswith("deleted 1 schedule with the tag")
    assert [each.name for each in dynbeat.schedules.list()] == ["c"]


@pytest.fixture
def tagged(dynbeat):
    """Create schedules a, b and c of two owners; a and b have the tag x."""
    dynbeat.schedules.create_many(
        {"owner": owner, "name": name, "task": "t", "trigger": MINUTELY, "tags": tags}
        for owner in ("user:42", "user:7")
        for name, tags in (("a", ["x"]), ("b", ["x"]), ("c", []))
    )


@pytest.mark.usefixtures("tagged")
def test_pause_and_resume_count_ask_and_edit_all_that_match(
    shown, refused, dynbeat, mine, monkeypatch
):
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation.Invocation.can_ask", True)

    status, output = refused("pause", "--tag", "x", "--all-owners", input="n\n")
    assert (status, "Pause 4 schedules with the tag 'x' of all owners?" in output) == (1, 1)
    shown("pause", "--tag", "x", "--all-owners", "--reason", "why", input="y\n")
    assert [each.paused_reason for each in dynbeat.schedules.list(state="paused")] == ["why"] * 4
    assert shown("pause", "--all", *OWNER, "--yes") == [
        "paused 1 schedule of owner 'user:42'; 2 unchanged"
    ]
    assert shown("resume", "--state", "paused", "--name-prefix", "a", *OWNER, "--yes") == [
        "resumed 1 schedule with the state 'paused', the prefix 'a' of owner 'user:42'"
    ]
    assert [each.name for each in mine.list(state="active")] == ["a"]
    assert shown("resume", "--task", "other", *OWNER) == [
        "nothing to resume: 0 schedules with the task 'other' of owner 'user:42'"
    ]


@pytest.mark.usefixtures("tagged")
def test_a_schedule_that_fails_is_named_and_the_others_are_edited(command, dynbeat, mine):
    dynbeat.schedules.pause_many(tag="x")
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET trigger_spec = 'x' WHERE name = 'a' AND owner = 'user:42'",
    )

    found = command("resume", "--tag", "x", *OWNER, "--yes")
    as_object = command("resume", "--tag", "x", *OWNER, "--yes", "--json")

    assert (found.exit_code, as_object.exit_code) == (1, 1)
    assert found.stdout.startswith("resumed 1 schedule with the tag 'x' of owner 'user:42'; 1 fail")
    assert "schedule 'a' of owner 'user:42': " in found.stderr
    result = json.loads(as_object.stdout)
    assert (result["ok"], result["unchanged"], result["failures"][0]["name"]) == (False, 1, "a")
    assert mine.get("b").enabled


@pytest.mark.usefixtures("tagged")
def test_a_schedule_that_matches_after_the_count_stops_the_edit(refused, mine, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation.Invocation.can_ask", True)

    def answer(*_question, **_options):
        mine.update("c", tags=["x"])
        return True

    monkeypatch.setattr("click.confirm", answer)

    status, output = refused("delete", "--tag", "x", *OWNER)

    assert (status, "is no longer 2; nothing was changed" in output) == (1, 1)
    assert mine.count().count == 3


def test_erase_history_deletes_the_runs_of_the_owner(shown, refused, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.run_now("n")
    everything = ("delete", "--all-of-owner", *OWNER, "--erase-history")

    assert refused(*everything)[0] == 2
    shown(*everything, "--yes", "--actor", "alice", "--reason", "account closed")

    assert list(mine.runs()) == []
    (change,) = mine.changes()
    assert (change.action, change.actor, change.reason) == ("erase", "alice", "account closed")


@each_database
def test_runs_filters_the_history(shown, as_json, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    run = mine.run_now("n")

    (line,) = shown("runs", *OWNER, "--status", "pending", "--since", "1h")
    assert line.split("\t")[:5] == ["user:42", "n", "2026-11-21T09:00:00Z", "pending", run.id]
    assert shown("runs", *OWNER, "--status", "failed", "--status", "lost") == []
    assert shown("runs", *OWNER, "--origin", "schedule") == []
    assert as_json("runs", "--all-owners") == [run.to_dict()]
    assert dict(line.split("\t", 1) for line in shown("runs", *OWNER, run.id))["id"]


@each_database
def test_status_forecasts_the_runs_of_each_minute_of_the_next_hour(
    shown, as_json, refused, mine, dynbeat
):
    for number in range(3):
        mine.create(f"n{number}", task="t", trigger=Cron("*/20 * * * *"))
    other = dynbeat.schedules.for_owner("other")
    other.create("n", task="t", trigger=Cron("40 * * * *"), options={"queue": "low"})

    assert shown("status", *OWNER, "--forecast", "minute") == [
        "2026-11-21T09:20:00Z\tcelery\t3",
        "2026-11-21T09:40:00Z\tcelery\t3",
    ]
    assert shown("status", "--forecast", "hour", "--until", "2h", "--queue", "low") == [
        "2026-11-21T09:00:00Z\tlow\t1",
        "2026-11-21T10:00:00Z\tlow\t1",
    ]
    (found,) = as_json("status", "--forecast", "minute")
    assert [each["runs"] for each in found["rows"]] == [3, 3, 1]
    assert (found["is_at_least"], found["total"], found["busiest_runs"]) == (False, 7, 4)
    assert refused("status", *OWNER)[0] == refused("status", "--queue", "low")[0] == 2
    assert refused("status", "--forecast", "hour", "--max-lag", "1")[0] == 2
    assert refused("status", "--forecast", "hour", "--alerts", "open")[0] == 2
    assert refused("status", "--alerts", "test", *OWNER)[0] == 2


def test_the_output_of_a_list_escapes_what_end_users_wrote(dynbeat, shown, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET name = :name", name="a\tb\x1b]0;x\x07\u202e")

    (line,) = shown("list", *OWNER)

    assert line.split("\t")[1] == "a\\tb\\x1b]0;x\\x07\\u202e"


def test_a_dry_run_of_prune_counts_and_deletes_nothing(shown, as_json, mine, clock):
    mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(2):
        mine.cancel_run(mine.run_now("n").id)
    clock.advance(timedelta(days=100))

    (found,) = as_json("prune", "--dry-run")
    (line,) = shown("prune", "--dry-run", "--older-than", "1")

    assert (found["dry_run"], found["deleted"], found["changes_deleted"]) == (True, 2, 5)
    assert line.startswith("runs older than 1 days would be deleted: 2;")
    assert len(mine.runs()) == 2
    assert (as_json("prune")[0]["deleted"], len(mine.runs())) == (2, 0)


def test_times_are_in_the_zone_of_the_owner(shown, upcoming, mine):
    mine.set_timezone("Asia/Seoul")

    (text,) = shown("add", "n", *TASK, *OWNER, "--trigger", "0 9 * * *")
    assert text.endswith("2026-11-22 09:00:00+09:00 (2026-11-22 00:00:00 UTC), in 15 h")
    assert upcoming("n", *OWNER, "--count", "1") == [
        ("upcoming", "2026-11-22T00:00:00Z", "2026-11-22T09:00:00+09:00", "")
    ]
    shown("skip", "n", "2026-11-22T09:00", *OWNER)
    assert instants(mine.upcoming("n", count=1))[0].isoformat() == "2026-11-23T00:00:00+00:00"


def test_skip_and_restore_a_fire_time(shown, upcoming, as_json, refused, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    (text,) = shown("skip", "n", "--next", *OWNER, "--actor", "alice", "--reason", "holiday")
    assert text.startswith("schedule 'n' of owner 'user:42': skipped 2026-11-21 09:01:00 UTC, in")
    assert "; next run 2026-11-21 09:02:00 UTC" in text
    assert [(row[0], row[1], row[3]) for row in upcoming("n", *OWNER, "--count", "2")] == [
        ("upcoming", "2026-11-21T09:02:00Z", ""),
        ("skipped", "2026-11-21T09:01:00Z", "skipped by alice: holiday"),
    ]
    assert as_json("show", "n", *OWNER, "--count", "1")[0]["upcoming"][0]["is_skipped"]
    status, error = refused("skip", "n", "2026-11-21T09:01:30Z", *OWNER)
    assert (status, "the nearest are" in error) == (1, True)

    shown("skip", "n", "2026-11-21T09:01Z", "--undo", *OWNER)
    assert mine.get("n").next_run_at.minute == 1
    assert refused("skip", "n", "2026-11-21T09:01Z", "--undo", *OWNER)[0] == 1
    assert refused("skip", "n", *OWNER)[0] == 2


@each_database
def test_list_filters_by_state_and_prefix_and_counts(shown, as_json, mine):
    mine.create("report", task="t", trigger=MINUTELY)
    mine.create("sync", task="t", trigger=MINUTELY, enabled=False)

    assert [line.split("\t")[1] for line in shown("list", *OWNER, "--state", "paused")] == ["sync"]
    assert [line.split("\t")[1] for line in shown("list", *OWNER, "--name-prefix", "rep")] == [
        "report"
    ]
    assert len(shown("list", "--all-owners", "--order", "next_run_at")) == 1
    assert shown("list", *OWNER, "--count") == ["2"]
    assert as_json("list", *OWNER, "--state", "failing", "--count") == [{"count": 0, "exact": True}]


def test_rename_gives_another_name(shown, refused, mine):
    mine.create("a", task="t", trigger=MINUTELY)
    mine.create("b", task="t", trigger=MINUTELY)

    (line,) = shown("update", "a", "--rename", "c", *OWNER, "--reason", "why")

    assert line.startswith("renamed schedule 'a' of owner 'user:42' to 'c'; next run 2026-")
    assert [each.name for each in mine.list()] == ["b", "c"]
    assert mine.changes("c")[0].reason == "why"
    assert "already has a schedule named 'b'" in refused("update", "c", "--rename", "b", *OWNER)[1]
    assert "name: a -> c" in shown("changes", "c", *OWNER)[0]
