"""Write docs/reference/commands.md from the template and the help of the commands: `make docs`.

tests/unit/cli/test_commands_page.py fails if the page differs from what this script writes.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from celery_dynbeat.cli import dynbeat
from celery_dynbeat.cli.base.invocation import PREFIX

PAGE = Path(__file__).parent / "reference" / "commands.md"
TEMPLATE = Path(__file__).parent / "commands_template.md"


def page() -> str:
    """Return the text of the page."""
    commands = "\n".join(
        f"- `{path}`: {command.get_short_help_str(limit=200)}"
        for path, command in _commands(click.Context(dynbeat, info_name=PREFIX))
    )
    return TEMPLATE.read_text().replace("<!-- commands -->", commands)


def _commands(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Return each command with its words after ``dynbeat``; groups are left out."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(inner)
        else:
            yield inner.command_path.removeprefix(f"{PREFIX} "), command


if __name__ == "__main__":
    PAGE.write_text(page())
