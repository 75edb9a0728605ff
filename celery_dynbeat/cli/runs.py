"""``dynbeat run|rerun|cancel|runs``: make runs, end them, and list them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from celery_dynbeat.api import OwnerSchedules, Schedules
from celery_dynbeat.api.results import BatchInfo, RunInfo
from celery_dynbeat.cli.base.cells import Column, owner_column, state_style, time_column
from celery_dynbeat.cli.base.invocation import Invocation, all_of, command, progress, tried
from celery_dynbeat.cli.base.parameters import (
    ACTOR,
    EDIT,
    NAME,
    OWNERS,
    PACE,
    PAGE,
    RUN_ID,
    YES,
    argument,
    filter_options,
    flag,
    number_option,
    option,
    time_option,
)
from celery_dynbeat.common.errors import NotFoundError
from celery_dynbeat.common.filters import RunFilter
from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.common.states import RERUNNABLE, REVOKE, Status, was_started
from celery_dynbeat.common.text import MAX_CANCELLED, counted
from celery_dynbeat.insights.explain.runs import wait_text

#: Between two reads of a run.
POLL_SECONDS = 0.5
#: These follow the record of a run, line by line.
_TEXTS = ("earlier_errors", "traceback")


@command(
    "run",
    NAME,
    *EDIT,
    time_option(
        "--since",
        ago=True,
        help="Instead, run the past fire times from this time on that have no run.",
    ),
    time_option(
        "--until", ago=True, help="With --since, only fire times before this time. Default: now."
    ),
    *PACE,
    flag("--wait", help="Wait until the run, or all new runs, have ended."),
)
def run(
    cli: Invocation,
    *,
    name: str,
    since: datetime | None,
    until: datetime | None,
    wait: bool,
    **pace: Any,
) -> None:
    """Run a schedule once now, or run its past fire times with --since.

    A paused schedule runs too. Its fire times do not change. The command records the run, and a
    beat sends it immediately.

    With --since, the command is a backfill. Beat sends the runs at the pace of --per-minute,
    starting with the oldest fire time. The command prints the id of their batch: `dynbeat runs
    --batch ID` lists the runs, and `dynbeat cancel --batch ID` cancels those that have not started.
    One call records at most 10,000 runs. --until, --per-minute and --now need --since.

    For example:
        run digest --owner user:42
        run digest --wait
        run digest --owner user:42 --since 6h
        run digest --since 2026-11-23T00:00Z --until 2026-11-23T06:00Z --wait

    Exit status: 0: success. 1: something was not found or was refused, the database reported an
    error, or, with --wait, a run did not succeed. 2: the command line is invalid.
    """
    if since is not None:
        made = cli.mine.backfill(name, since=since, until=until or cli.now, **pace)
        _end_batch(cli, made, wait=wait)
        return
    sources = map(cli.context.get_parameter_source, ("until", *pace))
    if any(each is not ParameterSource.DEFAULT for each in sources):
        raise click.UsageError("--until, --per-minute and --now need --since")
    _end_run(cli, cli.mine.run_now(name), cli.label(name), wait=wait)


@command(
    "rerun",
    argument("run_id", type=RUN_ID, required=False),
    *OWNERS,
    time_option("--since", ago=True, help="Rerun all runs with this fire time or a later one."),
    time_option(
        "--ended-before", ago=True, help="Only runs that ended before this time. Default: now."
    ),
    option(
        "--status",
        type=click.Choice([each.value for each in RERUNNABLE]),
        multiple=True,
        default=(Status.FAILED.value, Status.LOST.value),
        show_default=True,
        help="Only runs with this status. Can be repeated.",
    ),
    *filter_options(RunFilter, "until", "name", "task", selects="Only runs"),
    *PACE,
    flag("--wait", help="Wait until the run, or all new runs, have ended."),
    *ACTOR,
    YES,
)
def rerun(
    cli: Invocation, *, run_id: str | None, since: datetime | None, wait: bool, **given: Any
) -> None:
    """Rerun one ended run, or all failed runs with --since.

    --since selects the failed and lost runs whose fire time is at or after the given time. The task
    receives the original fire time. RUN_ID can belong to a run of any owner. Before a rerun of many
    runs, the command asks for confirmation. It prints the id of their batch: `dynbeat runs --batch
    ID` lists the runs, and `dynbeat cancel --batch ID` cancels those that have not started. One
    call records at most 10,000 runs.

    For example:
        rerun 01a203ec-f449-7a5a-aa02-b03ca0cb18fc --wait
        rerun --since 6h --all-owners --reason 'mail server was down'
        rerun --since 2026-11-22T00:00Z --until 2026-11-22T06:00Z --name digest --owner user:42

    Exit status: 0: success. 1: something was not found or was refused, the database reported an
    error, or, with --wait, a run did not succeed. 2: the command line is invalid.
    """
    if (run_id is None) == (since is None):
        raise click.UsageError("give either RUN_ID or --since")
    if run_id is not None:
        made = cli.run_calls.rerun(run_id, now=given["now"])
        _end_run(cli, made, f"schedule {made.name!r}", wait=wait)
    elif since is not None:
        _rerun_many(cli, since, wait=wait, **given)


def _rerun_many(
    cli: Invocation,
    since: datetime,
    *,
    wait: bool,
    ended_before: datetime | None,
    status: Sequence[str],
    **given: Any,
) -> None:
    ended, until = ended_before or cli.now, given["until"]

    def call(calls: OwnerSchedules | Schedules) -> BatchInfo:
        return calls.rerun_many(since=since, ended_before=ended, status=status, **given)

    if not cli.yes:
        found = tried(cli.dynbeat, lambda session: call(cli.calls.bound(session=session)))
        least = "" if found.left_since is None else "at least "
        runs = counted(found.total, f"{' or '.join(status)} run")
        words = {"schedule": given["name"], "task": given["task"]}
        which = "".join(f" of {word} {value!r}" for word, value in words.items() if value)
        what = f"{least}{runs}{which} of {cli.whose} since {cli.time(since)}"
        nothing = None if found.total else f"nothing to run again: {what}"
        if not cli.agrees(f"Run {what} again?", nothing=nothing, result={"created": 0}):
            return
    # A repeated command with these options repeats no rerun that has failed meanwhile.
    repeat = f" --ended-before {ended.isoformat()}"
    if until is not None:
        repeat += f" --until {until.isoformat()}"
    _end_batch(cli, call(cli.calls), wait=wait, repeat=repeat)


def _end_run(cli: Invocation, made: RunInfo, label: str, *, wait: bool) -> None:
    """Print a new run. With ``wait``, print how it ended, and exit with 1 unless it succeeded."""
    if not wait:
        cli.done(f"recorded run {made.id} of {label}; beat sends it", made.to_dict())
        return
    with progress("waiting for the run") as advance:
        while (run := cli.schedules.get_run(made.id)).finished_at is None:
            advance(0)
            time.sleep(POLL_SECONDS)
    error = f": {run.error.partition(chr(10))[0]}" if run.error else ""
    cli.done(f"run {run.id} of schedule {run.name!r} {run.status}{error}", run.to_dict())
    cli.context.exit(0 if _is_success(run) else 1)


def _is_success(run: RunInfo) -> bool:
    """Return whether a run succeeded or its task skipped it."""
    is_skipped = run.status == Status.SKIPPED and was_started(run.status, run.attempt)
    return is_skipped or run.status == Status.SUCCEEDED


def _end_batch(cli: Invocation, result: BatchInfo, *, wait: bool, repeat: str = "") -> None:
    """Print a new batch. With ``wait``, wait for its runs, and exit with 1 if one has failed.

    ``repeat`` has further options of the command for what is left.
    """
    batch_id = result.batch_id
    words = f"recorded {counted(result.total, 'run')}, {result.excluded} excluded"
    if batch_id is not None:
        words = f"batch {batch_id}: {words}"
    if result.left_since is not None:
        # Exact, because it is the next --since.
        words += f"; more are left: repeat with --since {result.left_since.isoformat()}{repeat}"
    if batch_id is None or not wait:
        cli.done(words, result.to_dict())
        return
    try:
        with progress("runs ended") as advance:
            while (info := cli.calls.get_batch(batch_id)).unfinished:
                advance(info.total - info.unfinished, info.total)
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        cli.note(f"batch {batch_id} continues; `dynbeat cancel --batch {batch_id}` ends it")
        raise
    counts = ", ".join(f"{number} {status}" for status, number in info.counts.items())
    cli.done(f"{words}; of the runs: {counts}", replace(result, counts=info.counts).to_dict())
    others = [each for each in Status if each != Status.SUCCEEDED]
    unsuccessful = all_of(partial(cli.calls.runs, batch_id=batch_id, status=others))
    cli.context.exit(0 if all(map(_is_success, unsuccessful)) else 1)


@command(
    "cancel",
    argument("run_ids", type=RUN_ID, required=False, nargs=-1, metavar="[RUN_ID]..."),
    flag("--all", "is_all", help="Cancel all runs that match the options below."),
    *OWNERS,
    option(
        "--status",
        type=click.Choice([each.value for each in REVOKE.sources]),
        multiple=True,
        help="Only runs with this status. Can be repeated. Default: all three.",
    ),
    *filter_options(
        RunFilter, "name", "task", "origin", "batch_id", "since", "until", selects="Only runs"
    ),
    number_option(
        "--limit", most=MAX_CANCELLED, default=10_000, help="The maximum number of runs to cancel."
    ),
    *ACTOR,
    YES,
)
def cancel(cli: Invocation, *, run_ids: Sequence[str], is_all: bool, **filters: Any) -> None:
    """Cancel runs that have not started or that wait for a retry.

    Pass the ids of runs, --batch or --all. A worker drops the message of a cancelled run. The
    command does not stop a running task; for this, use Celery's `revoke` with terminate. If you
    pass --batch or --all, the command prints how many runs match and asks for confirmation.

    For example:
        cancel 01a203ec-f449-7a5a-aa02-b03ca0cb18fc
        cancel --batch 01a203ec-f449-7a5a-aa02-b03ca0cb18fc --owner user:42
        cancel --all --name digest --owner user:42 --reason 'wrong template'
        cancel --all --all-owners --task mail.send --since 2h --yes
    """
    if bool(run_ids) == (is_all or filters["batch_id"] is not None):
        raise click.UsageError("give either RUN_ID, --batch or --all")
    if not run_ids:
        _cancel_all(cli, **filters)
    for run_id in run_ids:
        run = cli.run_calls.cancel_run(run_id)
        cli.done(f"cancelled run {run.id} of schedule {run.name!r}", run.to_dict())


def _cancel_all(cli: Invocation, *, status: Sequence[str], limit: int, **filters: Any) -> None:
    given = [f"{name} {value}" for name, value in filters.items() if value is not None]
    words = f" with {', '.join(given)}" if given else ""
    statuses = tuple(status) or REVOKE.sources
    if not cli.yes:
        found = cli.calls.count_runs(status=statuses, **filters)
        runs = f"{found} {', '.join(statuses)} {'run' if str(found) == '1' else 'runs'}"
        what = f"{runs} of {cli.whose}{words}"
        most = f", at most {limit:,} of them" if not found.exact or found.count > limit else ""
        nothing = None if found.count or not found.exact else f"nothing to cancel: {what}"
        if not cli.agrees(f"Cancel {what}{most}?", nothing=nothing, result=_cancelled(0)):
            return
    number = cli.calls.cancel_runs(status=statuses, limit=limit, **filters)
    more = "; more may match: repeat the command" if number == limit else ""
    cli.done(f"cancelled {counted(number, 'run')}{more}", _cancelled(number))


def _cancelled(number: int) -> Mapping[str, Any]:
    return {"ok": True, "cancelled": number}


def _first_line(text: str | None) -> str | None:
    return None if text is None else text.partition("\n")[0]


def _error(run: RunInfo) -> str | None:
    """Return what the run waits for, or the first line of its error."""
    return f"waits {wait_text(run)}" if run.is_waiting else _first_line(run.error)


RUNS = (
    owner_column(),
    Column("name", width=8),
    time_column("fire_at"),
    Column("status", width=9, style=state_style),
    Column("id", width=36),
    Column("error", _error, width=20, optional=True),
    Column("lag", optional=True),
    Column("took", lambda run: run.duration, optional=True),
    Column("origin", optional=True),
    Column("attempt", width=7, optional=True),
    Column("worker", width=10, optional=True),
    Column("note", lambda run: _first_line(run.note), width=20, optional=True),
)


@command(
    "runs",
    argument("name", required=False, metavar="[NAME|RUN_ID]"),
    *OWNERS,
    *filter_options(
        RunFilter, "status", "task", "origin", "batch_id", "since", "until", selects="Only runs"
    ),
    *PAGE,
    columns=RUNS,
)
def runs(cli: Invocation, *, name: str | None, **filters: Any) -> None:
    """List runs, newest fire time first, or show one run.

    If you pass NAME, the command lists the runs of one schedule. If you pass RUN_ID, it shows this
    run of any owner, with its errors and its traceback. --since and --until are about fire times.
    If you pass --all-owners, the run that was created last comes first.

    For example:
        runs --status failed --status lost --since 1d --all-owners
        runs 01a203ec-f449-7a5a-aa02-b03ca0cb18fc
        runs --batch 01a203ec-f449-7a5a-aa02-b03ca0cb18fc --status failed
        runs digest --owner user:42 --all --json
    """
    given = {key for key, value in filters.items() if value}
    if cli.context.get_parameter_source("limit") is ParameterSource.DEFAULT:
        given.discard("limit")
    given |= {"page"} if cli.after or cli.all_pages else set()
    if name is not None and is_run_id(name) and (run := _find_run(cli, name)) is not None:
        if given:
            raise click.UsageError("RUN_ID takes no filter")
        _show_run(cli, run)
    elif name is not None and cli.owner is None:
        raise click.UsageError("NAME and --all-owners cannot be combined")
    else:
        fetch = partial(cli.calls.runs, name, **filters | {"status": filters["status"] or None})
        cli.show_pages(RUNS, fetch, name=name)


def _find_run(cli: Invocation, run_id: str) -> RunInfo | None:
    """Return the run, or None if the text is the name of a schedule."""
    try:
        return cli.run_calls.get_run(run_id)
    except NotFoundError:
        mine = cli.mine
        is_schedule = mine.list(name_prefix=run_id, limit=1) or mine.runs(run_id, limit=1)
        if cli.owner is not None and is_schedule:
            return None
        raise


def _show_run(cli: Invocation, run: RunInfo) -> None:
    # Its times are shown on the clock of its owner.
    cli.owner = run.owner
    as_dict = run.to_dict()
    values = {key: getattr(run, key) for key in as_dict if key not in _TEXTS}
    shown = {key: value for key, value in values.items() if value is not None}
    cli.record(shown, as_dict=as_dict)
    for line in () if cli.as_json else (*run.earlier_errors, *(run.traceback or "").splitlines()):
        cli.line(line)
