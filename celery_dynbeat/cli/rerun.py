"""``dynbeat rerun``: run ended runs again, one or many."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import click

from celery_dynbeat.cli.base.columns import Column, owner_column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options, owners_option, yes_option
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.cli.base.parameter_types import Instant, Number, RunId
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.cli.waiting import POLL_SECONDS, wait_for_run
from celery_dynbeat.client import Page, RerunInfo, RunInfo
from celery_dynbeat.client.typed_text import TypedInstant
from celery_dynbeat.common.limits import MAX_PAGE_SIZE, MAX_RERUN_BATCH
from celery_dynbeat.common.run_states import RERUNNABLE, UNFINISHED, Origin, Status
from celery_dynbeat.common.text import counted
from celery_dynbeat.planning.plan import MICROSECOND

DEFAULT_STATUSES = (Status.FAILED.value, Status.LOST.value)
COLUMNS = (
    Column("id", width=4),
    owner_column(),
    Column("name", width=10, optional=True),
    Column("statuses", lambda row: list(row.statuses), width=12),
    time_column("since"),
    time_column("until", optional=True),
    Column("total", width=5),
    Column("made", width=5),
    Column("left_out", width=8),
    Column("status", width=9),
    Column("task", width=10, optional=True),
)


@command(
    "rerun",
    columns=COLUMNS,
    examples=(
        "rerun 01a203ec-f449-7a5a-aa02-b03ca0cb18fc --wait",
        "rerun --since 6h --all-owners --reason 'mail server was down'",
        "rerun --since 2026-11-22T00:00Z --until 2026-11-22T06:00Z --name digest --owner user:42",
        "rerun --list --all-owners",
        "rerun --cancel 12 --all-owners",
    ),
    exit_statuses="0: done. 1: not found or refused, an error of the database, or with --wait: a"
    " run did not succeed. 2: a wrong command line.",
)
@click.argument("run_id", type=RunId(), required=False)
@owners_option
@click.option("--since", type=Instant(-1), help="All runs with a fire time from then on.")
@click.option("--until", type=Instant(-1), help="Only fire times until then. Default: now.")
@click.option(
    "--status",
    type=click.Choice([each.value for each in RERUNNABLE]),
    multiple=True,
    default=DEFAULT_STATUSES,
    show_default=True,
    help="Only runs with this status. Repeatable.",
)
@click.option("--name", metavar="NAME", help="Only runs of the schedules of this name.")
@click.option("--task", metavar="TASK", help="Only runs that had this task.")
@click.option(
    "--batch-size",
    type=Number(least=1, most=MAX_RERUN_BATCH),
    default=100,
    show_default=True,
    help="At most this number of the new runs are unfinished at any time.",
)
@click.option("--wait", is_flag=True, help="Wait until the run has ended, or all new runs.")
@click.option("--list", "is_list", is_flag=True, help="List the requests, the newest first.")
@click.option(
    "--cancel",
    type=Number(least=1, most=2**63 - 1),
    metavar="ID",
    help="Cancel a request, and revoke its new runs that have not started.",
)
@actor_options
@yes_option
def rerun(
    invocation: Invocation,
    *,
    run_id: str | None,
    since: TypedInstant | None,
    is_list: bool,
    cancel: int | None,
    wait: bool,
    **given: Any,
) -> None:
    """Run an ended run again, or with --since all failed ones.

    --since selects the failed and lost runs from then on. The task receives the original fire time.
    A run id selects a run of any owner. Many runs are made by beat in the background, while no
    schedule is due; the command asks first. The columns of piped output are those of --list.
    """
    chosen = (run_id is not None, since is not None, is_list, cancel is not None)
    if chosen.count(True) != 1:
        raise click.UsageError(
            "give one of RUN_ID, --since, --list and --cancel", invocation.context
        )
    if run_id is not None:
        _rerun_one(invocation, run_id, wait=wait)
    elif since is not None:
        _rerun_many(invocation, since, wait=wait, **given)
    elif cancel is not None:
        info = invocation.calls.cancel_rerun(cancel)
        invocation.output.done(f"cancelled rerun {_words(info)}", info.to_dict())
    else:
        invocation.show(COLUMNS, invocation.calls.reruns(limit=MAX_PAGE_SIZE))


def _rerun_one(invocation: Invocation, run_id: str, *, wait: bool) -> None:
    made = invocation.run_calls.rerun(run_id)
    if wait:
        wait_for_run(invocation, made.id)
    text = f"recorded run {made.id} of schedule {made.name!r}; beat sends it"
    invocation.output.done(text, made.to_dict())


def _rerun_many(
    invocation: Invocation,
    since: TypedInstant,
    *,
    until: TypedInstant | None,
    status: Sequence[str],
    name: str | None,
    task: str | None,
    batch_size: int,
    wait: bool,
) -> None:
    start = invocation.instant(since)
    assert start is not None  # noqa: S101 - since is not None
    whose = "all owners" if invocation.owner is None else f"owner {invocation.owner!r}"
    which = (f" of schedule {name!r}" if name else "") + (f" of task {task!r}" if task else "")
    request = partial(
        invocation.calls.rerun_many,
        since=start,
        until=invocation.instant(until),
        status=tuple(status),
        name=name,
        task=task,
        batch_size=batch_size,
    )
    if not invocation.yes:
        count = _count(invocation, request)
        runs = counted(count, f"{' or '.join(status)} run")
        found = f"{runs}{which} of {whose} since {invocation.time(start)}"
        if not count and invocation.can_ask:
            invocation.output.done(f"nothing to run again: {found}", {"total": 0})
            return
        invocation.confirm(f"Run {found} again?")
    info = request()
    if not wait:
        invocation.output.done(f"rerun {_words(info)}", info.to_dict())
        return
    info, ended = _wait(invocation, info)
    others = ended.total() - info.made
    if others > 0:
        runs = counted(others, "run")
        invocation.output.note(f"among them: {runs} that other requests made at the same time")
    counts = ", ".join(f"{number} {status}" for status, number in ended.most_common())
    invocation.output.done(
        f"rerun {_words(info)}; of the new runs: {counts or 'none'}",
        {**info.to_dict(), "ended": dict(ended)},
    )
    invocation.context.exit(0 if set(ended) <= {Status.SUCCEEDED} else 1)


def _count(invocation: Invocation, request: Callable[..., RerunInfo]) -> int:
    """Return the number of runs that the request would run again, without making it."""
    from sqlalchemy.orm import Session  # noqa: PLC0415

    # The end of the session rolls the request back.
    with Session(invocation.dynbeat.context.database.engine) as session:
        return request(session=session).total


def _wait(invocation: Invocation, info: RerunInfo) -> tuple[RerunInfo, Counter[str]]:
    """Return when all runs are made and have ended, with the numbers of their statuses."""
    try:
        with progress("runs made") as advance:
            while info.status == "running":
                advance(info.made + info.left_out, info.total)
                time.sleep(POLL_SECONDS)
                info = invocation.calls.get_rerun(info.id)
        with progress("runs ended") as advance:
            while unfinished := sum(1 for _ in _new_runs(invocation, info, status=UNFINISHED)):
                advance(info.made - unfinished, info.made)
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        invocation.output.note(f"rerun {info.id} continues; --cancel {info.id} ends it")
        raise
    return info, Counter(run.status for run in _new_runs(invocation, info))


def _new_runs(
    invocation: Invocation, info: RerunInfo, *, status: Collection[str] | None = None
) -> Iterator[RunInfo]:
    """Yield the runs that the ended request has made.

    These are the reruns of its span that were made from the request to its end. So they can include
    those of other requests at the same time: a run does not say which request has made it.
    """

    def fetch(cursor: str | None) -> Page[RunInfo]:
        return invocation.calls.runs(
            origin=Origin.RERUN.value,
            status=status,
            task=info.task,
            since=info.since,
            # A rerun is some microseconds after its original.
            until=info.until + timedelta(seconds=1),
            limit=MAX_PAGE_SIZE,
            after=cursor,
        )

    # Beat makes no run at the instant of the request or before.
    last = max(info.finished_at or info.created_at, info.created_at + MICROSECOND)
    for page in pages(fetch, after=None):
        for run in page.items:
            is_of_then = info.created_at <= run.created_at <= last
            if is_of_then and info.name in {None, run.name}:
                yield run


def _words(info: RerunInfo) -> str:
    return (
        f"{info.id}: {info.status}, {info.made} of {info.total} runs made, {info.left_out} left out"
    )
