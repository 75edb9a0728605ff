"""``dynbeat usage``: how much of their limits owners use."""

import json

import click

from celery_dynbeat.cli.base.columns import Column, owner_column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import owners_option
from celery_dynbeat.common.text import counted

COLUMNS = (
    owner_column(),
    Column("used", width=6),
    Column("limit", width=6),
    Column("remaining", width=9),
    Column("setting", width=30),
)


WAITING_COLUMNS = (
    owner_column(),
    Column("waiting", width=7),
    time_column("since"),
    Column("running", width=7),
    Column("max_running", width=11),
    Column("running_key", width=20, optional=True),
)


@command(
    "usage",
    examples=("usage --owner user:42", "usage --all-owners --waiting"),
)
@owners_option
@click.option("--waiting", is_flag=True, help="List the owners whose runs wait for a place.")
def usage(invocation: Invocation, *, waiting: bool) -> None:
    """Show the schedules and runs of an owner, and the limits on them.

    There is one row per limit. With --waiting, there is one row per owner whose runs wait.
    """
    if waiting:
        # A late import: the help of the commands imports no SQLAlchemy.
        from celery_dynbeat.api.usage import waiting_owners  # noqa: PLC0415

        context = invocation.dynbeat.context
        rows = waiting_owners(context, None, settings=context.settings.for_pass())
        is_any = invocation.all_owners
        invocation.show(WAITING_COLUMNS, [r for r in rows if is_any or r.owner == invocation.owner])
        return
    found = invocation.schedules.usage(invocation.owner or "")
    if invocation.output.as_json:
        invocation.output.line(json.dumps(found.to_dict()))
    elif found.limits or found.run_limits:
        invocation.show(COLUMNS, [*found.limits, *found.run_limits], hidden=())
        if found.waiting:
            invocation.output.note(f"{counted(found.waiting, 'run')} waiting for a place")
    else:
        invocation.output.note(
            f"owner {found.owner!r} has {counted(found.schedules, 'schedule')}, without a limit"
        )
