"""``dynbeat next``: the next fire times of a schedule, or a forecast of the runs of many."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click

from celery_dynbeat.api import FireTime, ForecastInfo
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.cells import plain
from celery_dynbeat.cli.base.columns import Column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import complete_names, owners_option
from celery_dynbeat.cli.base.parameter_types import Instant, Number
from celery_dynbeat.common.text import format_distance


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the list."""

    fire_time: FireTime
    local: str
    distance: str

    @property
    def waits(self) -> str | None:
        """Why the run is sent later, and when, or which hold stops it; None if it is not."""
        return self.fire_time.wait_note

    @property
    def utc(self) -> str:
        """The fire time in UTC."""
        return plain(self.fire_time.at)

    @property
    def skipped(self) -> str | None:
        """The actor who skipped the fire time, and the reason; None if it is not skipped."""
        return (self.fire_time.reason or "skipped") if self.fire_time.is_skipped else None

    def to_dict(self) -> dict[str, Any]:
        """Return the row for ``--json``."""
        return {**self.fire_time.to_dict(), "local": self.local}


COLUMNS = (
    Column("utc", width=20),
    Column("local", width=25),
    Column("distance"),
    Column("skipped", width=20, optional=True),
    Column("waits", width=20, optional=True),
)
#: A table has a column for each zone, without the fractions of a second of an anchor.
_ON_TERMINAL = (time_column("fire_time", lambda row: row.fire_time.at), *COLUMNS[2:])


#: Without --until.
_DEFAULT_SPANS = {"minute": timedelta(hours=1), "hour": timedelta(days=1)}
#: The runs of a forecast.
_PER_MINUTE = (time_column("start_at"), Column("queue", width=16), Column("runs"))


@command(
    "next",
    columns=COLUMNS,
    examples=(
        "next digest",
        "next digest --owner user:42 --count 20",
        "next --all-owners --per-minute --until 3h",
        "next --owner org:7/ --per-hour",
    ),
)
@click.argument("name", required=False, shell_complete=complete_names)
@owners_option
@click.option(
    "--per-minute", is_flag=True, help="Forecast the runs of each minute. Do not pass NAME."
)
@click.option("--per-hour", is_flag=True, help="Forecast the runs of each hour. Do not pass NAME.")
@click.option(
    "--until",
    type=Instant(1),
    help="The end of the forecast, such as 6h (from now). Default: an hour from now, or "
    "a day with --per-hour.",
)
@click.option("--queue", metavar="QUEUE", help="Forecast only the runs of this queue.")
@click.option(
    "--count",
    type=Number(least=1, most=1_000),
    default=5,
    show_default=True,
    help="The number of fire times, up to 1,000.",
)
def next_runs(
    invocation: Invocation,
    *,
    name: str | None,
    count: int,
    per_minute: bool,
    per_hour: bool,
    until: TypedInstant | None,
    queue: str | None,
) -> None:
    """List the next fire times of a schedule, or forecast runs.

    Fire times are shown in UTC and in the time zone of the trigger, or of the owner if the trigger
    has none. The list includes skipped fire times, and fire times that a hold in force stops. It
    says when a run is sent later: in its window, or after quiet hours. A paused or finished
    schedule has no other fire times.

    If you pass --per-minute or --per-hour, the command prints how many runs become due in each
    queue, including recurring runs. A note says if there can be more. --json prints all of this as
    one object.
    """
    is_forecast = per_minute != per_hour
    if is_forecast == (name is not None) or (name is not None and invocation.owner is None):
        raise click.UsageError("give NAME, or --per-minute with --owner or --all-owners")
    if not is_forecast and (until is not None or queue is not None):
        raise click.UsageError("--until and --queue need --per-minute or --per-hour")
    if name is None:
        per = "hour" if per_hour else "minute"
        end = invocation.instant(until) or invocation.now + _DEFAULT_SPANS[per]
        found = invocation.calls.forecast(until=end, per=per, queue=queue)
        _show_forecast(invocation, found)
        return
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


def _show_forecast(invocation: Invocation, found: ForecastInfo) -> None:
    if invocation.output.as_json:
        invocation.output.line(json.dumps(found.to_dict()))
        return
    invocation.show(_PER_MINUTE, found.rows)
    if found.is_at_least:
        invocation.output.note("at least: there are more schedules than are counted")


def _zone(invocation: Invocation, name: str) -> ZoneInfo:
    """Return the time zone of the trigger, or else the time zone of the owner."""
    trigger = invocation.mine.get(name).trigger
    zone = None if trigger is None else trigger.timezone
    return invocation.zone if zone is None else ZoneInfo(zone)
