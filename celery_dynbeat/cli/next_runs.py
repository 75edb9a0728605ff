"""``dynbeat next``: the next fire times of a schedule, or the runs of many in each minute."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click

from celery_dynbeat.api import FireTime, Info
from celery_dynbeat.cli.base.cells import plain
from celery_dynbeat.cli.base.columns import Column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import complete_names, owners_option
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.cli.holds import described
from celery_dynbeat.common.text import format_distance


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the list."""

    fire_time: FireTime
    local: str
    distance: str
    #: Who holds the schedule at this fire time; None if no hold in force stops it.
    held: str | None

    @property
    def utc(self) -> str:
        """The fire time in UTC."""
        return plain(self.fire_time.at)

    @property
    def skipped(self) -> str | None:
        """Who skipped the fire time and why; None if it is not skipped."""
        return (self.fire_time.reason or "skipped") if self.fire_time.is_skipped else None

    def to_dict(self) -> dict[str, Any]:
        """Return the row for ``--json``."""
        return {**self.fire_time.to_dict(), "local": self.local, "held": self.held}


@dataclass(frozen=True, slots=True)
class _Minute:
    """The runs to come in a minute, and how they were counted: see ``Timeline``."""

    start_at: datetime
    planned: int
    planned_estimate: Info | None
    planned_is_first_only: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the row for ``--json``."""
        estimate = self.planned_estimate
        return {
            "start_at": self.start_at.isoformat(),
            "planned": self.planned,
            "planned_estimate": None if estimate is None else estimate.to_dict(),
            "planned_is_first_only": self.planned_is_first_only,
        }


COLUMNS = (
    Column("utc", width=20),
    Column("local", width=25),
    Column("distance"),
    Column("skipped", width=20, optional=True),
    Column("held", width=20, optional=True),
)
#: A table has a column for each zone, without the fractions of a second of an anchor.
_ON_TERMINAL = (time_column("fire_time", lambda row: row.fire_time.at), *COLUMNS[2:])


#: The runs to come of the next hour.
_PER_MINUTE = (time_column("start_at"), Column("planned"))
_HOUR = timedelta(hours=1)


@command(
    "next",
    columns=COLUMNS,
    examples=(
        "next digest",
        "next digest --owner user:42 --count 20",
        "next --all-owners --per-minute",
    ),
)
@click.argument("name", required=False, shell_complete=complete_names)
@owners_option
@click.option(
    "--per-minute",
    is_flag=True,
    help="Count the runs in each minute of the next hour. Takes no NAME.",
)
@click.option(
    "--count",
    type=Number(least=1, most=1_000),
    default=5,
    show_default=True,
    help="The number of fire times, up to 1,000.",
)
def next_runs(invocation: Invocation, *, name: str | None, count: int, per_minute: bool) -> None:
    """List the next fire times of a schedule, or count upcoming runs.

    Fire times are in UTC and in the time zone of the trigger. A trigger without a time zone uses
    the owner's. The list includes skipped fire times and fire times that a hold in force stops. A
    paused or finished schedule has no other fire times.

    With --per-minute, a note says if the numbers are an estimate from a sample of schedules, or if
    they count only the next run of each schedule.
    """
    if per_minute == (name is not None) or (name is not None and invocation.owner is None):
        raise click.UsageError("give NAME, or --per-minute with --owner or --all-owners")
    if name is None:
        _show_per_minute(invocation)
        return
    now, zone = invocation.now, _zone(invocation, name)
    holds = invocation.mine.holds()
    rows = [
        _Row(
            each,
            f"{each.at.astimezone(zone).isoformat(' ')} {zone.key}",
            format_distance(each.at, now=now),
            next((described(hold, invocation) for hold in holds if hold.covers(each.at)), None),
        )
        for each in invocation.mine.upcoming(name, count=count, with_skipped=True)
    ]
    on_terminal = [*_ON_TERMINAL]
    if zone.key != invocation.zone.key:
        on_terminal.insert(1, COLUMNS[1])
    invocation.show(on_terminal if invocation.output.on_terminal else COLUMNS, rows)
    if not rows:
        invocation.output.note(f"{invocation.label(name)} has no next fire time")


def _show_per_minute(invocation: Invocation) -> None:
    # Only this option needs the statistics.
    from celery_dynbeat.insights.statistics.timeline import (  # noqa: PLC0415
        planned_bins,
    )

    now = invocation.now
    found = planned_bins(
        invocation.dynbeat.context, until=now + _HOUR, owner=invocation.owner, now=now
    )
    estimate = found.planned_estimate
    rows = [
        _Minute(each.start_at, each.planned, estimate, found.planned_is_first_only)
        for each in found.bins
        if each.planned
    ]
    invocation.show(_PER_MINUTE, rows)
    if estimate is not None:
        invocation.output.note(str(estimate))
    if found.planned_is_first_only:
        invocation.output.note("at least: only the next run of each schedule is counted")


def _zone(invocation: Invocation, name: str) -> ZoneInfo:
    """Return the time zone of the trigger, or else that of the owner."""
    trigger = invocation.mine.get(name).trigger
    zone = None if trigger is None else trigger.timezone
    return invocation.zone if zone is None else ZoneInfo(zone)
