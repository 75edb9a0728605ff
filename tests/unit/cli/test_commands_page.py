"""docs/reference/commands.md is what `make docs` writes; each command documents itself."""

import runpy
import shlex
from pathlib import Path

import click
import pytest

from celery_dynbeat.cli import dynbeat

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "generate_commands.py"))


def commands(group=dynbeat):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield command


COMMANDS = list(commands())
# Groups have commands of the same name.
IDS = [f"{number}-{each.name}" for number, each in enumerate(COMMANDS)]
ALL = pytest.mark.parametrize("command", COMMANDS, ids=IDS)


def test_the_page_is_written_by_make_docs():
    assert SCRIPT["PAGE"].read_text() == SCRIPT["page"](), "run `make docs`"


@ALL
def test_each_example_is_a_valid_command_line(command, tmp_path):
    for example in command.examples:
        with command.make_context(command.name, arguments_of(example, command, folder=tmp_path)):
            pass


def arguments_of(example, command, *, folder):
    """Return the arguments after the name of the command. Its files exist in ``folder``."""
    parts = [shlex.split(part.partition(">")[0]) for part in example.split(" | ")]
    words = next(part for part in parts if command.name in part)
    arguments = words[words.index(command.name) + 1 :]
    return [existing(folder, word) for word in arguments]


def existing(folder, word):
    if not word.endswith((".yaml", ".json", ".txt", ".ics")):
        return word
    (folder / word).touch()
    return str(folder / word)
