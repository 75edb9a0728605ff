"""Celery accepts the command lines of docker-compose.yml."""

import json
import re
from pathlib import Path

import pytest
from celery.bin.celery import celery
from click import Context

from tests.support.versions import needs_celery

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
COMMANDS = [
    json.loads(re.sub(r"\s+", " ", found))
    for found in re.findall(r'command: (\["celery".*?\])', COMPOSE, flags=re.DOTALL)
]


def parse(words, group, context):
    """Return the words that no command accepts. click rejects unknown options."""
    name, command, words = group.resolve_command(context, words)
    settings = command.context_settings
    context = Context(command, parent=context, info_name=name, **settings)
    if hasattr(command, "resolve_command"):
        return parse(words, command, context)
    return command.make_parser(context).parse_args(words)[1]


@needs_celery(5, 7, "a name and remote control of beat")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_exists_with_its_options(command):
    program, option, app, *words = command

    assert (program, option) == ("celery", "-A")
    assert (ROOT / "examples" / "quickstart" / f"{app}.py").is_file()
    unknown = parse(words, celery, Context(celery, info_name="celery"))
    assert unknown == []


def test_all_programs_are_started():
    programs = {" ".join(command[3:5]) for command in COMMANDS if command[3] == "dynbeat"}
    assert programs == {"dynbeat schema", "dynbeat flower"}
    assert {command[3] for command in COMMANDS} == {"dynbeat", "beat", "worker"}
