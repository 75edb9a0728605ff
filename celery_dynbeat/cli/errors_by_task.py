"""``dynbeat errors``: the failed runs by task and error."""

from typing import TYPE_CHECKING

import click

from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.columns import Column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import complete_owners
from celery_dynbeat.cli.base.parameter_types import Instant

if TYPE_CHECKING:
    from celery_dynbeat.insights.statistics.failures import FailureGroup


def _names(group: "FailureGroup") -> str:
    """Return some of the schedules: ``user:7/digest, user:8/digest and 40 more``."""
    more = group.schedules - len(group.names)
    return ", ".join(group.names) + (f" and {more:,} more" if more else "")


COLUMNS = (
    Column("count", width=6),
    Column("task", width=16),
    Column("error", width=24),
    Column("names", _names, width=16),
    Column("schedules", width=9, optional=True),
    Column("owners", width=6, optional=True),
    time_column("first_at"),
    time_column("last_at"),
)


@command(
    "errors",
    columns=COLUMNS,
    examples=("errors --all-owners", "errors --since 1h --owner user:42"),
)
@click.option(
    "--owner",
    default=None,
    shell_complete=complete_owners,
    metavar="OWNER",
    help="Only runs of OWNER. Default: all owners.",
)
@click.option("--all-owners", is_flag=True, help="Runs of all owners, which is the default.")
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

    The most frequent error comes first. Errors whose first lines differ only in numbers, UUIDs and
    hexadecimal ids are counted together. A run whose rerun has succeeded is not counted. first_at
    and last_at are fire times within the searched time. The command searches at most the newest
    10,000 runs, and prints a note if there may be more.
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
