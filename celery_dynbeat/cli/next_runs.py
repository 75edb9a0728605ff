"""``dynbeat next``: the next fire times of a schedule."""

from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import click

from celery_dynbeat.cli.base.cells import plain
from celery_dynbeat.cli.base.columns import Column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import owner_option
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.client import FireTime
from celery_dynbeat.common.durations import format_distance


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the list."""

    fire_time: FireTime
    local: str
    distance: str

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
        return {**self.fire_time.to_dict(), "local": self.local}


COLUMNS = (
    Column("utc", width=20),
    Column("local", width=25),
    Column("distance"),
    Column("skipped", width=20, optional=True),
)
#: A table has a column for each zone, without the fractions of a second of an anchor.
_ON_TERMINAL = (time_column("fire_time", lambda row: row.fire_time.at), *COLUMNS[2:])


@command(
    "next", columns=COLUMNS, examples=("next digest", "next digest --owner user:42 --count 20")
)
@click.argument("name")
@owner_option
@click.option(
    "--count",
    type=Number(least=1, most=1_000),
    default=5,
    show_default=True,
    help="The number of fire times, up to 1,000.",
)
def next_runs(invocation: Invocation, *, name: str, count: int) -> None:
    """List the next fire times of a schedule.

    They are in UTC and in the time zone of the trigger; without one in that of the owner. Skipped
    fire times are among them. A paused or finished schedule has no others.
    """
    now, zone = invocation.now, _zone(invocation, name)
    rows = [
        _Row(
            each,
            f"{each.at.astimezone(zone).isoformat(' ')} {zone.key}",
            format_distance(each.at, now=now),
        )
        for each in invocation.mine.upcoming(name, count=count, with_skipped=True)
    ]
    on_terminal = [*_ON_TERMINAL]
    if zone.key != invocation.zone.key:
        on_terminal.insert(1, COLUMNS[1])
    invocation.show(on_terminal if invocation.output.on_terminal else COLUMNS, rows)
    if not rows:
        invocation.output.note(f"{invocation.label(name)} has no next fire time")


def _zone(invocation: Invocation, name: str) -> ZoneInfo:
    """Return the time zone of the trigger, or else that of the owner."""
    trigger = invocation.mine.get(name).trigger
    zone = None if trigger is None else trigger.timezone
    return invocation.zone if zone is None else ZoneInfo(zone)
