"""add, update, list, show, pause, resume, run, delete, runs, next."""

import json
from datetime import date, timedelta

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat import Cron, Every, NotFoundError, Once, Retry, RRule
from celery_dynbeat.api import forecast
from celery_dynbeat.cli import dynbeat as group
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


def test_add_sets_every_field(as_json, dynbeat):
    options = {
        "args": '[1, "a"]',
        "kwargs": '{"key": 1}',
        "queue": "mail",
        "priority": "5",
        "options": '{"shadow": "s"}',
        "start-at": "1h",
        "end-at": "2027-01-01T00:00Z",
        "max-runs": "7",
        "catch-up": "all",
        "catch-up-window": "1h",
        "overlap": "skip",
        "max-run-time": "10m",
        "window": "0",
        "expires-after": "90",
        "on-lost": "rerun",
        "pause-after-failures": "3",
        "retry": "max_retries=2, backoff=5m",
        "description": "d",
        "tag": "a",
    }
    given = [word for key, value in options.items() for word in (f"--{key}", value)]

    (added,) = as_json("add", "n", *TASK, "--trigger", "60s", *given, "--tag", "b", "--paused")

    info = dynbeat.schedules.for_owner("").get("n")
    assert added == info.to_dict()
    assert (info.args, info.kwargs) == ([1, "a"], {"key": 1})
    assert info.options == {"queue": "mail", "priority": 5, "shadow": "s"}
    assert info.start_at == START + timedelta(hours=1)
    assert info.end_at.isoformat() == "2027-01-01T00:00:00+00:00"
    assert (info.max_runs, info.catch_up, info.catch_up_window) == (7, "all", timedelta(hours=1))
    assert (info.overlap, info.max_run_time) == ("skip", timedelta(minutes=10))
    assert (info.window, info.expires_after) == (timedelta(0), timedelta(seconds=90))
    assert (info.on_lost, info.pause_after_failures) == ("rerun", 3)
    assert info.retry == Retry(max_retries=2, backoff=300)
    assert (info.description, list(info.tags), info.enabled) == ("d", ["a", "b"], False)


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
        (("update", "there", "--window", "5", "--expected-version", "9"), 1, "is at version 1"),
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


def test_a_new_trigger_follows_the_owner_unless_it_names_a_zone(shown, mine):
    mine.create("n", task="t", trigger=Cron("0 9 * * *", timezone="Asia/Seoul"))
    mine.set_timezone("America/Lima")

    shown("update", "n", *OWNER, "--trigger", "0 12 * * *")
    assert mine.get("n").inherits_timezone
    assert mine.get("n").trigger == Cron("0 12 * * *", timezone="America/Lima")

    shown("update", "n", *OWNER, "--trigger", "CRON_TZ=Europe/Berlin 0 11 * * *")
    assert mine.get("n").trigger == Cron("0 11 * * *", timezone="Europe/Berlin")


def test_update_takes_the_text_that_show_prints(shown, mine):
    rule = RRule("DTSTART;TZID=Asia/Seoul:20260105T090000\nRRULE:FREQ=DAILY")
    mine.create("n", task="t", trigger=rule.excluding(date(2026, 12, 25)))
    (line,) = [each for each in shown("show", "n", *OWNER) if each.startswith("trigger")]

    shown("update", "n", *OWNER, "--trigger", line.partition("\t")[2])

    assert mine.get("n").trigger == rule.excluding(date(2026, 12, 25))


def test_a_list_has_one_line_per_schedule_with_tabs(shown, dynbeat):
    for owner in ("", "user:42"):
        mine = dynbeat.schedules.for_owner(owner)
        mine.create("n", task="t", trigger=MINUTELY, tags=["a", "b"])
        mine.create("p", task="u", trigger=MINUTELY, enabled=False)

    assert shown("list", *OWNER) == [
        'user:42\tn\tt\tPT1M\tactive\t2026-11-21T09:01:00Z\t\t["a", "b"]\t',
        "user:42\tp\tu\tPT1M\tpaused\t\t\t\t",
    ]
    assert [line.split("\t")[:2] for line in shown("list", "--all-owners")] == [
        ["", "n"],
        ["", "p"],
        ["user:42", "n"],
        ["user:42", "p"],
    ]
    assert [line.split("\t")[1] for line in shown("list", "--task", "u")] == ["p"]
    assert [line.split("\t")[1] for line in shown("list", "--tag", "a")] == ["n"]


def test_a_list_is_read_page_by_page(command, shown, mine):
    for number in range(5):
        mine.create(f"n{number}", task="t", trigger=MINUTELY)

    first = command("list", *OWNER, "--limit", "2")
    cursor = first.stderr.split()[-1]
    second = shown("list", *OWNER, "--limit", "2", "--after", cursor)
    every = shown("list", *OWNER, "--limit", "2", "--all", "--json")

    assert len(first.stdout.splitlines()) == 2
    assert [line.split("\t")[1] for line in second] == ["n2", "n3"]
    assert [json.loads(line)["name"] for line in every] == [f"n{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("list --state paused", True),
        ("runs", True),
        ("changes --action hold", True),
        ("runs n", False),
        ("list --owner user:7", False),
        ("runs --all-owners", False),
    ],
)
def test_a_person_who_lists_nothing_learns_of_other_owners(
    command, dynbeat, monkeypatch, line, is_named
):
    dynbeat.schedules.for_owner("").create("n", task="t", trigger=MINUTELY)
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation.Invocation.on_terminal", True)

    result = command(*line.split())

    assert result.stderr.startswith("none\n")
    assert ("--all-owners lists all" in result.stderr) is is_named


def test_a_table_says_that_a_schedule_whose_next_run_has_passed_is_due(
    command, shown, mine, clock, monkeypatch
):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(timedelta(seconds=60))
    assert "2026-11-21T09:01:00Z" in shown("list", *OWNER)[0]
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation.Invocation.on_terminal", True)

    for line in (("list",), ("list", "--state", "active")):
        assert "due now" in command(*line, *OWNER).stdout
    mine.create("later", task="t", trigger=MINUTELY)
    assert "2026-11-21 09:02:00" in command("list", *OWNER).stdout


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


def test_show_names_the_error_of_damaged_quiet_hours(shown, dynbeat, mine):
    mine.set_timezone("UTC")
    mine.create("n", task="t", trigger=MINUTELY)
    damaged = "UPDATE dynbeat_owner SET quiet_hours = :value"
    execute(dynbeat, damaged, value='{"windows": "x"}')

    lines = dict(line.split("\t", 1) for line in shown("show", "n", *OWNER))

    assert lines["task"] == "t"
    assert lines["quiet_hours"].endswith("is not what set_quiet_hours() writes; set it again")


def test_pause_until_an_instant(shown, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    (text,) = shown("pause", "n", *OWNER, "--until", "2h")

    assert text.startswith("paused schedule 'n' of owner 'user:42' until 2026-11-21 11:00")
    assert mine.get("n").paused_until == START + timedelta(hours=2)
    assert any(
        "paused_until" in line or "paused until" in line for line in shown("show", "n", *OWNER)
    )


def test_pause_resume_and_run(shown, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    assert shown("pause", "n", *OWNER, "--reason", "why") == [
        "paused schedule 'n' of owner 'user:42'"
    ]
    assert mine.get("n").paused_reason == "why"
    (text,) = shown("run", "n", *OWNER)
    assert text.startswith(f"recorded run {mine.runs('n')[0].id} ")
    (text,) = shown("resume", "n", *OWNER)
    assert text.endswith("; next run 2026-11-21 09:01:00 UTC, in 60 s")
    assert mine.get("n").enabled


def test_delete_asks_before_it_deletes(refused, shown, mine, monkeypatch):
    mine.create("n", task="t", trigger=MINUTELY)
    assert refused("delete", "n", *OWNER)[0] == 2
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation.Invocation.can_ask", True)

    assert refused("delete", "n", *OWNER, input="n\n")[0] == 1
    assert mine.get("n")

    shown("delete", "n", *OWNER, input="y\n")
    with pytest.raises(NotFoundError):
        mine.get("n")


def test_delete_all_of_owner_leaves_other_owners(shown, dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    dynbeat.schedules.for_owner("user:7").create("n", task="t", trigger=MINUTELY)

    assert shown("delete", "--all-of-owner", *OWNER, "--yes") == [
        "deleted 1 schedule of owner 'user:42'"
    ]
    assert [each.owner for each in dynbeat.schedules.list()] == ["user:7"]


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
def test_the_edit_of_many_prints_an_object(as_json, dynbeat):
    numbers = {"unchanged": 0, "failed": 0, "failures": []}

    edits = [
        as_json(verb, "--tag", "x", "--all-owners", "--yes")
        for verb in ("pause", "resume", "delete")
    ]

    assert edits == [
        [{"ok": True, done: 4, "matched": 4, **numbers}]
        for done in ("paused", "resumed", "deleted")
    ]
    assert dynbeat.schedules.count().count == 2


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


def test_export_all_data_writes_each_record_of_the_owner(shown, refused, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.run_now("n")

    records = [json.loads(line) for line in shown("export", *OWNER, "--all-data")]

    kinds = [each["record"] for each in records]
    assert kinds == ["owner", "schedule", "run", "change", "change"]
    assert refused("export", "--all-owners", "--all-data")[0] == 2


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


def test_runs_lists_the_runs_of_a_schedule_whose_name_looks_like_a_run_id(shown, mine):
    mine.create(RUN_ID, task="t", trigger=MINUTELY)
    assert shown("runs", RUN_ID, *OWNER) == []
    run = mine.run_now(RUN_ID)

    (line,) = shown("runs", RUN_ID, *OWNER)

    assert run.id in line


def test_show_has_the_next_fire_times_in_utc(upcoming, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    assert upcoming("n", *OWNER, "--count", "2") == [
        ("upcoming", "2026-11-21T09:01:00Z", "2026-11-21T09:01:00+00:00", ""),
        ("upcoming", "2026-11-21T09:02:00Z", "2026-11-21T09:02:00+00:00", ""),
    ]


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


def test_a_forecast_says_that_there_can_be_more(command, mine, monkeypatch):
    monkeypatch.setattr(forecast, "MAX_FOLLOWED", 1)
    for number in range(2):
        mine.create(f"n{number}", task="t", trigger=MINUTELY)

    shown = command("status", "--forecast", "minute")

    assert "at least: there are more schedules than are counted" in shown.stderr


def test_the_output_of_a_list_escapes_what_end_users_wrote(dynbeat, shown, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET name = :name", name="a\tb\x1b]0;x\x07\u202e")

    (line,) = shown("list", *OWNER)

    assert line.split("\t")[1] == "a\\tb\\x1b]0;x\\x07\\u202e"


def test_prune_asks_for_an_age_below_the_retention(refused, shown):
    assert refused("prune", "--older-than", "1")[0] == 2
    for options, days in ((("--older-than", "1", "--yes"), 1), ((), 30)):
        (line,) = shown("prune", *options)
        assert line.startswith(f"runs older than {days} days deleted: 0;")


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


def test_the_fire_times_of_an_interval_are_in_the_zone_of_the_owner(upcoming, mine):
    mine.set_timezone("Asia/Seoul")
    mine.create("n", task="t", trigger=Every(60))

    assert upcoming("n", *OWNER, "--count", "1") == [
        ("upcoming", "2026-11-21T09:01:00Z", "2026-11-21T18:01:00+09:00", "")
    ]


def test_a_trigger_with_its_own_zone_is_shown_in_that_zone(shown, upcoming, mine):
    mine.set_timezone("Europe/Berlin")
    mine.create("n", task="t", trigger=Cron("0 9 * * *", timezone="Asia/Seoul"))

    assert "Asia/Seoul" in shown("list", *OWNER)[0].split("\t")
    assert upcoming("n", *OWNER, "--count", "1") == [
        ("upcoming", "2026-11-22T00:00:00Z", "2026-11-22T09:00:00+09:00", "")
    ]


def test_an_error_shows_an_instant_as_iso_text(refused, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    _, error = refused("skip", "n", "2026-11-21T09:01:30Z", *OWNER)

    assert error.startswith("fire_at = 2026-11-21 09:01:30+00:00: is not a fire time")


@pytest.mark.parametrize("options", [(), ("--json",), ("--all-data",)])
def test_an_export_that_fails_leaves_its_file_unchanged(
    shown, refused, dynbeat, mine, tmp_path, options
):
    mine.create("n", task="t", trigger=MINUTELY)
    file = tmp_path / "schedules"
    export = ("export", *OWNER, *options)
    assert shown(*export, "--output", str(file)) == []
    complete = file.read_text()
    if "--all-data" not in options:
        assert complete.splitlines() == shown(*export)
    execute(dynbeat, "ALTER TABLE dynbeat_schedule RENAME TO dynbeat_gone")

    assert refused(*export, "--output", str(file))[0] == 1

    assert '"n"' in complete or "name: n" in complete
    assert file.read_text() == complete
    # SQLite's database is in the same folder.
    assert [each.name for each in tmp_path.iterdir() if "schedules" in each.name] == ["schedules"]


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


URL = "https://hc-ping.com/5f0c-token"


@pytest.fixture
def allowing(limited):
    """Return an application with an allowed host, and a function for commands."""
    dynbeat = limited(ping_hosts=["hc-ping.com"])

    def run(*arguments):
        context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
        result = CliRunner().invoke(group, arguments, obj=context)
        assert result.exit_code == 0, result.output
        return result.output

    return dynbeat, run


def test_options_set_finish_within_and_the_ping_url(allowing):
    dynbeat, run = allowing

    added = run("add", "n", *TASK, "--trigger", "60s", "--finish-within", "2m", "--ping-url", URL)

    assert "token" not in added
    mine = dynbeat.schedules.for_owner("")
    assert (mine.get("n").finish_within, mine.get("n").ping_url) == (timedelta(minutes=2), URL)
    lines = dict(line.split("\t", 1) for line in run("show", "n").splitlines())
    assert lines["ping_url"] == "https://hc-ping.com/..."
    assert json.loads(run("show", "n", "--json"))["ping_url"] == URL

    run("update", "n", "--clear", "finish_within", "--clear", "ping_url")
    assert (mine.get("n").finish_within, mine.get("n").ping_url) == (None, None)


def test_a_ping_url_that_no_setting_allows_is_refused(refused):
    code, shown = refused("add", "n", *TASK, "--trigger", "60s", "--ping-url", URL)

    assert code == 1
    assert "list the allowed ones in dynbeat_ping_hosts" in " ".join(shown.split())
    assert "token" not in shown


def test_rename_gives_another_name(shown, refused, mine):
    mine.create("a", task="t", trigger=MINUTELY)
    mine.create("b", task="t", trigger=MINUTELY)

    (line,) = shown("update", "a", "--rename", "c", *OWNER, "--reason", "why")

    assert line.startswith("renamed schedule 'a' of owner 'user:42' to 'c'; next run 2026-")
    assert [each.name for each in mine.list()] == ["b", "c"]
    assert mine.changes("c")[0].reason == "why"
    assert "already has a schedule named 'b'" in refused("update", "c", "--rename", "b", *OWNER)[1]
    assert "name: a -> c" in shown("changes", "c", *OWNER)[0]


def test_a_refused_rename_undoes_the_other_changes(shown, refused, mine):
    for name in ("a", "b"):
        mine.create(name, task="t", trigger=MINUTELY)

    refused("update", "a", "--task", "u", "--rename", "b", *OWNER)
    assert mine.get("a").task == "t"
    shown("update", "a", "--task", "u", "--rename", "c", "--expected-version", "1", *OWNER)

    assert mine.get("c").task == "u"
