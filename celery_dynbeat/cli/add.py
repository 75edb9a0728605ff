"""``dynbeat add``: create a schedule."""

from collections.abc import Mapping
from typing import Any

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options
from celery_dynbeat.cli.fields import field_options, fields_from, trigger_from, trigger_option


@command(
    "add",
    examples=(
        "add digest --task app.tasks.digest --trigger '0 9 * * mon-fri'",
        "add poll --task app.tasks.poll --trigger 5m --owner user:42 --kwargs '{\"account\": 42}'",
        "add goodbye --task app.tasks.mail --trigger 'in 40h' --paused",
        "add digest --task app.tasks.digest --trigger 'CRON_TZ=Asia/Seoul 0 9 * * *' --dry-run",
    ),
)
@click.argument("name")
@click.option("--task", required=True, metavar="TASK", help="The name of the task.")
@trigger_option
@edit_options
@field_options
@click.option(
    "--paused", is_flag=True, help="Create the schedule paused. `dynbeat resume` starts it."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check everything and show the next fire times, but write nothing.",
)
def add(
    invocation: Invocation, *, name: str, task: str, paused: bool, dry_run: bool, **given: Any
) -> None:
    """Create a schedule. --trigger is the text of the trigger, with its time zone.

    A trigger without a zone follows the owner's. If you omit a policy, its setting applies.
    """
    trigger = trigger_from(invocation, given)
    if trigger is None:
        raise click.UsageError("add --trigger, such as --trigger '0 9 * * mon-fri' or --trigger 5m")
    fields = fields_from(invocation, given)
    if paused:
        fields |= {"enabled": False, "paused_reason": invocation.reason}
    fields |= {"task": task, "trigger": trigger}
    if dry_run:
        _show_only(invocation, name, fields)
        return
    info = invocation.mine.create(name, **fields)
    invocation.output.done(f"added {invocation.label(name)}{invocation.when(info)}", info.to_dict())


def _show_only(invocation: Invocation, name: str, fields: Mapping[str, Any]) -> None:
    """Create the schedule in a transaction that is rolled back, and print its fire times."""
    from sqlalchemy.orm import Session  # noqa: PLC0415 - the database

    with Session(invocation.dynbeat.context.database.engine) as session:
        mine = invocation.mine.bound(session=session)
        info, fire_times = mine.create(name, **fields), mine.upcoming(name)
    text = f"{invocation.label(name)} can be added"
    shown = [
        ", ".join(filter(None, (invocation.time(each.at), each.wait_note))) for each in fire_times
    ]
    times = "; next: ".join(["", *shown[:1]])
    result = {**info.to_dict(), "id": None, "next": [each.at.isoformat() for each in fire_times]}
    invocation.output.done(f"{text}{times}", {**result, "dry_run": True})
    if not invocation.output.as_json:
        for each in shown[1:]:
            invocation.output.line(f"  then {each}")
