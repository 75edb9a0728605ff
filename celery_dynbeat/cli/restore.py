"""``dynbeat restore``: bring back a deleted schedule, or an earlier version of a schedule."""

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options
from celery_dynbeat.cli.base.parameter_types import Number


@command("restore", examples=("restore 1234", "restore 1234 --owner user:42 --reason 'ticket 12'"))
@click.argument("change_id", metavar="ID", type=Number(least=1, most=2**63 - 1))
@click.option("--owner", default=None, metavar="OWNER", help="Only an edit of OWNER.")
@actor_options
def restore(invocation: Invocation, *, change_id: int) -> None:
    """Restore a schedule as it was before an edit.

    ID is the id of a `delete`, an `update` or a `restore` in `dynbeat changes`. A deleted schedule
    is created again and planned from now. For an update, the fields that this edit and later edits
    changed get their earlier values. Whether the schedule is paused does not change. The ping URL
    is not restored, because the audit does not contain it.
    """
    info = invocation.calls.restore(change_id)
    owner = f" of owner {info.owner!r}" if info.owner else ""
    text = f"restored schedule {info.name!r}{owner}{invocation.when(info)}"
    invocation.output.done(text, info.to_dict())
