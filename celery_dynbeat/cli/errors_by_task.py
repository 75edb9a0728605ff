"""``dynbeat errors``: the failed runs by task and error."""

import click

from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.columns import Column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import complete_owners
from celery_dynbeat.cli.base.parameter_types import Instant

COLUMNS = (
    Column("count", width=6),
    Column("task", width=16),
    Column("error", width=24),
    Column("schedules", width=9),
    Column("owners", width=6),
    time_column("first_at", optional=True),
    time_column("last_at"),
)


@command("errors", columns=COLUMNS, examples=("errors", "errors --since 1h --owner user:42"))
@click.option(
    "--owner",
    default=None,
    shell_complete=complete_owners,
    metavar="OWNER",
    help="Only runs of OWNER, or of a group such as org:7/. Default: all owners.",
)
@click.option("--task", metavar="TASK", help="Only runs of this task.")
@click.option(
    "--since",
    type=Instant(-1),
    default="24h",
    show_default=True,
    help="Only fire times since this time, such as 2h (ago).",
)
@click.option("--until", type=Instant(-1), help="Only fire times before this time.")
def errors(
    invocation: Invocation, *, task: str | None, since: TypedInstant, until: TypedInstant | None
) -> None:
    """Count the failed and lost runs by task and error.

    The most frequent error comes first. Errors whose first lines differ only in numbers are counted
    together. The command searches at most the newest 10,000 runs, and prints a note if there may be
    more. The owners of a group have equal shares of this number, for at most 200 owners.
    """
    # The help of the command imports no database.
    from celery_dynbeat.insights.statistics.failures import failures  # noqa: PLC0415

    found = failures(
        invocation.dynbeat.context,
        owner=invocation.owner,
        task=task,
        since=invocation.instant(since) or invocation.now,
        until=invocation.instant(until),
    )
    invocation.show(COLUMNS, found.groups)
    if not found.exact:
        invocation.output.note("there may be more: only the newest 10,000 runs were searched")
