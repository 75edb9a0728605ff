"""``dynbeat show|list|changes``: a schedule and why it ran or not; lists of schedules and edits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import click

from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.api.results import Explanation, FireTime, Page, ScheduleInfo
from celery_dynbeat.cli.base.cells import Column, owner_column, state_style, time_column
from celery_dynbeat.cli.base.invocation import Invocation, command
from celery_dynbeat.cli.base.parameters import (
    NAME,
    OPTIONAL_NAME,
    OWNER,
    OWNERS,
    PAGE,
    filter_options,
    flag,
    number_option,
    option,
    schedule_filter,
    time_option,
)
from celery_dynbeat.cli.owners import described_holds, described_quiet_hours
from celery_dynbeat.cli.runs import RUNS
from celery_dynbeat.common.filters import ChangeFilter
from celery_dynbeat.common.infos import Info
from celery_dynbeat.common.states import State
from celery_dynbeat.insights.history import last_errors

_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())
#: Shown before and after the fields.
_PAUSE = ("paused_reason", "paused_until")
_PROGRESS = ("failing_since", "finished_at", "managed_by")
_LAST = (
    time_column("fire_at", lambda each: each.run.fire_at),
    Column("status", lambda each: each.run.status, width=9, style=state_style),
    Column("origin", lambda each: each.run.origin),
    Column("what_happened", lambda each: each.text, width=30),
)
_NEXT = (time_column("fire_at"), Column("note", width=30))
_NODES = (
    Column("kind", width=6),
    Column("name", width=12),
    Column("state"),
    time_column("seen_at"),
    Column("error", width=20),
)


@command(
    "show",
    NAME,
    OWNER,
    number_option(
        "--count", most=1_000, default=5, help="How many next fire times and last runs to show."
    ),
    flag("--why", help="Explain instead why the schedule ran or did not run."),
    time_option(
        "--at",
        ago=True,
        help="With --why, explain the fire time at this time, such as 09:00 (the last one), or 2h"
        " (ago).",
    ),
)
def show(cli: Invocation, *, name: str, count: int, why: bool, at: datetime | None) -> None:
    """Show a schedule and its last runs, or explain why it ran or not.

    Fire times are shown in UTC and in the time zone of the trigger, or of the owner if the trigger
    has none. They have a note if they are skipped, stopped by a hold, or sent later: in a window,
    or after quiet hours. Piped output has these three values after the word upcoming or skipped. A
    paused or finished schedule has no fire times, other than skipped ones.

    If a policy is not shown, its setting applies. The output shows only the host of a ping URL.
    --json prints the keys of the API, including the whole ping URL, and adds the next fire times as
    "upcoming" and the last runs as "runs".

    With --why, the first line states the cause, and the second line states the fix. The output then
    lists the last fire times with their results, the next fire times, the beats, and the workers
    that consume the queue. With --json, the cause is a fixed code, such as "no_worker_for_queue".

    With --at, the first line is about the fire time in that minute. It comes from the history and
    the audit: who paused, held, skipped or edited the schedule, and why.

    For example:
        show report
        show report --count 20
        show report --owner user:42 --json
        show digest --why
        show digest --owner user:42 --why --at 09:00
    """
    if at is not None and not why:
        raise click.UsageError("--at needs --why")
    if why:
        _explain(cli, cli.mine.explain(name, at=at, count=count))
        return
    mine = cli.mine
    info = mine.get(name)
    # A damaged trigger has no fire times.
    upcoming = () if info.error else mine.upcoming(name, count=count, with_skipped=True)
    runs = mine.runs(name, limit=count)
    # An interval follows no wall clock.
    named = info.trigger and info.trigger.timezone
    zone = ZoneInfo(named) if named else cli.zone
    shown = [replace(each, local=each.fire_at.astimezone(zone)) for each in upcoming]
    values = {
        "time_zone": cli.zone.key,
        "held": described_holds(cli),
        "quiet_hours": described_quiet_hours(mine),
        **_values(info, shown, timezone=cli.zone.key),
    }
    cli.record(
        {key: value for key, value in values.items() if value not in _EMPTY},
        as_dict={
            **info.to_dict(),
            "upcoming": [each.to_dict() for each in upcoming],
            "runs": [each.to_dict() for each in runs],
        },
    )
    if runs and cli.on_terminal:
        cli.line("")
        cli.show([column for column in RUNS if column.name != "name"], runs)


def _values(
    info: ScheduleInfo, upcoming: Sequence[FireTime], *, timezone: str
) -> Mapping[str, Any]:
    trigger = info.trigger
    fields = {
        name: field.type.shown(field.value_in(info))
        for name, field in FIELDS.items()
        if not field.in_options
    }
    return {
        "name": info.name,
        "owner": info.owner,
        "state": info.state,
        "error": info.error,
        "description": info.description,
        "task": info.task,
        "trigger": info.given_trigger,
        "meaning": trigger and trigger.describe(timezone),
        "next_run_at": info.next_run_at,
        "upcoming": [each for each in upcoming if not each.is_skipped],
        "skipped": [each for each in upcoming if each.is_skipped],
        "last_run_at": info.last_run_at,
        "run_count": info.run_count,
        **{name: getattr(info, name) for name in _PAUSE},
        # A field above keeps its place.
        **fields,
        **{name: getattr(info, name) for name in _PROGRESS},
        "version": info.version,
        "created_at": info.created_at,
        "updated_at": info.updated_at,
    }


def _explain(cli: Invocation, found: Explanation) -> None:
    if cli.as_json:
        cli.done("", found.to_dict())
        return
    cli.line(found.sentence)
    nodes = [*found.beats, *found.workers]
    if not cli.on_terminal:
        # The first cell names the kind of row.
        if found.fix:
            cli.cells("fix", found.fix)
        cli.cells("queue", found.queue)
        for run in found.runs:
            cli.cells("last", run.run.fire_at, run.run.status, run.text)
        for fire_time in found.next:
            cli.cells("next", fire_time.fire_at, fire_time.note)
        for node in nodes:
            cli.cells(*(column.value(node) for column in _NODES))
        return
    if found.fix:
        cli.line(f"Fix: {found.fix}")
    schedule = found.schedule
    meaning = "(damaged)" if schedule.trigger is None else schedule.trigger.describe(cli.zone.key)
    cli.line("")
    cli.line(f"{schedule.name}: {meaning}; task {schedule.task}; queue {found.queue or '?'}")
    sections: Sequence[tuple[str, Sequence[Column], Sequence[Any]]] = (
        ("Last fire times", _LAST, found.runs),
        ("Next fire times", _NEXT, found.next),
        ("Beats, and workers of the queue", _NODES, nodes),
    )
    for title, columns, items in sections:
        cli.line("")
        cli.line(title if items else f"{title}: none")
        if items:
            cli.show(columns, items)


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
