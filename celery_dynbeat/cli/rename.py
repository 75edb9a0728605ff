"""``dynbeat rename``: give a schedule another name."""

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options, name_argument


@command("rename", examples=("rename digest morning-digest --owner user:42 --reason 'ticket 12'",))
@name_argument
@click.argument("new_name")
@edit_options
def rename(invocation: Invocation, *, name: str, new_name: str) -> None:
    """Give a schedule another name. It keeps its history and its next fire time.

    Its runs keep the name under which they were recorded. A trigger with an H keeps its fire times,
    because the numbers that H stands for replace it in the text of the trigger.
    """
    info = invocation.mine.rename(name, new_name)
    text = f"renamed {invocation.label(name)} to {new_name!r}{invocation.when(info)}"
    invocation.output.done(text, info.to_dict())
