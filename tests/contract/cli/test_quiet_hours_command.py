"""owner --quiet-hours."""

from dataclasses import replace
from datetime import date, timedelta

from celery_dynbeat import Cron
from celery_dynbeat.common.quiet_rule import QuietRule
from celery_dynbeat.triggers.zones import describe_instant
from tests.support.applications import MINUTELY, execute

OWNER = ("--owner", "user:42")
QUIET = ("--quiet-hours", "22:00-07:00")


def test_the_command_sets_shows_and_clears_the_windows(shown, as_json, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    (text,) = shown("owner", "user:42", *QUIET, "--quiet-hours", "sat,sun 00:00-00:00")
    assert text == "owner 'user:42': set the quiet hours (1 schedule changed)"
    assert "quiet_hours\t22:00-07:00, sat,sun 00:00-00:00" in shown("owner", "user:42")
    assert as_json("owner", "user:42")[0]["quiet_hours"] == [
        each.to_dict() for each in mine.quiet_hours()
    ]

    (text,) = shown("owner", "user:42", "--no-quiet-hours")
    assert text == "owner 'user:42': removed the quiet hours (1 schedule changed)"
    assert mine.quiet_hours() == []


def test_an_edit_counts_what_it_changed_in_json(as_json, mine):
    mine.create("n", task="t", trigger=Cron("0 9 * * *"))

    (found,) = as_json("owner", "user:42", *QUIET, "--timezone", "Asia/Seoul")

    assert found["changed"] == {"timezone": 1, "quiet_hours": 1}


def test_damaged_windows_hide_nothing_else_in_json(dynbeat, as_json, mine):
    mine.set_quiet_hours(["22:00-07:00"])
    execute(dynbeat, """UPDATE dynbeat_owner SET quiet_hours = '{"windows": ["22-7"]}'""")

    (found,) = as_json("owner", "user:42")

    assert (found["quiet_hours"], found["timezone"]) == (None, "UTC")
    assert "set it again" in found["error"]


def test_the_application_has_windows(shown, dynbeat):
    (text,) = shown("owner", "--quiet-hours", "10:00-11:00")
    assert text == "the application: set the quiet hours (0 schedules changed)"
    assert [str(each) for each in dynbeat.schedules.for_owner("").quiet_hours()[0].windows] == [
        "10:00-11:00"
    ]


def test_the_command_sets_a_calendar(shown, mine, dynbeat, refused):
    dynbeat.calendars.upsert("holidays", dates=[date(2026, 12, 25)])
    mine.create("n", task="t", trigger=MINUTELY)

    shown("owner", "user:42", *QUIET, "--quiet-days", "holidays")
    assert "quiet_hours\t22:00-07:00, the days of holidays" in shown("show", "n", *OWNER)
    shown("owner", "user:42", "--quiet-days", "holidays")
    assert [each.windows for each in mine.quiet_hours()] == [()]
    _, error = refused("owner", "user:42", "--quiet-days", "nothing")
    assert "there is no calendar with this name" in error
    assert "holidays" not in error


def test_an_edit_of_an_owner_is_made_as_a_whole(shown, as_json, refused, mine):
    edit = ("owner", "user:42", "--timezone", "Asia/Seoul", "--reason", "moved")

    status, _ = refused(*edit, "--quiet-hours", "22-7")
    assert (status, mine.timezone()) == (1, "UTC")

    shown(*edit, *QUIET)
    assert as_json("owner", "user:42")[0]["timezone"] == "Asia/Seoul"
    assert {each.reason for each in mine.changes()} == {"moved"}
    shown("owner", "user:42", "--timezone", "")
    assert mine.timezone() == "UTC"


def test_replan_writes_the_setting_into_the_schedules(shown, dynbeat, mine, refused):
    settings = replace(
        dynbeat.context.settings, quiet_hours=QuietRule.from_setting(["09:30-12:00"])
    )
    mine.create("n", task="t", trigger=Cron("0 10 * * *"))
    dynbeat.schedules.for_owner("").create("own", task="t", trigger=Cron("0 10 * * *"))
    due_before = mine.get("n").next_run_at
    dynbeat.context.settings = settings

    assert shown("replan", "--quiet-hours") == ["schedules with other quiet hours: 2"]
    assert mine.get("n").next_run_at == due_before + timedelta(hours=2)
    assert "quiet_hours\t09:30-12:00 (everybody)" in shown("owner", "user:42")
    assert shown("replan", "--quiet-hours") == ["schedules with other quiet hours: 0"]
    assert refused("replan", "--quiet-hours", "--zone", "UTC")[0] == 2


def test_invalid_windows_are_refused(refused):
    status, error = refused("owner", "user:42", "--quiet-hours", "22-7")
    assert status == 1
    assert "such as" in error
    status, error = refused("owner", "user:42", *QUIET, "--no-quiet-hours")
    assert status == 2
    assert "not both" in error


def test_show_says_what_quiet_hours_do(upcoming, as_json, mine):
    mine.create("n", task="t", trigger=Cron("0 10,13 * * *"))
    mine.set_quiet_hours(["09:30-12:00"])
    sent = "in quiet hours: sent at 2026-11-21 12:00 UTC"

    assert [row[-1] for row in upcoming("n", *OWNER, "--count", "2")] == [sent, ""]
    found = as_json("show", "n", *OWNER, "--count", "2")[0]["upcoming"]
    assert [each["wait_note"] for each in found] == [sent, None]
    assert [each["run_at"][11:16] for each in found] == ["12:00", "13:00"]


def test_show_has_the_nominal_and_the_effective_time(shown, upcoming, as_json, mine):
    shown("add", "n", "--task", "t", "--trigger", "0 10 * * *", "--window", "50 %", *OWNER)
    info = mine.get("n")
    sent = f"in its window: sent at {describe_instant(info.next_run_at)}"

    assert info.window == "50%"
    (row,) = upcoming("n", *OWNER, "--count", "1")
    assert (row[1], row[3]) == ("2026-11-21T10:00:00Z", sent)
    (listed,) = as_json("show", "n", *OWNER, "--count", "1")
    (found,) = listed["upcoming"]
    assert (found["run_at"], found["wait_note"]) == (listed["next_run_at"], sent)
    assert "window\t50%" in shown("show", "n", *OWNER)
    mine.update("n", window=0)
    assert upcoming("n", *OWNER, "--count", "1")[0][3] == ""


def test_unreadable_quiet_hours_do_not_report_an_edit_as_failed(shown, mine, dynbeat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.pause("n")
    mine.set_quiet_hours(["22:00-23:00"])
    execute(dynbeat, """UPDATE dynbeat_owner SET quiet_hours = '{"windows": "x"}'""")

    (text,) = shown("resume", "n", *OWNER)

    assert text.endswith("; next run 2026-11-21 09:01:00 UTC, in 60 s")


def test_show_names_the_quiet_hours_of_the_owner(shown, dynbeat):
    mine = dynbeat.schedules.for_owner("org:7/a")
    mine.create("n", task="t", trigger=MINUTELY)
    assert not [line for line in shown("show", "n", "--owner", "org:7/a") if "quiet" in line]

    mine.set_quiet_hours(["22:00-07:00", "sat,sun 00:00-00:00"])

    shown_rows = shown("show", "n", "--owner", "org:7/a")
    assert "quiet_hours\t22:00-07:00, sat,sun 00:00-00:00" in shown_rows
