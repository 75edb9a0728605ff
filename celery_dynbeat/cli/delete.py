"""``dynbeat delete``: delete a schedule, all of an owner, or all with a tag."""

from contextlib import suppress

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options, complete_names, owners_option, yes_option
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.common.errors import ScheduleNotFoundError
from celery_dynbeat.common.text import counted


@command(
    "delete",
    examples=(
        "delete digest --yes",
        "delete --all-of-owner --owner user:42",
        "delete --tag import:django-celery-beat --all-owners",
        "delete --all-of-owner --owner user:42 --erase-history --reason 'account closed'",
    ),
)
@click.argument("name", required=False, shell_complete=complete_names)
@click.option("--all-of-owner", is_flag=True, help="All schedules and holds of the owner.")
@click.option("--tag", metavar="TAG", help="All schedules with this tag.")
@click.option(
    "--erase-history", is_flag=True, help="With --all-of-owner: also its runs and its changes."
)
@owners_option
@actor_options
@yes_option
def delete(
    invocation: Invocation,
    *,
    name: str | None,
    all_of_owner: bool,
    tag: str | None,
    erase_history: bool,
) -> None:
    """Delete a schedule, and revoke its runs that have not started. Its history stays.

    The command asks for a confirmation. --tag commits after each schedule, --erase-history after
    each batch. If the command is interrupted, repeat it.
    """
    if [name is None, not all_of_owner, tag is None].count(False) != 1:
        raise click.UsageError("give either the NAME of a schedule, --all-of-owner or --tag")
    if erase_history and not all_of_owner:
        raise click.UsageError("--erase-history needs --all-of-owner")
    if tag is not None:
        _delete_tagged(invocation, tag)
        return
    if invocation.all_owners:
        raise click.UsageError("--all-owners needs --tag")
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
    text = f"deleted {counted(deleted, 'schedule')} of owner {owner!r}{history}"
    invocation.output.done(text, {"ok": True, "deleted": deleted})


def _delete_tagged(invocation: Invocation, tag: str) -> None:
    schedules, owner = invocation.schedules, invocation.owner
    whose = "all owners" if owner is None else f"owner {owner!r}"
    found = schedules.count(owner=owner, tag=tag)
    noun = "schedule" if found.exact and found.count == 1 else "schedules"
    if found.count:
        invocation.confirm(f"Delete {found} {noun} with the tag {tag!r} of {whose}?")
    deleted = 0
    with progress("schedules deleted") as advance:
        for page in pages(lambda after: schedules.list(owner=owner, tag=tag, after=after)):
            for each in page.items:
                # Another process may have deleted it.
                with suppress(ScheduleNotFoundError):
                    schedules.for_owner(each.owner).delete(each.name)
                    deleted += 1
            advance(deleted)
    text = f"deleted {counted(deleted, 'schedule')} with the tag {tag!r} of {whose}"
    invocation.output.done(text, {"ok": True, "deleted": deleted})
