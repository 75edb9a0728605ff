"""``dynbeat delete``: delete a schedule, or all of an owner."""

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options, yes_option
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.common.text import counted


@command(
    "delete",
    examples=(
        "delete digest --yes",
        "delete --all-of-owner --owner user:42",
        "delete --all-of-owner --owner user:42 --erase-history --reason 'account closed'",
    ),
)
@click.argument("name", required=False)
@click.option("--all-of-owner", is_flag=True, help="All schedules and holds of the owner.")
@click.option(
    "--erase-history", is_flag=True, help="With --all-of-owner: also its runs and its changes."
)
@edit_options
@yes_option
def delete(
    invocation: Invocation, *, name: str | None, all_of_owner: bool, erase_history: bool
) -> None:
    """Delete a schedule, and revoke its runs that have not started. Its history stays.

    The command asks for a confirmation. --erase-history deletes in batches. If it is interrupted,
    repeat it.
    """
    if (name is None) != all_of_owner:
        raise click.UsageError("give either the NAME of a schedule or --all-of-owner")
    if name is None:
        _delete_all(invocation, erase_history=erase_history)
        return
    if erase_history:
        raise click.UsageError("--erase-history needs --all-of-owner")
    mine = invocation.mine
    mine.get(name)
    invocation.confirm(f"Delete {invocation.label(name)}?")
    mine.delete(name)
    invocation.output.done(f"deleted {invocation.label(name)}", {"ok": True, "deleted": 1})


def _delete_all(invocation: Invocation, *, erase_history: bool) -> None:
    if not invocation.owner_given:
        raise click.UsageError("--all-of-owner needs --owner; '' is the application itself")
    owner = invocation.owner or ""
    history = " and their history" if erase_history else ""
    invocation.confirm(f"Delete all schedules of owner {owner!r}{history}?")
    with progress("rows deleted") as advance:
        deleted = invocation.schedules.delete_owner(
            owner, erase_history=erase_history, progress=advance
        )
    text = f"deleted {counted(deleted, 'schedule')} of owner {owner!r}{history}"
    invocation.output.done(text, {"ok": True, "deleted": deleted})
