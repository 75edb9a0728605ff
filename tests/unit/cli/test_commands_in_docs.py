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
#: A command in a sentence that can be typed as it stands. `dynbeat hold` alone names a command.
IN_SENTENCE = re.compile(r"`celery\s+-A\s+proj\s+dynbeat\s+([^`|#>;&]+)`")


def command_lines():
    texts = [page.read_text() for page in PAGES]
    blocks = (block for text in texts for block in BLOCK.findall(text))
    typed = [line for block in blocks for line in COMMAND.findall(block)]
    named = [" ".join(line.split()) for text in texts for line in IN_SENTENCE.findall(text)]
    return sorted({line.strip() for line in (*typed, *named)} - {"import"})


@pytest.mark.parametrize("line", command_lines())
def test_the_command_accepts_the_line(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("schedules.yaml", "holidays-de.txt", "holidays-at.ics"):
        Path(name).touch()
    command: click.Command = dynbeat
    words = shlex.split(line)
    context = click.Context(command)
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
        assert command is not None

    with command.make_context(command.name, words):
        pass


def test_the_readme_counts_the_commands():
    (count,) = re.findall(r"\[(\d+) commands\]", (ROOT / "README.md").read_text())

    assert int(count) == len(dynbeat.list_commands(click.Context(dynbeat)))
