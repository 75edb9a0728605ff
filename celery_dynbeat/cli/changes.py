"""``dynbeat changes``: the audit."""

from typing import Any

import click

from celery_dynbeat.api import ChangeInfo, Page
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.columns import Column, owner_column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import complete_names, owners_option, page_options
from celery_dynbeat.cli.base.parameter_types import Instant
from celery_dynbeat.common.states import Action

COLUMNS = (
    time_column("changed_at"),
    owner_column(),
    Column("name", width=12),
    Column("action", width=10),
    Column("actor", width=8),
    Column("reason", width=12, optional=True),
    Column("changed", lambda each: each.text, width=20, optional=True),
)


@command(
    "changes",
    columns=COLUMNS,
    examples=(
        "changes digest --owner user:42",
        "changes --all-owners --actor alice --since 1d --json",
        "changes --owner org:7/ --since 1d",
        "changes --all-owners --action hold",
    ),
)
@click.argument("name", required=False, shell_complete=complete_names)
@owners_option
@click.option("--actor", "by", metavar="NAME", help="Only edits by this actor.")
@click.option(
    "--action",
    type=click.Choice([each.value for each in Action]),
    help="Only edits with this action.",
)
@click.option("--since", type=Instant(-1), help="Only edits since this time, such as 2h (ago).")
@click.option("--until", type=Instant(-1), help="Only edits before this time.")
@page_options
def changes(
    invocation: Invocation,
    *,
    name: str | None,
    by: str | None,
    since: TypedInstant | None,
    until: TypedInstant | None,
    after: str | None,
    all_pages: bool,
    **filters: Any,
) -> None:
    """List who changed what and why, newest first.

    If you pass NAME, the command lists the edits of one schedule. --json contains the values before
    and after the edit, with the keys of `dynbeat show --json`. If an edit concerns all owners, its
    owner is * in piped output and null in --json. If it concerns one owner as a whole, its name is
    empty.
    """
    if name is not None and invocation.owner is None:
        raise click.UsageError("NAME and --all-owners cannot be combined", invocation.context)
    filters |= {
        "actor": by,
        "since": invocation.instant(since),
        "until": invocation.instant(until),
    }

    def fetch(cursor: str | None) -> Page[ChangeInfo]:
        return invocation.calls.changes(name, after=cursor, **filters)

    invocation.show_pages(COLUMNS, fetch, after=after, all_pages=all_pages, name=name)
