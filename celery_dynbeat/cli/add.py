"""``dynbeat add``: create a schedule."""

from typing import Any

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options
from celery_dynbeat.cli.fields import field_options, fields_from, trigger_from, trigger_options


@command(
    "add",
    examples=(
        "add digest --task app.tasks.digest --cron '0 9 * * mon-fri' --timezone Asia/Seoul",
        "add poll --task app.tasks.poll --every 5m --owner user:42 --kwargs '{\"account\": 42}'",
        "add goodbye --task app.tasks.mail --once 40h --paused",
    ),
)
@click.argument("name")
@click.option("--task", required=True, metavar="TASK", help="The name of the task.")
@trigger_options
@edit_options
@field_options
@click.option("--paused", is_flag=True, help="Create it paused; `dynbeat resume` starts it.")
def add(invocation: Invocation, *, name: str, task: str, paused: bool, **given: Any) -> None:
    """Create a schedule. Exactly one of --cron, --every, --once, --rrule and --trigger is needed.

    A policy that is not given follows its setting.
    """
    trigger = trigger_from(invocation, given)
    if trigger is None:
        raise click.UsageError("add one of --cron, --every, --once, --rrule and --trigger")
    fields = fields_from(invocation, given)
    if paused:
        fields |= {"enabled": False, "paused_reason": invocation.reason}
    info = invocation.mine.create(name, task=task, trigger=trigger, **fields)
    invocation.output.done(f"added {invocation.label(name)}{invocation.when(info)}", info.to_dict())
