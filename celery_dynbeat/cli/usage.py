"""``dynbeat usage``: how much of their limits an owner or a group uses."""

import json

from celery_dynbeat.cli.base.columns import Column, owner_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import owner_option
from celery_dynbeat.common.text import counted

COLUMNS = (
    owner_column(),
    Column("used", width=6),
    Column("limit", width=6),
    Column("remaining", width=9),
    Column("setting", width=30),
)


@command(
    "usage",
    examples=("usage --owner org:7/user:42", "usage --owner org:7/ --json"),
)
@owner_option
def usage(invocation: Invocation) -> None:
    """Show the schedules and runs of an owner, and the limits on them.

    There is one row per limit: first the limits of the owner's groups, and then the owner's own
    limits. --owner can also be a group, such as org:7/.
    """
    found = invocation.schedules.usage(invocation.owner or "")
    if invocation.output.as_json:
        invocation.output.line(json.dumps(found.to_dict()))
    elif found.limits or found.run_limits:
        invocation.show(COLUMNS, [*found.limits, *found.run_limits], hidden=())
        if found.waiting:
            invocation.output.note(f"{counted(found.waiting, 'run')} waiting for a slot")
    else:
        invocation.output.note(
            f"owner {found.owner!r} has {counted(found.schedules, 'schedule')}, without a limit"
        )
