"""``dynbeat list``: pages of schedules, or their number."""

from typing import Any

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import owners_option, page_options
from celery_dynbeat.cli.schedule_columns import SCHEDULES
from celery_dynbeat.client import Page
from celery_dynbeat.common.schedule_states import State


@command(
    "list",
    columns=SCHEDULES,
    examples=(
        "list --owner user:42 --name-prefix rep",
        "list --all-owners --state failing",
        "list --all-owners --order next_run_at --limit 20",
        "list --all-owners --state quarantined --count",
        "list --all-owners --all --json",
    ),
)
@owners_option
@click.option(
    "--state",
    type=click.Choice([each.value for each in State]),
    help="Only schedules in this state. failing: the last ended run failed or was lost.",
)
@click.option("--name-prefix", metavar="TEXT", help="Only names that begin with TEXT.")
@click.option("--task", metavar="TASK", help="Only schedules of this task.")
@click.option("--tag", metavar="TAG", help="Only schedules with this tag.")
@click.option(
    "--order",
    type=click.Choice(["name", "next_run_at"]),
    help="next_run_at leaves out schedules that do not run. Default: name, or for overdue"
    " schedules next_run_at.",
)
@page_options
@click.option("--count", "is_count", is_flag=True, help="Print the number only: 10,000+ for more.")
def list_schedules(invocation: Invocation, *, is_count: bool, **given: Any) -> None:
    """List schedules by name; with --all-owners by owner and name.

    With --count, --json prints one object.
    """
    if is_count:
        _count(invocation, **given)
    else:
        _list(invocation, **given)


def _list(invocation: Invocation, *, after: str | None, all_pages: bool, **filters: Any) -> None:
    schedules, owner = invocation.schedules, invocation.owner

    def fetch(cursor: str | None) -> Page:
        return schedules.list(owner=owner, after=cursor, **filters)

    invocation.show_pages(SCHEDULES, fetch, after=after, all_pages=all_pages)


def _count(invocation: Invocation, **given: Any) -> None:
    filters = {key: given[key] for key in ("state", "name_prefix", "task", "tag")}
    found = invocation.schedules.count(owner=invocation.owner, **filters)
    text = str(found) if invocation.output.on_terminal else str(found).replace(",", "")
    invocation.output.done(text, found.to_dict())
