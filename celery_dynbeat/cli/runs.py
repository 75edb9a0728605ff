"""``dynbeat runs|show-run``: the history."""

from collections.abc import Sequence
from typing import Any

import click

from celery_dynbeat.api import Page, RunInfo
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import complete_names, owners_option, page_options
from celery_dynbeat.cli.base.parameter_types import BatchId, Instant, RunId
from celery_dynbeat.cli.schedule_columns import RUNS
from celery_dynbeat.common.states import Origin, Status

# Of an enum, click would offer the names of the members.
#: These follow the record, line by line.
_TEXTS = ("earlier_errors", "traceback")
STATUSES = [each.value for each in Status]


@command(
    "runs",
    columns=RUNS,
    examples=(
        "runs --status failed --status lost --since 1d --all-owners",
        "runs --batch 01a203ec-f449-7a5a-aa02-b03ca0cb18fc --status failed",
        "runs digest --owner user:42 --all --json",
    ),
)
@click.argument("name", required=False, shell_complete=complete_names)
@owners_option
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    multiple=True,
    help="Only runs with this status. Can be repeated.",
)
@click.option("--task", metavar="TASK", help="Only runs of this task.")
@click.option(
    "--origin",
    type=click.Choice([each.value for each in Origin]),
    help="Only runs with this origin.",
)
@click.option("--batch", "batch_id", type=BatchId(), help="Only runs of this batch.")
@click.option(
    "--since", type=Instant(-1), help="Only fire times since this time, such as 2h (ago)."
)
@click.option("--until", type=Instant(-1), help="Only fire times before this time.")
@page_options
def runs(
    invocation: Invocation,
    *,
    name: str | None,
    status: Sequence[str],
    since: TypedInstant | None,
    until: TypedInstant | None,
    after: str | None,
    all_pages: bool,
    **filters: Any,
) -> None:
    """List runs, newest fire time first. `dynbeat show-run` shows one run.

    If you pass NAME, the command lists the runs of one schedule. If you pass --all-owners, the run
    that was created last comes first.
    """
    if filters["batch_id"] is not None and not invocation.owner_given:
        # The id of a batch is unique.
        invocation.owner = None
    if name is not None and invocation.owner is None:
        raise click.UsageError("NAME and --all-owners cannot be combined", invocation.context)
    filters |= {
        "status": status or None,
        "since": invocation.instant(since),
        "until": invocation.instant(until),
    }

    def fetch(cursor: str | None) -> Page[RunInfo]:
        return invocation.calls.runs(name, after=cursor, **filters)

    invocation.show_pages(RUNS, fetch, after=after, all_pages=all_pages, name=name)


@command(
    "show-run",
    examples=(
        "show-run 01a203ec-f449-7a5a-aa02-b03ca0cb18fc",
        "show-run 01a203ec-f449-7a5a-aa02-b03ca0cb18fc --owner user:42 --json",
    ),
)
@click.argument("run_id", type=RunId())
@click.option("--owner", default=None, metavar="OWNER", help="Only a run of OWNER.")
def show_run(invocation: Invocation, *, run_id: str) -> None:
    """Show one run, with its errors and its traceback."""
    as_dict = (run := invocation.calls.get_run(run_id)).to_dict()
    values = {key: getattr(run, key) for key in as_dict if key not in _TEXTS}
    shown = {key: value for key, value in values.items() if value is not None}
    output = invocation.output
    output.record(shown, zone=invocation.zone, now=invocation.now, as_dict=as_dict)
    if not output.as_json:
        for error in run.earlier_errors:
            output.line(error)
    if run.traceback and not output.as_json:
        for line in run.traceback.splitlines():
            output.line(line)
