"""``dynbeat delete``: delete a schedule, all of an owner, or all that match a filter."""

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options, complete_names, owners_option, yes_option
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.cli.bulk import FILTER_OPTIONS, edit_many, filter_options, given_filters
from celery_dynbeat.common.text import counted, described_owner


@command(
    "delete",
    examples=(
        "delete digest --yes",
        "delete --all-of-owner --owner user:42",
        "delete --tag import:django-celery-beat --all-owners",
        "delete --state finished --name-prefix trial- --owner user:42",
        "delete --all-of-owner --owner user:42 --erase-history --reason 'account closed'",
    ),
)
@click.argument("name", required=False, shell_complete=complete_names)
@click.option(
    "--all-of-owner",
    is_flag=True,
    help="Delete all schedules, holds and quiet hours of the owner.",
)
@filter_options
@click.option(
    "--erase-history",
    is_flag=True,
    help="With --all-of-owner, also delete the runs and changes of the owner.",
)
@owners_option
@actor_options
@yes_option
def delete(
    invocation: Invocation,
    *,
    name: str | None,
    all_of_owner: bool,
    erase_history: bool,
    **filters: str | None,
) -> None:
    """Delete a schedule, and revoke its runs that have not started. Its history is kept.

    If you pass --state, --tag, --task, --name-prefix or --owner-prefix, the command deletes all
    matching schedules, after asking for confirmation. With these options, and with
    --erase-history, it commits each batch separately. If the command is interrupted, repeat it.
    """
    matching = given_filters(filters)
    if [name is None, not all_of_owner, not matching].count(False) != 1:
        msg = f"give either the NAME of a schedule, --all-of-owner or a filter: {FILTER_OPTIONS}"
        raise click.UsageError(msg)
    if erase_history and not all_of_owner:
        raise click.UsageError("--erase-history needs --all-of-owner")
    if matching:
        edit_many(invocation, "delete", invocation.calls.delete_many, matching)
        return
    if invocation.all_owners:
        raise click.UsageError(f"--all-owners needs a filter: {FILTER_OPTIONS}")
    if name is None:
        _delete_all(invocation, erase_history=erase_history)
        return
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
    text = f"deleted {counted(deleted, 'schedule')} of {described_owner(owner)}{history}"
    invocation.output.done(text, {"ok": True, "deleted": deleted})
