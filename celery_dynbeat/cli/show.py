"""``dynbeat show``: one schedule, and why it ran or did not run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.api.results import FireTime, ScheduleInfo
from celery_dynbeat.cli.base.cells import Column, state_style, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.parameters import NAME, OWNER, flag, number_option, time_option
from celery_dynbeat.cli.owners import described_holds, described_quiet_hours
from celery_dynbeat.cli.runs import RUNS

if TYPE_CHECKING:
    from celery_dynbeat.api.results import Explanation

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


def _explain(cli: Invocation, found: "Explanation") -> None:
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
