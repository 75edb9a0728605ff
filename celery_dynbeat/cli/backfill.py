"""``dynbeat backfill``: run past fire times of a schedule."""

import click

from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options, name_argument, now_option, pace_option
from celery_dynbeat.cli.base.parameter_types import Instant
from celery_dynbeat.cli.waiting import end_batch


@command(
    "backfill",
    examples=(
        "backfill digest --owner user:42 --since 6h",
        "backfill digest --since 2026-11-23T00:00Z --until 2026-11-23T06:00Z --wait",
    ),
    exit_statuses="0: success. 1: something was not found or was refused, the database reported "
    "an error, or, with --wait, a run did not succeed. 2: the command line is "
    "invalid.",
)
@name_argument
@click.option(
    "--since", type=Instant(-1), required=True, help="The start of the span of fire times."
)
@click.option("--until", type=Instant(-1), help="Only fire times before this time. Default: now.")
@pace_option
@now_option
@edit_options
@click.option("--wait", is_flag=True, help="Wait until all runs have ended.")
def backfill(
    invocation: Invocation,
    *,
    name: str,
    since: TypedInstant,
    until: TypedInstant | None,
    per_minute: int,
    now: bool,
    wait: bool,
) -> None:
    """Run a schedule for its past fire times that have no run.

    Beat sends the runs at the given pace, starting with the oldest fire time. The command prints
    the id of their batch: `dynbeat runs --batch ID` lists the runs, and `dynbeat cancel --batch ID`
    cancels those that have not started. One call records at most 10,000 runs.
    """
    first = invocation.instant(since)
    assert first is not None  # noqa: S101 - --since is required
    result = invocation.mine.backfill(
        name,
        since=first,
        until=invocation.instant(until) or invocation.now,
        per_minute=per_minute,
        now=now,
    )
    end_batch(invocation, result, wait=wait)
