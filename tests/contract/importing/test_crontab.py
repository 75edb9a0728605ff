"""A crontab file is imported through the command line."""

from celery_dynbeat import Cron


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


def test_a_missing_file_is_named(command, tmp_path):
    result = command("crontab", str(tmp_path / "none"), "--task", "proj.run")

    assert result.exit_code == 1
    assert "the crontab cannot be read" in result.stderr
