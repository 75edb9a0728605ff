"""``dynbeat requests``: list, show and cancel backfills and reruns of many."""

from typing import Any

import click

from celery_dynbeat.api import Page, RequestInfo
from celery_dynbeat.cli.base.columns import Column, owner_column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options, owners_option, page_options
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.cli.waiting import request_words
from celery_dynbeat.common.states import RequestKind

COLUMNS = (
    Column("id", width=4),
    Column("kind", width=8),
    owner_column(),
    Column("name", width=10, optional=True),
    time_column("since"),
    time_column("until", optional=True),
    Column("total", width=5),
    Column("created", width=7),
    Column("excluded", width=8),
    Column("waiting", width=7),
    Column("status", width=9),
    Column("statuses", lambda row: list(row.statuses), width=12, optional=True),
    Column("task", width=10, optional=True),
)


@command(
    "requests",
    columns=COLUMNS,
    examples=(
        "requests",
        "requests 12 --json",
        "requests 12 --cancel --reason 'wrong span'",
    ),
)
@click.argument("request_id", type=Number(least=1, most=2**63 - 1), required=False)
@owners_option
@click.option(
    "--kind",
    type=click.Choice([each.value for each in RequestKind]),
    help="Only requests of this kind.",
)
@click.option(
    "--cancel", is_flag=True, help="Cancel the request, and revoke its runs that have not started."
)
@page_options
@actor_options
def requests(
    invocation: Invocation,
    *,
    request_id: int | None,
    cancel: bool,
    after: str | None,
    all_pages: bool,
    **filters: Any,
) -> None:
    """List backfills and reruns of many runs, newest first.

    `dynbeat backfill` and `dynbeat rerun --since` create these requests. If you pass REQUEST_ID,
    the command shows that request, or cancels it with --cancel. Without --owner, requests of all
    owners are listed. Runs that have already started continue.
    """
    if not invocation.owner_given:
        invocation.owner = None
    if request_id is None:
        if cancel:
            raise click.UsageError("--cancel needs REQUEST_ID", invocation.context)

        def fetch(cursor: str | None) -> Page[RequestInfo]:
            return invocation.calls.requests(after=cursor, **filters)

        invocation.show_pages(COLUMNS, fetch, after=after, all_pages=all_pages)
    elif cancel:
        info = invocation.calls.cancel_request(request_id)
        # A request that had ended, and has no run to revoke, stays finished.
        done = "cancelled" if info.status == "cancelled" else "ended already:"
        invocation.output.done(f"{done} {request_words(info)}", info.to_dict())
    else:
        invocation.show(COLUMNS, [invocation.calls.get_request(request_id)])
