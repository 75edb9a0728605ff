"""The problems of schedules that fail, are held or wait, and of work that no worker serves."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime

from celery_dynbeat.common.text import described_owner, format_duration
from celery_dynbeat.health.coverage import Coverage, Unserved, shown
from celery_dynbeat.health.problem import Problem
from celery_dynbeat.store.health import MAX_NAMED, Tables
from celery_dynbeat.store.places import LongWait


def unserved_problems(coverage: Coverage, *, urgent: bool) -> Iterator[Problem]:
    """Yield the problems of queues and tasks that no worker serves; or else the warnings."""
    queues = _of(coverage.queues, urgent=urgent)
    if queues:
        text = f"no living worker consumes these queues: {shown(queues, limit=MAX_NAMED)}"
        hint = (
            f"start a worker that consumes them: `celery -A your_app worker -Q {queues[0].name}`;"
            " or correct the queue in task_routes, in the task or in the options of the schedules"
        )
        yield Problem("queue_not_consumed", text, hint)
    tasks = _of(coverage.tasks, urgent=urgent)
    if tasks:
        text = f"no living worker of their queue has these tasks: {shown(tasks, limit=MAX_NAMED)}"
        hint = (
            "restart the workers with the code of the tasks, and import its modules there"
            " (include, imports or autodiscover_tasks)"
        )
        correct = "correct the task of the schedules, or import its module where workers start"
        yield Problem("task_not_registered", text, hint if urgent else correct)


def _of(unserved: Sequence[Unserved] | None, *, urgent: bool) -> Sequence[Unserved]:
    return [each for each in unserved or () if each.urgent == urgent]


def stopped_warnings(tables: Tables, *, now: datetime) -> Iterator[Problem]:
    """Yield the warnings about schedules that fail or are held, and runs that wait for long."""
    if tables.failing.count:
        text = f"schedules whose last runs all failed: {tables.failing}"
        hint = (
            "`celery -A your_app dynbeat errors` counts the errors, `celery -A your_app dynbeat "
            "list --all-owners --state failing` lists the schedules; correct the task or its "
            "arguments, or pause the schedule"
        )
        yield Problem("schedules_failing", text, hint)
    if tables.lost_first:
        named = ", ".join(
            f"{run.id} of {run.name!r} of {described_owner(run.owner)}" for run in tables.lost_first
        )
        hint = (
            "the worker died or does not know these runs; run a lost run again with"
            " `celery -A your_app dynbeat rerun`, or set on_lost='rerun' for idempotent tasks"
        )
        yield Problem("runs_lost", f"runs lost within the last hour, the newest: {named}", hint)
    if tables.holds.count:
        # The hold of everything comes first.
        owner = tables.holds_first[0].owner
        text = f"holds in force: {tables.holds}"
        text += "; no schedule runs" if owner is None else ""
        hint = (
            f"`{release_command(owner)}` ends the hold of"
            f" {'everything' if owner is None else described_owner(owner)}"
        )
        yield Problem("schedules_held", text, hint)
    if tables.long_waits:
        text = "; ".join(_long_wait(each, now=now) for each in tables.long_waits)
        hint = (
            "runs that end free their places: search for the cause if one hangs, set max_run_time"
            " for its schedule, or raise max_running; `celery -A your_app dynbeat usage"
            " --all-owners --waiting` lists the owners"
        )
        yield Problem("runs_wait_for_place", f"runs wait for a place: {text}", hint)


def _long_wait(wait: LongWait, *, now: datetime) -> str:
    holders = ", ".join(
        f"{run.id} of {run.name!r} of {described_owner(run.owner)}" for run in wait.holders
    )
    waited = format_duration(now - wait.since)
    having = f"these runs have its places: {holders}" if holders else "no run has a place"
    return f"{wait.waiting} of {wait.running_key!r} for up to {waited}, {having}"


def release_command(owner: str | None) -> str:
    """Return the command that ends the hold of an owner; None means the hold of everything."""
    scope = "--all-owners" if owner is None else f"--owner {shlex.quote(owner)}"
    return f"celery -A your_app dynbeat release {scope}"
