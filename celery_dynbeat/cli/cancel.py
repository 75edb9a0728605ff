"""``dynbeat cancel``: cancel runs that have not started."""

from collections.abc import Sequence
from typing import Any

import click

from celery_dynbeat.api import BoundedCount
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options, owners_option, yes_option
from celery_dynbeat.cli.base.parameter_types import BatchId, Instant, Number, RunId
from celery_dynbeat.common.states import REVOKE, Origin
from celery_dynbeat.common.text import MAX_CANCELLED, counted, described_owner


@command(
    "cancel",
    examples=(
        "cancel 01a203ec-f449-7a5a-aa02-b03ca0cb18fc",
        "cancel --batch 01a203ec-f449-7a5a-aa02-b03ca0cb18fc --owner user:42",
        "cancel --all --name digest --owner user:42 --reason 'wrong template'",
        "cancel --all --all-owners --task mail.send --since 2h --yes",
    ),
)
@click.argument("run_ids", type=RunId(), nargs=-1, metavar="[RUN_ID]...")
@click.option("--all", "is_all", is_flag=True, help="Cancel all runs that match the options below.")
@owners_option
@click.option(
    "--status",
    type=click.Choice([each.value for each in REVOKE.sources]),
    multiple=True,
    help="Only runs with this status. Can be repeated. Default: all three.",
)
@click.option("--name", metavar="NAME", help="Only runs of schedules with this name.")
@click.option("--task", metavar="TASK", help="Only runs of this task.")
@click.option(
    "--origin",
    type=click.Choice([each.value for each in Origin]),
    help="Only runs with this origin.",
)
@click.option(
    "--batch",
    "batch_id",
    type=BatchId(),
    help="Cancel the runs of this batch that match the other options.",
)
@click.option(
    "--since", type=Instant(-1), help="Only fire times since this time, such as 2h (ago)."
)
@click.option("--until", type=Instant(-1), help="Only fire times before this time.")
@click.option(
    "--limit",
    type=Number(least=1, most=MAX_CANCELLED),
    default=10_000,
    show_default=True,
    help="The maximum number of runs to cancel.",
)
@actor_options
@yes_option
def cancel(invocation: Invocation, *, run_ids: Sequence[str], is_all: bool, **filters: Any) -> None:
    """Cancel runs that have not started or that wait for a retry.

    Pass the ids of runs, --batch or --all. A worker drops the message of a cancelled run. The
    command does not stop a running task; for this, use Celery's `revoke` with terminate. If you
    pass --batch or --all, the command prints how many runs match and asks for confirmation.
    """
    if filters["batch_id"] is not None:
        is_all = True
        if not invocation.owner_given:
            # The id of a batch is unique.
            invocation.owner = None
    if bool(run_ids) == is_all:
        raise click.UsageError("give either RUN_ID, --batch or --all", invocation.context)
    if is_all:
        _cancel_all(invocation, **filters)
        return
    for run_id in run_ids:
        run = invocation.run_calls.cancel_run(run_id)
        invocation.output.done(f"cancelled run {run.id} of schedule {run.name!r}", run.to_dict())


def _cancel_all(
    invocation: Invocation, *, status: Sequence[str], limit: int, **filters: Any
) -> None:
    filters |= {name: invocation.instant(filters[name]) for name in ("since", "until")}
    owner = invocation.owner
    whose = "all owners" if owner is None else described_owner(owner)
    given = [f"{name} {value}" for name, value in filters.items() if value is not None]
    words = f" with {', '.join(given)}" if given else ""
    statuses = tuple(status) or REVOKE.sources
    if not invocation.yes:
        found = _count(invocation, status=statuses, **filters)
        runs = f"{found} {', '.join(statuses)} {'run' if str(found) == '1' else 'runs'}"
        if not found.count and found.exact and invocation.can_ask:
            invocation.output.done(f"nothing to cancel: {runs} of {whose}{words}", _done(0))
            return
        most = f", at most {limit:,} of them" if not found.exact or found.count > limit else ""
        invocation.confirm(f"Cancel {runs} of {whose}{words}{most}?")
    number = invocation.calls.cancel_runs(status=statuses, limit=limit, **filters)
    more = "; more may match: repeat the command" if number == limit else ""
    invocation.output.done(f"cancelled {counted(number, 'run')}{more}", _done(number))


def _done(number: int) -> dict[str, Any]:
    return {"ok": True, "cancelled": number}


def _count(invocation: Invocation, **filters: Any) -> BoundedCount:
    """Return the number of runs that a cancel would change, up to 10,000."""
    from celery_dynbeat.api.control import cancelling  # noqa: PLC0415 - the database
    from celery_dynbeat.api.lists import history  # noqa: PLC0415 - the database

    matching = cancelling.filter_of(owner=invocation.owner, **filters)
    return history.count(invocation.dynbeat.context, None, matching=matching)
