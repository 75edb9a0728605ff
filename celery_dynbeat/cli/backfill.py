"""``dynbeat backfill``: run past fire times of a schedule."""

import click

from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options, name_argument, now_option
from celery_dynbeat.cli.base.parameter_types import Instant, Number
from celery_dynbeat.cli.waiting import end_request
from celery_dynbeat.common.text import MAX_REQUEST_BATCH


@command(
    "backfill",
    examples=(
        "backfill digest --owner user:42 --since 6h",
        "backfill digest --since 2026-11-22T00:00Z --until 2026-11-22T06:00Z --wait",
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
@click.option(
    "--batch-size",
    type=Number(least=1, most=MAX_REQUEST_BATCH),
    default=100,
    show_default=True,
    help="The maximum number of unfinished runs at any time.",
)
@now_option
@edit_options
@click.option("--wait", is_flag=True, help="Wait until all runs have ended.")
def backfill(
    invocation: Invocation,
    *,
    name: str,
    since: TypedInstant,
    until: TypedInstant | None,
    batch_size: int,
    now: bool,
    wait: bool,
) -> None:
    """Run a schedule for its past fire times that have no run.

    Beat creates the runs while no schedule is due, starting with the oldest fire time. `dynbeat
    requests` shows the progress.
    """
    first = invocation.instant(since)
    assert first is not None  # noqa: S101 - --since is required
    info = invocation.mine.backfill(
        name,
        since=first,
        until=invocation.instant(until) or invocation.now,
        batch_size=batch_size,
        now=now,
    )
    end_request(invocation, info, wait=wait)
