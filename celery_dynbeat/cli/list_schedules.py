"""``dynbeat list``: pages of schedules, or their number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import click

from celery_dynbeat.api import Page, ScheduleInfo
from celery_dynbeat.cli.base.columns import Column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import owner_prefix_option, owners_option, page_options
from celery_dynbeat.cli.schedule_columns import SCHEDULES
from celery_dynbeat.common.states import State


@dataclass(frozen=True, slots=True)
class _Failing:
    """A failing schedule, and the error of its last failed or lost run."""

    info: ScheduleInfo
    last_error: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the row for ``--json``."""
        return {**self.info.to_dict(), "last_error": self.last_error}


@dataclass(frozen=True, slots=True)
class _FailingPage:
    items: tuple[_Failing, ...]
    cursor: str | None


def _of_info(column: Column) -> Column:
    return replace(column, get=lambda row: column.value(row.info))


_LAST_ERROR = Column("last_error", width=24)


def _columns(invocation: Invocation) -> Sequence[Column]:
    """Return the columns of a list. A table says "due now" in place of an instant that has passed.

    After an import, and while no beat runs, that instant says nothing about when a run was due.
    """
    if not invocation.output.on_terminal:
        return SCHEDULES
    now = invocation.now

    def next_run(schedule: ScheduleInfo) -> datetime | str | None:
        at = schedule.next_run_at
        return "due now" if at is not None and at <= now else at

    return [
        replace(each, get=next_run) if each.name == "next_run_at" else each for each in SCHEDULES
    ]


@command(
    "list",
    columns=SCHEDULES,
    examples=(
        "list --owner user:42 --name-prefix rep",
        "list --owner-prefix org:7/ --state failing",
        "list --all-owners --state failing",
        "list --all-owners --order next_run_at --limit 20",
        "list --all-owners --state quarantined --count",
        "list --all-owners --all --json",
    ),
)
@owners_option
@owner_prefix_option
@click.option(
    "--state",
    type=click.Choice([each.value for each in State]),
    help="Only schedules in this state. failing means that the last ended run failed or was lost.",
)
@click.option("--name-prefix", metavar="TEXT", help="Only names that begin with TEXT.")
@click.option("--task", metavar="TASK", help="Only schedules of this task.")
@click.option("--tag", metavar="TAG", help="Only schedules with this tag.")
@click.option(
    "--order",
    type=click.Choice(["name", "next_run_at"]),
    help="The order. next_run_at leaves out schedules without a next run. Default: name,"
    " but next_run_at for overdue schedules.",
)
@page_options
@click.option(
    "--count",
    "is_count",
    is_flag=True,
    help="Print only the number of schedules, or 10,000+ if there are more.",
)
def list_schedules(invocation: Invocation, *, is_count: bool, **given: Any) -> None:
    """List schedules by name, or by owner and name with --all-owners.

    --owner-prefix lists the schedules of several owners in the same order. If you pass --count,
    --json prints one object. --state failing adds the last_error column, which contains the first
    line of the error of the last failed or lost run.
    """
    if is_count:
        _count(invocation, **given)
    else:
        _list(invocation, **given)


def _list(invocation: Invocation, *, after: str | None, all_pages: bool, **filters: Any) -> None:
    schedules, owner, columns = invocation.schedules, invocation.owner, _columns(invocation)

    def fetch(cursor: str | None) -> Page[ScheduleInfo]:
        return schedules.list(owner=owner, after=cursor, **filters)

    if filters["state"] != State.FAILING:
        invocation.show_pages(columns, fetch, after=after, all_pages=all_pages)
        return

    def fetch_failing(cursor: str | None) -> _FailingPage:
        page = fetch(cursor)
        return _FailingPage(_failing(invocation, page), page.cursor)

    failing = [*map(_of_info, columns), _LAST_ERROR]
    invocation.show_pages(failing, fetch_failing, after=after, all_pages=all_pages)


def _failing(invocation: Invocation, page: Page[ScheduleInfo]) -> tuple[_Failing, ...]:
    from celery_dynbeat.insights.statistics.recent_runs import last_errors  # noqa: PLC0415

    ids = [each.id for each in page.items]
    errors = last_errors(invocation.dynbeat.context, schedule_ids=ids)
    return tuple(_Failing(each, errors.get(each.id)) for each in page.items)


def _count(invocation: Invocation, **given: Any) -> None:
    filters = {key: given[key] for key in ("state", "owner_prefix", "name_prefix", "task", "tag")}
    found = invocation.schedules.count(owner=invocation.owner, **filters)
    text = str(found) if invocation.output.on_terminal else str(found).replace(",", "")
    invocation.output.done(text, found.to_dict())
