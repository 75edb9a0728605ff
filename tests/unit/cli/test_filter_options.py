"""The options of a filter come from its keys."""

import click
import pytest
from click.testing import CliRunner

from celery_dynbeat.cli.base.parameters import filter_options
from celery_dynbeat.common.filters import RunFilter, ScheduleFilter


def parsed(options, *args):
    """Return the values and the help of a command with these options."""
    command = click.Command("list", params=[*options], callback=lambda **given: given)
    return (
        command.main(args, standalone_mode=False),
        CliRunner().invoke(command, ["--help"]).output,
    )


def test_an_option_is_a_key_with_its_check_and_help():
    options = filter_options(RunFilter, "status", "batch_id", "since", selects="Only runs")
    batch = "01a203ec-f449-7a5a-aa02-b03ca0cb18fc"
    args = ("--status", "failed", "--status", "lost", "--batch", batch, "--since", "2h")

    given, text = parsed(options, *args)

    assert given["status"] == ("failed", "lost")
    assert given["batch_id"] == batch
    assert given["since"] is not None
    assert "Only runs of this batch." in text


@pytest.mark.parametrize("option", [("--state", "bad"), ("--owner", "a")])
def test_a_command_has_only_its_options_and_their_choices(option):
    options = filter_options(ScheduleFilter, "state", "name_prefix", selects="Only schedules")

    assert parsed(options, "--name-prefix", "dig")[0] == {"state": None, "name_prefix": "dig"}
    with pytest.raises(click.UsageError):
        parsed(options, *option)
