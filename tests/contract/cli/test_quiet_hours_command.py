"""quiet-hours."""

from datetime import timedelta

from celery_dynbeat import Cron, Once
from tests.support.applications import MINUTELY, execute

OWNER = ("--owner", "user:42")


def test_the_command_sets_shows_and_clears_the_windows(shown, as_json, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    (text,) = shown("quiet-hours", *OWNER, "22:00-07:00", "sat,sun 00:00-00:00")
    assert text == "set the quiet hours of owner 'user:42'; 1 schedule changed"
    assert shown("quiet-hours", *OWNER) == ["user:42\tafter\t22:00-07:00, sat,sun 00:00-00:00"]
    assert as_json("quiet-hours", *OWNER) == [each.to_dict() for each in mine.quiet_hours()]

    (text,) = shown("quiet-hours", *OWNER, "--clear")
    assert text == "removed the quiet hours of owner 'user:42'; 1 schedule changed"
    assert shown("quiet-hours", *OWNER) == []


def test_a_group_and_the_application_have_windows(shown, dynbeat):
    (text,) = shown("quiet-hours", "--owner", "org:7/", "--policy", "skip", "mon 10:00-11:00")
    assert text == "set the quiet hours of group 'org:7/'; 0 schedules changed"
    assert shown("quiet-hours", "--owner", "org:7/user:1") == ["org:7/\tskip\tmon 10:00-11:00"]
    (text,) = shown("quiet-hours", "10:00-11:00")
    assert text == "set the quiet hours of the application; 0 schedules changed"
    assert [str(each) for each in dynbeat.schedules.for_owner("").quiet_hours()[0].windows] == [
        "10:00-11:00"
    ]


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
    assert [each["quiet_note"] for each in found] == [sent, None]
    assert [each["run_at"][11:16] for each in found] == ["12:00", "13:00"]

    mine.set_quiet_hours(["09:30-12:00"], policy="skip")
    first, second, *_ = shown(
        "add", "m", "--task", "t", *OWNER, "--cron", "0 10,13 * * *", "--dry-run"
    )
    assert first.endswith("2026-11-21 10:00:00 UTC, in 60 min, in quiet hours: not sent")
    assert second == "  then 2026-11-21 13:00:00 UTC, in 4 h"


def test_an_edit_says_that_quiet_hours_skip_the_next_fire_time(shown, mine):
    mine.set_quiet_hours(["09:30-12:00"], policy="skip")
    add = ("add", "--task", "t", *OWNER, "--cron")

    (text,) = shown(*add, "0 10,13 * * *", "some")
    assert text.endswith(
        "; next fire time 2026-11-21 10:00:00 UTC, in 60 min, in quiet hours: not sent"
    )
    (text,) = shown(*add, "0 13 * * *", "other")
    assert text.endswith("; next run 2026-11-21 13:00:00 UTC, in 4 h")


def test_an_edit_names_the_run_that_waits_for_the_end_of_quiet_hours(shown, dynbeat, clock):
    dynbeat.schedules.for_group("org:7/").set_quiet_hours(["08:30-12:00"])
    other = dynbeat.schedules.for_owner("org:7/a")
    other.set_quiet_hours(["22:00-23:00"], policy="skip")
    other.create("o", task="t", trigger=Once(clock.now() + timedelta(minutes=30)))
    clock.advance(3_600)

    (text,) = shown("rename", "o", "o2", "--owner", "org:7/a")

    assert text.endswith("; next run 2026-11-21 12:00:00 UTC, in 2 h, unless quiet hours skip it")


def test_unreadable_quiet_hours_do_not_report_an_edit_as_failed(shown, mine, dynbeat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.pause("n")
    mine.set_quiet_hours(["22:00-23:00"])
    execute(dynbeat, """UPDATE dynbeat_owner SET quiet_hours = '{"windows": "x"}'""")

    (text,) = shown("resume", "n", *OWNER)

    assert text.endswith("; next run 2026-11-21 09:01:00 UTC, in 60 s")


def test_show_names_the_quiet_hours_of_the_owner_and_its_groups(shown, dynbeat):
    mine = dynbeat.schedules.for_owner("org:7/a")
    mine.create("n", task="t", trigger=MINUTELY)
    assert not [line for line in shown("show", "n", "--owner", "org:7/a") if "quiet" in line]

    mine.set_quiet_hours(["22:00-07:00", "sat,sun 00:00-00:00"])
    dynbeat.schedules.for_group("org:7/").set_quiet_hours(["20:00-22:00"], policy="skip")

    assert (
        "quiet_hours\t20:00-22:00, skipped (group 'org:7/'); 22:00-07:00,"
        " sat,sun 00:00-00:00, then sent"
    ) in shown("show", "n", "--owner", "org:7/a")
