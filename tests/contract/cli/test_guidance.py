"""What commands ask, count, complete and suggest. The database changes none of it."""

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner

from tests.support.applications import MINUTELY

OWNER = ("--owner", "user:42")


@pytest.fixture
def on_terminal(monkeypatch):
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation.Invocation.can_ask", True)


@pytest.mark.usefixtures("on_terminal")
def test_a_hold_of_everything_asks_on_a_terminal(command, dynbeat):
    arguments = ("hold", "--all-owners", "--reason", "migration")

    assert command(*arguments, input="n\n").exit_code == 1
    assert not dynbeat.schedules.holds()
    assert command(*arguments, input="y\n").exit_code == 0
    assert command(*arguments, "--yes").exit_code == 0
    assert len(dynbeat.schedules.holds()) == 1


@pytest.mark.usefixtures("on_terminal")
def test_a_cancel_of_all_counts_before_it_asks(command, mine):
    nothing = command("cancel", "--all", *OWNER)
    mine.create("n", task="t", trigger=MINUTELY)
    mine.run_now("n")
    asked = command("cancel", "--all", *OWNER, "--name", "n", input="n\n")
    other = command("cancel", "--all", *OWNER, "--name", "other", input="n\n")

    assert (nothing.exit_code, nothing.stdout.partition(":")[0]) == (0, "nothing to cancel")
    assert "Cancel 1 pending, sent, retrying run of owner 'user:42' with name n?" in asked.stderr
    assert other.stdout.startswith("nothing to cancel")
    assert mine.count_runs(status="pending").count == 1


def test_a_dry_run_of_add_checks_everything_and_writes_nothing(as_json, refused, dynbeat, mine):
    given = ("add", "n", "--task", "t", *OWNER, "--trigger", "5m")

    (shown,) = as_json(*given, "--dry-run")
    assert (shown["name"], shown["id"], len(shown["next"])) == ("n", None, 5)
    assert mine.list().items == ()
    assert not dynbeat.schedules.changes().items

    assert as_json(*given)[0]["next_run_at"] == shown["next"][0]
    assert "already has a schedule named 'n'" in refused(*given, "--dry-run")[1]


def test_an_unknown_name_gets_the_similar_ones(refused, mine):
    mine.create("digest", task="t", trigger=MINUTELY)

    assert "did you mean 'digest'?" in refused("show", "digst", *OWNER)[1]
    assert "did you mean" not in refused("show", "zzz", *OWNER)[1]
    # The names of another owner stay unknown.
    assert "digest" not in refused("show", "digst", "--owner", "user:7")[1]


@pytest.mark.parametrize(
    ("name", "instead"),
    [("next", "show"), ("alerts", "status --alerts"), ("explain", "show --why")],
)
def test_a_name_that_is_no_command_comes_with_the_command(refused, name, instead):
    status, error = refused(name)

    assert status == 2
    assert f"use `dynbeat {instead}`" in error


def test_a_command_in_a_hint_names_the_application_of_the_command_line(dynbeat, mine, monkeypatch):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="ticket")
    monkeypatch.setattr("celery.bin.celery.find_app", lambda _: dynbeat.app)

    arguments = ["-A", "shop.worker", "dynbeat", "show", "n", "--why", *OWNER]
    result = CliRunner().invoke(celery, arguments)

    assert "celery -A shop.worker dynbeat hold --release --owner user:42" in result.stdout
