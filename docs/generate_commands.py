"""Write docs/reference/commands.md from the template and the help of the commands: `make docs`.

tests/unit/cli/test_commands_page.py fails if the page differs from what this script writes.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from celery_dynbeat.cli import dynbeat
from celery_dynbeat.cli.base.command import PREFIX, DocumentedCommand

PAGE = Path(__file__).parent / "reference" / "commands.md"
TEMPLATE = Path(__file__).parent / "commands_template.md"
WIDTH = 120
#: Options that the template describes.
COMMON = ("--help", "--json")
#: Command -> links that its help cannot have.
LINKS = {
    "status": "[Health](../how-to/health.md) describes the output.",
    "prune": "[Tables](tables.md#history) lists the runs that are kept.",
    "schema application": "See [one application for each database]"
    "(../how-to/install.md#one-application-for-each-database).",
}


def page() -> str:
    """Return the text of the page."""
    root = click.Context(dynbeat, info_name=PREFIX)
    sections = [
        section for name in dynbeat.list_commands(root) for section in _sections(root, name)
    ]
    rows = [
        f"| [`{name}`](#{name}) | {_command(root, name).get_short_help_str(WIDTH)} |"
        for name in dynbeat.list_commands(root)
    ]
    table = "\n".join(["| command | what it does |", "|---|---|", *rows])
    text = TEMPLATE.read_text().replace("<!-- table -->", table)
    return text.replace("<!-- sections -->", "".join(sections).strip())


def _command(context: click.Context, name: str) -> click.Command:
    group = context.command
    assert isinstance(group, click.Group)
    command = group.get_command(context, name)
    assert command is not None
    return command


def _sections(parent: click.Context, name: str, level: str = "##") -> Iterator[str]:
    command = _command(parent, name)
    context = click.Context(command, info_name=name, parent=parent)
    title = context.command_path.removeprefix(f"{PREFIX} ")
    yield f"\n{level} {title}\n\n"
    if isinstance(command, click.Group):
        yield f"{_prose(command)}\n"
        for inner in command.list_commands(context):
            yield from _sections(context, inner, f"{level}#")
        return
    yield f"```\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n\n"
    yield f"{_prose(command)}\n"
    if link := LINKS.get(title):
        yield f"\n{textwrap.fill(link, WIDTH)}\n"
    yield from _options(command, context)
    assert isinstance(command, DocumentedCommand)
    yield from _help_sections(command)


def _prose(command: click.Command) -> str:
    paragraphs = (command.help or "").split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(each.split()), WIDTH) for each in paragraphs)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [
        "| `{}` | {} |".format(*(text.replace("|", "\\|") for text in (option, meaning)))
        for option, meaning in filter(None, records)
        # An argument has no help.
        if option not in COMMON and meaning
    ]
    if rows:
        yield "\n| option | meaning |\n|---|---|\n"
        yield "\n".join(rows) + "\n"


def _help_sections(command: DocumentedCommand) -> Iterator[str]:
    sections = command.help_sections()
    for title, lines in sections.items():
        if title == "Examples":
            yield "\n```sh\n" + "\n".join(lines) + "\n```\n"
        elif title == "Exit status":
            statuses = re.split(r"(?<=\.) (?=\d: )", " ".join(lines))
            yield "\n" + "\n".join(
                textwrap.fill(f"- Exit status {each}", WIDTH, subsequent_indent="  ")
                for each in statuses
            )
            yield "\n"
        else:
            text = f"{title}: {' '.join(lines)}"
            yield f"\n{textwrap.fill(text, WIDTH)}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
