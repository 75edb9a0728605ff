"""``dynbeat list|changes``: lists of schedules and of edits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import click

from celery_dynbeat.api.results import Page, ScheduleInfo
from celery_dynbeat.cli.base.cells import Column, owner_column, state_style, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.parameters import (
    OPTIONAL_NAME,
    OWNERS,
    PAGE,
    filter_options,
    flag,
    option,
    schedule_filter,
)
from celery_dynbeat.common.filters import ChangeFilter
from celery_dynbeat.common.infos import Info
from celery_dynbeat.common.states import State


@dataclass(frozen=True, slots=True)
class _FailingRow(Info):
    """A failing schedule, and the error of its last failed or lost run."""

    info: ScheduleInfo
    last_error: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the row for ``--json``."""
        return {**self.info.to_dict(), "last_error": self.last_error}


def _trigger(schedule: ScheduleInfo) -> Any:
    return "(damaged)" if schedule.trigger is None else schedule.given_trigger


def _zone(schedule: ScheduleInfo) -> str | None:
    """Return the time zone that the trigger follows, or None if it follows no wall clock."""
    return None if schedule.trigger is None else schedule.trigger.timezone


_SCHEDULES = (
    owner_column(),
    Column("name", width=12),
    Column("task", width=12),
    Column("trigger", _trigger, width=12),
    Column("state", style=state_style),
    time_column("next_run_at"),
    time_column("last_run_at", optional=True),
    Column("tags", optional=True),
    Column("timezone", _zone, optional=True),
)


@command(
    "list",
    *OWNERS,
    *schedule_filter("Only schedules"),
    option(
        "--order",
        type=click.Choice(["name", "next_run_at"]),
        help="The order. next_run_at leaves out schedules without a next run. Default: name,"
        " but next_run_at for overdue schedules.",
    ),
    *PAGE,
    flag(
        "--count",
        "is_count",
        help="Print only the number of schedules, or 10,000+ if there are more.",
    ),
    columns=_SCHEDULES,
)
def list_schedules(
    cli: Invocation, *, is_count: bool, order: str | None, limit: int, **filters: Any
) -> None:
    """List schedules by name, or by owner and name with --all-owners.

    --owner-prefix lists the schedules of several owners in the same order. If you pass --count,
    --json prints one object. --state failing lists the schedules whose last ended run failed or was
    lost. It adds the last_error column, which contains the first line of the error of this run.

    For example:
        list --owner user:42 --name-prefix rep
        list --owner-prefix org:7/ --state failing
        list --all-owners --state failing
        list --all-owners --order next_run_at --limit 20
        list --all-owners --state quarantined --count
        list --all-owners --all --json
    """
    if is_count:
        found = cli.schedules.count(owner=cli.owner, **filters)
        text = str(found) if cli.on_terminal else str(found).replace(",", "")
        cli.done(text, found.to_dict())
        return
    columns = _columns(cli)
    fetch = partial(cli.schedules.list, owner=cli.owner, order=order, limit=limit, **filters)

    def fetch_failing(after: str | None) -> Page[_FailingRow]:
        page = fetch(after=after)
        return Page(_failing(cli, page), page.cursor)

    if filters["state"] == State.FAILING:
        columns = [*map(_of_info, columns), Column("last_error", width=24)]
        cli.show_pages(columns, fetch_failing)
    else:
        cli.show_pages(columns, fetch)


def _columns(cli: Invocation) -> Sequence[Column]:
    """Return the columns of a list. A table says "due now" in place of an instant that has passed.

    After an import, and while no beat runs, that instant says nothing about when a run was due.
    """
    if not cli.on_terminal:
        return _SCHEDULES
    now = cli.now

    def next_run(schedule: ScheduleInfo) -> datetime | str | None:
        at = schedule.next_run_at
        return "due now" if at is not None and at <= now else at

    return [
        replace(each, get=next_run) if each.name == "next_run_at" else each for each in _SCHEDULES
    ]


def _of_info(column: Column) -> Column:
    return replace(column, get=lambda row: column.value(row.info))


def _failing(cli: Invocation, page: Page[ScheduleInfo]) -> tuple[_FailingRow, ...]:
    # A late import: the help of a command imports no database.
    from celery_dynbeat.insights.history import last_errors  # noqa: PLC0415

    errors = last_errors(cli.dynbeat.context, schedule_ids=[each.id for each in page.items])
    return tuple(_FailingRow(each, errors.get(each.id)) for each in page.items)


_CHANGES = (
    time_column("changed_at"),
    owner_column(),
    Column("name", width=12),
    Column("action", width=10),
    Column("actor", width=8),
    Column("reason", width=12, optional=True),
    Column("changed", lambda each: each.text, width=20, optional=True),
)


@command(
    "changes",
    OPTIONAL_NAME,
    *OWNERS,
    option("--actor", "by", metavar="NAME", help="Only edits by this actor."),
    *filter_options(ChangeFilter, "action", "since", "until", selects="Only edits"),
    *PAGE,
    columns=_CHANGES,
)
def changes(cli: Invocation, *, name: str | None, by: str | None, **filters: Any) -> None:
    """List who changed what and why, newest first.

    If you pass NAME, the command lists the edits of one schedule. --json contains the values before
    and after the edit, with the keys of `dynbeat show --json`. If an edit concerns all owners, its
    owner is * in piped output and null in --json. If it concerns one owner as a whole, its name is
    empty.

    For example:
        changes digest --owner user:42
        changes --all-owners --actor alice --since 1d --json
        changes --owner org:7/ --since 1d
        changes --all-owners --action hold
    """
    if name is not None and cli.owner is None:
        raise click.UsageError("NAME and --all-owners cannot be combined")
    fetch = partial(cli.calls.changes, name, actor=by, **filters)
    cli.show_pages(_CHANGES, fetch, name=name)
