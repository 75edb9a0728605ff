"""quiet-hours."""

from dataclasses import replace
from datetime import date, timedelta

from celery_dynbeat import Cron
from celery_dynbeat.common.quiet_rule import QuietRule
from celery_dynbeat.triggers.zones import describe_instant
from tests.support.applications import MINUTELY, execute

OWNER = ("--owner", "user:42")


def test_the_command_sets_shows_and_clears_the_windows(shown, as_json, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    (text,) = shown("quiet-hours", *OWNER, "22:00-07:00", "sat,sun 00:00-00:00")
    assert text == "set the quiet hours of owner 'user:42'; 1 schedule changed"
    assert shown("quiet-hours", *OWNER) == ["user:42\t22:00-07:00, sat,sun 00:00-00:00\t"]
    assert as_json("quiet-hours", *OWNER) == [each.to_dict() for each in mine.quiet_hours()]

    (text,) = shown("quiet-hours", *OWNER, "--clear")
    assert text == "removed the quiet hours of owner 'user:42'; 1 schedule changed"
    assert shown("quiet-hours", *OWNER) == []


def test_the_application_has_windows(shown, dynbeat):
    (text,) = shown("quiet-hours", "10:00-11:00")
    assert text == "set the quiet hours of the application; 0 schedules changed"
    assert [str(each) for each in dynbeat.schedules.for_owner("").quiet_hours()[0].windows] == [
        "10:00-11:00"
    ]


def test_the_command_sets_a_calendar(shown, mine, dynbeat, refused):
    dynbeat.calendars.upsert("holidays", dates=[date(2026, 12, 25)])
    mine.create("n", task="t", trigger=MINUTELY)

    (text,) = shown("quiet-hours", *OWNER, "22:00-07:00", "--calendar", "holidays")
    assert text == "set the quiet hours of owner 'user:42'; 1 schedule changed"
    assert shown("quiet-hours", *OWNER) == ["user:42\t22:00-07:00\tholidays"]
    assert "quiet_hours\t22:00-07:00, the days of holidays" in shown("show", "n", *OWNER)
    shown("quiet-hours", *OWNER, "--calendar", "holidays")
    assert shown("quiet-hours", *OWNER) == ["user:42\t\tholidays"]
    _, error = refused("quiet-hours", *OWNER, "--calendar", "nothing")
    assert "there is no calendar with this name" in error
    assert "holidays" not in error


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
    assert shown("quiet-hours", *OWNER) == ["*\t09:30-12:00\t"]
    assert shown("replan", "--quiet-hours") == ["schedules with other quiet hours: 0"]
    assert refused("replan", "--quiet-hours", "--zone", "UTC")[0] == 2


def test_invalid_windows_are_refused(refused):
    status, error = refused("quiet-hours", *OWNER, "22-7")
    assert status in {1, 2}
    assert "such as" in error
    status, error = refused("quiet-hours", *OWNER, "22:00-07:00", "--clear")
    assert status == 2
    assert "not both" in error


def test_next_and_a_dry_run_say_what_quiet_hours_do(shown, as_json, mine):
    mine.create("n", task="t", trigger=Cron("0 10,13 * * *"))
    mine.set_quiet_hours(["09:30-12:00"])
    sent = "in quiet hours: sent at 2026-11-21 12:00 UTC"

    quiet = [line.split("\t")[-1] for line in shown("next", "n", *OWNER, "--count", "2")]
    assert quiet == [sent, ""]
    found = as_json("next", "n", *OWNER, "--count", "2")
    assert [each["wait_note"] for each in found] == [sent, None]
    assert [each["run_at"][11:16] for each in found] == ["12:00", "13:00"]


def test_next_and_show_have_the_nominal_and_the_effective_time(shown, as_json, mine):
    shown("add", "n", "--task", "t", "--trigger", "0 10 * * *", "--window", "50 %", *OWNER)
    info = mine.get("n")
    sent = f"in its window: sent at {describe_instant(info.next_run_at)}"

    assert info.window == "50%"
    assert shown("next", "n", *OWNER, "--count", "1")[0].split("\t")[-1] == sent
    (found,) = as_json("next", "n", *OWNER, "--count", "1")
    (listed,) = as_json("show", "n", *OWNER)
    assert (found["run_at"], found["wait_note"]) == (listed["next_run_at"], sent)
    lines = shown("show", "n", *OWNER)
    assert "window\t50%" in lines
    assert any(line.startswith("upcoming\t") and "10:00:00" in line for line in lines)
    mine.update("n", window=0)
    assert shown("next", "n", *OWNER, "--count", "1")[0].split("\t")[-1] == ""


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
