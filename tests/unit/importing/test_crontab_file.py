"""Lines of a crontab become schedules by the rules of crontab(5)."""

import time

import pytest

from celery_dynbeat import Cron
from celery_dynbeat.importing.crontab_file import CrontabSource

FILE = """
# m h dom mon dow command
MAILTO="ops@example.com"
*/5 * * * *   /usr/bin/poll --all
30 9 13 * fri /usr/bin/report
CRON_TZ = Europe/Berlin
@daily  /usr/bin/backup   # every night
0 0 * * * /usr/bin/poll --all
"""


def found(text, *, task="proj.run", **options):
    source = CrontabSource(text.splitlines(keepends=True), task, **options)
    return [each for page in source.pages() for each in page]


def test_each_line_becomes_a_schedule_with_the_command_as_argument():
    poll, report, backup, again = found(FILE)

    assert poll.name == "/usr/bin/poll --all"
    assert poll.converted.task == "proj.run"
    assert poll.converted.trigger == Cron("*/5 * * * *")
    assert poll.converted.fields == {
        "args": ["/usr/bin/poll --all"],
        "kwargs": {"environment": {"MAILTO": "ops@example.com"}},
    }
    # One matching day field is enough in cron.
    assert report.converted.trigger == Cron("30 9 13 * fri", day_or=True)
    assert backup.converted.trigger == Cron("0 0 * * *", timezone="Europe/Berlin")
    assert backup.converted.fields["args"] == ["/usr/bin/backup   # every night"]
    assert again.name == "/usr/bin/poll --all (2)"


def test_the_system_format_has_a_user():
    (one,) = found("17 * * * * root  cd / && run-parts /etc/cron.hourly\n", system=True)

    assert one.converted.fields == {
        "args": ["cd / && run-parts /etc/cron.hourly"],
        "kwargs": {"user": "root"},
    }


def test_an_escaped_percent_sign_is_part_of_the_command():
    (one,) = found("0 0 * * * date +\\%F\n")

    assert one.converted.fields["args"] == ["date +%F"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@reboot /usr/bin/start", "@reboot"),
        ("0 0 * * * mail -s x ops%text", "standard input"),
        ("0 0 * *", "a time and a command"),
        ("61 * * * * /usr/bin/x", "61"),
        ("0~30 * * * * /usr/bin/x", "0~30"),
        ("0 0 30 2 * /usr/bin/x", "no such date"),
    ],
)
def test_a_line_that_cannot_be_expressed_is_refused_with_the_reason(line, reason):
    (one,) = found(line)

    assert one.converted is None
    assert reason in one.refused


def test_without_a_task_each_line_is_refused():
    (one,) = found("0 0 * * * /usr/bin/x\n", task=None)

    assert "pass --task with a task" in one.refused


def test_a_time_zone_is_that_of_the_option_or_of_the_owner():
    (named,) = found("0 0 * * * x\n", timezone="Asia/Seoul")
    (owners,) = found("0 0 * * * x\n")

    assert named.converted.trigger.timezone == "Asia/Seoul"
    assert owners.converted.trigger.timezone is None
    assert [note.topic for note in owners.notes] == ["time zone"]


def test_a_long_line_takes_time_with_its_length():
    started = time.thread_time()

    assert found("A=" + 40_000 * " " + "x") == []

    assert time.thread_time() - started < 0.5
