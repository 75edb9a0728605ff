"""owner --quiet-hours."""

from dataclasses import replace
from datetime import timedelta

from celery_dynbeat import Cron
from celery_dynbeat.common.quiet_rule import QuietRule
from tests.support.applications import MINUTELY

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
