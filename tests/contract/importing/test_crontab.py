"""A crontab file is imported through the command line."""

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat import Cron
from celery_dynbeat.cli import dynbeat as group


def test_a_file_is_imported_and_a_second_time_changes_nothing(imported, dynbeat, tmp_path):
    file = tmp_path / "crontab"
    file.write_text("30 9 * * mon-fri /usr/bin/report\n")
    arguments = ("crontab", str(file), "--task", "proj.run", "--owner", "host:1", "--apply")

    assert imported(*arguments)["/usr/bin/report"]["outcome"] == "create"
    assert imported(*arguments) == {}
    made = dynbeat.schedules.for_owner("host:1").get("/usr/bin/report")
    assert made.trigger == Cron("30 9 * * mon-fri", timezone="UTC")
    assert made.args == ["/usr/bin/report"]

    file.write_text("30 10 * * mon-fri /usr/bin/report\n")
    assert imported(*arguments)["/usr/bin/report"]["reason"] == "changes trigger_spec"


CONTENT = "# Überblick\r\nCRON_TZ=UTC\r\n30 9 * * * /bin/report ü\r\n"


@pytest.mark.parametrize("from_stdin", [False, True], ids=["file", "stdin"])
def test_a_bom_and_crlf_belong_to_no_line(dynbeat, tmp_path, from_stdin):
    file = tmp_path / "crontab"
    # With a BOM before it, the first line would be no comment.
    file.write_bytes(CONTENT.encode("utf-8-sig"))
    where = "-" if from_stdin else str(file)
    arguments = ["import", "crontab", where, "--task", "proj.run", "--apply"]
    context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)

    result = CliRunner().invoke(group, arguments, obj=context, input=file.read_bytes())

    assert result.exit_code == 0, result.output
    assert [each.name for each in dynbeat.schedules.list()] == ["/bin/report ü"]
    made = dynbeat.schedules.for_owner("").get("/bin/report ü")
    assert (made.args, made.kwargs) == (["/bin/report ü"], {})
    assert made.trigger == Cron("30 9 * * *", timezone="UTC")


@pytest.mark.parametrize(
    ("encoding", "where"),
    [
        ("latin-1", "byte 0xfc in line 1102"),
        ("utf-16", "a NUL byte in line 1"),
        ("utf-16-le", "a NUL byte in line 1"),
    ],
)
def test_a_file_in_another_encoding_is_an_error_and_imports_nothing(
    command, dynbeat, tmp_path, encoding, where
):
    file = tmp_path / "crontab"
    lines = [f"30 9 * * * /bin/report {number}\n" for number in range(1_101)]
    file.write_bytes("".join([*lines, "30 9 * * * /bin/report ü\n"]).encode(encoding))

    result = command("crontab", str(file), "--task", "proj.run", "--apply")

    assert result.exit_code == 1
    assert f"the crontab is not UTF-8 ({where}): convert it" in result.stderr
    assert dynbeat.schedules.count().count == 0


def test_a_missing_file_is_named(command, tmp_path):
    result = command("crontab", str(tmp_path / "none"), "--task", "proj.run")

    assert result.exit_code == 1
    assert "the crontab cannot be read" in result.stderr
