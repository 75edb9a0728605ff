"""``dynbeat move``: give a schedule to another owner."""

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import complete_owners, edit_options, name_argument, yes_option


@command(
    "move", examples=("move digest --owner user:42 --to user:43 --reason 'user:42 left the team'",)
)
@name_argument
@click.option(
    "--to",
    required=True,
    shell_complete=complete_owners,
    metavar="OWNER",
    help='The new owner. "" is the application itself.',
)
@edit_options
@yes_option
def move(invocation: Invocation, *, name: str, to: str) -> None:
    """Give a schedule with its history to another owner. It keeps its id.

    The schedule keeps its next fire time, unless it follows the time zone of its owner and the
    zones differ. Its earlier edits stay in the audit of the old owner. The command asks for
    confirmation. It commits after each batch of 1,000 runs. If it is interrupted, repeat it.
    """
    owner = invocation.mine.owner
    invocation.mine.get(name)
    invocation.confirm(f"Move {invocation.label(name)} with its history to owner {to!r}?")
    info = invocation.schedules.move(name, owner=owner, to=to)
    text = f"moved {invocation.label(name)} to owner {to!r}{invocation.when(info)}"
    invocation.output.done(text, info.to_dict())
