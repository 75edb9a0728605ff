"""``dynbeat rerun``: run ended runs again, one or many."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from celery_dynbeat.api import BatchResult
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import (
    actor_options,
    now_option,
    owners_option,
    pace_option,
    yes_option,
)
from celery_dynbeat.cli.base.parameter_types import Instant, RunId
from celery_dynbeat.cli.waiting import end_batch, wait_for_run
from celery_dynbeat.common.states import RERUNNABLE, Status
from celery_dynbeat.common.text import counted

DEFAULT_STATUSES = (Status.FAILED.value, Status.LOST.value)


@command(
    "rerun",
    examples=(
        "rerun 01a203ec-f449-7a5a-aa02-b03ca0cb18fc --wait",
        "rerun --since 6h --all-owners --reason 'mail server was down'",
        "rerun --since 2026-11-22T00:00Z --until 2026-11-22T06:00Z --name digest --owner user:42",
    ),
    exit_statuses="0: success. 1: something was not found or was refused, the database reported "
    "an error, or, with --wait, a run did not succeed. 2: the command line is "
    "invalid.",
)
@click.argument("run_id", type=RunId(), required=False)
@owners_option
@click.option(
    "--since", type=Instant(-1), help="Rerun all runs with this fire time or a later one."
)
@click.option("--until", type=Instant(-1), help="Only fire times before this time. Default: now.")
@click.option(
    "--ended-before", type=Instant(-1), help="Only runs that ended before this time. Default: now."
)
@click.option(
    "--status",
    type=click.Choice([each.value for each in RERUNNABLE]),
    multiple=True,
    default=DEFAULT_STATUSES,
    show_default=True,
    help="Only runs with this status. Can be repeated.",
)
@click.option("--name", metavar="NAME", help="Only runs of schedules with this name.")
@click.option("--task", metavar="TASK", help="Only runs of this task.")
@pace_option
@now_option
@click.option("--wait", is_flag=True, help="Wait until the run, or all new runs, have ended.")
@actor_options
@yes_option
def rerun(
    invocation: Invocation,
    *,
    run_id: str | None,
    since: TypedInstant | None,
    now: bool,
    wait: bool,
    **given: Any,
) -> None:
    """Rerun one ended run, or all failed runs with --since.

    --since selects the failed and lost runs whose fire time is at or after the given time. The task
    receives the original fire time. RUN_ID can belong to a run of any owner. Before a rerun of many
    runs, the command asks for confirmation. It prints the id of their batch: `dynbeat runs --batch
    ID` lists the runs, and `dynbeat cancel --batch ID` cancels those that have not started. One
    call records at most 10,000 runs.
    """
    if (run_id is None) == (since is None):
        raise click.UsageError("give either RUN_ID or --since", invocation.context)
    if run_id is not None:
        _rerun_one(invocation, run_id, now=now, wait=wait)
    elif since is not None:
        _rerun_many(invocation, since, now=now, wait=wait, **given)


def _rerun_one(invocation: Invocation, run_id: str, *, now: bool, wait: bool) -> None:
    made = invocation.run_calls.rerun(run_id, now=now)
    if wait:
        wait_for_run(invocation, made.id)
    text = f"recorded run {made.id} of schedule {made.name!r}; beat sends it"
    invocation.output.done(text, made.to_dict())


def _rerun_many(
    invocation: Invocation,
    since: TypedInstant,
    *,
    until: TypedInstant | None,
    ended_before: TypedInstant | None,
    status: Sequence[str],
    name: str | None,
    task: str | None,
    per_minute: int,
    now: bool,
    wait: bool,
) -> None:
    start = invocation.instant(since)
    assert start is not None  # noqa: S101 - since is not None
    end, ended = invocation.instant(until), invocation.instant(ended_before) or invocation.now
    whose = "all owners" if invocation.owner is None else f"owner {invocation.owner!r}"
    which = (f" of schedule {name!r}" if name else "") + (f" of task {task!r}" if task else "")
    rerun_many = partial(
        type(invocation.calls).rerun_many,
        since=start,
        until=end,
        ended_before=ended,
        status=tuple(status),
        name=name,
        task=task,
        per_minute=per_minute,
        now=now,
    )
    if not invocation.yes:
        found = _result(invocation, rerun_many)
        count, least = found.created, "" if found.left_since is None else "at least "
        runs = counted(count, f"{' or '.join(status)} run")
        which = f"{least}{runs}{which} of {whose} since {invocation.time(start)}"
        if not count and invocation.can_ask:
            invocation.output.done(f"nothing to run again: {which}", {"created": 0})
            return
        invocation.confirm(f"Run {which} again?")
    # A repeated command with these options repeats no rerun that has failed meanwhile.
    repeat = f" --ended-before {ended.isoformat()}"
    if end is not None:
        repeat += f" --until {end.isoformat()}"
    end_batch(invocation, rerun_many(invocation.calls), wait=wait, repeat=repeat)


def _result(invocation: Invocation, rerun_many: Callable[..., BatchResult]) -> BatchResult:
    """Return the result of the call without recording the runs."""
    from sqlalchemy.orm import Session  # noqa: PLC0415

    # The end of the session rolls the call back.
    with Session(invocation.dynbeat.context.database.engine) as session:
        return rerun_many(invocation.calls.bound(session=session))
