"""Each command line of dynbeat in the pages is one that the command accepts."""

import re
import shlex
from pathlib import Path

import click
import pytest

from celery_dynbeat.cli import dynbeat

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
#: A line of a block of code, up to a pipe, a comment, a redirection or another command.
COMMAND = re.compile(r"^(?:\$ )?(?:celery -A \w+ )?dynbeat ([^|#>;&\n]+)", re.MULTILINE)
BLOCK = re.compile(r"^```(?:console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def command_lines():
    blocks = (block for page in PAGES for block in BLOCK.findall(page.read_text()))
    return sorted({line.strip() for block in blocks for line in COMMAND.findall(block)})


@pytest.mark.parametrize("line", command_lines())
def test_the_command_accepts_the_line(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("schedules.yaml").touch()
    command: click.Command = dynbeat
    words = shlex.split(line)
    context = click.Context(command)
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
        assert command is not None

    with command.make_context(command.name, words):
        pass
