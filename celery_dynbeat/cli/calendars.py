"""``dynbeat calendars list|show|put|delete``: the shared calendars of the application."""

import json
from collections.abc import Sequence
from datetime import date
from typing import Any, BinaryIO, TextIO

import click

from celery_dynbeat.api import CalendarInfo
from celery_dynbeat.cli.base.columns import Column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.common.text import MAX_PAGE_SIZE, shorten

#: This is larger than any file of 2,000 dates, and than any file that the API accepts.
_MAX_FILE = 2_000_000


def _days(info: CalendarInfo) -> str:
    if info.trigger is not None:
        days = info.trigger.describe(info.timezone)
        if info.trigger.needs_zone and info.timezone is None:
            days = f"{days.removesuffix(', UTC')}, in the zone of each schedule"
        return f"days of: {days}"
    return "1 date" if len(info.dates) == 1 else f"{len(info.dates):,} dates"


COLUMNS = (
    Column("name", width=16),
    Column("days", _days, width=16),
    Column("weekend", lambda info: ",".join(info.weekend), optional=True),
    Column("timezone", optional=True),
    Column("version"),
    time_column("updated_at"),
    Column("updated_by", optional=True),
    time_column("in_force_at", optional=True),
)
_name = click.argument("name")


@click.group()
def calendars() -> None:
    """List, show, write and delete shared calendars."""


@command("list", columns=COLUMNS, examples=("calendars list", "calendars list --json"))
def list_calendars(invocation: Invocation) -> None:
    """List the calendars by name."""
    calls = invocation.dynbeat.calendars
    fetched = pages(lambda after: calls.list(limit=MAX_PAGE_SIZE, after=after))
    found = [each for page in fetched for each in page]
    invocation.show(COLUMNS, found)


@command("show", examples=("calendars show holidays-de", "calendars show holidays-de --json"))
@_name
def show(invocation: Invocation, *, name: str) -> None:
    """Show a calendar, its days, and how many schedules use it.

    Beat plans the schedules again after an edit of the calendar. The command shows how many of them
    still wait for that.
    """
    info = invocation.dynbeat.calendars.get(name)
    if invocation.output.as_json:
        invocation.output.line(json.dumps(info.to_dict()))
        return
    for line in _lines(invocation, info):
        invocation.output.line(line)


@command(
    "put",
    examples=(
        "calendars put holidays-de --dates-file holidays.txt",
        "calendars put holidays-de --ics holidays.ics",
        "calendars put sundays --trigger '0 0 * * sun' --reason 'shops are closed'",
    ),
)
@_name
@click.option(
    "--dates-file",
    type=click.File("r"),
    metavar="FILE",
    help="A file with one date in each line, such as 2026-12-25. - reads standard input.",
)
@click.option(
    "--ics",
    type=click.File("rb"),
    metavar="FILE",
    help="An iCalendar file. - reads standard input.",
)
@click.option(
    "--trigger", metavar="TEXT", help="Each day on which this trigger fires, such as '0 0 * * sun'."
)
@click.option(
    "--timezone", metavar="ZONE", help="The zone of the trigger, and of events at a time of day."
)
@click.option(
    "--weekend",
    metavar="DAYS",
    help="The days of the week that are not business days. '' means none. [default: sat,sun]",
)
@click.option("--allow-empty", is_flag=True, help="Accept a calendar without a day.")
@actor_options
def put(
    invocation: Invocation,
    *,
    name: str,
    dates_file: TextIO | None,
    ics: BinaryIO | None,
    trigger: str | None,
    weekend: str | None,
    **given: Any,
) -> None:
    """Create a calendar, or replace its days.

    Give one of --dates-file, --ics and --trigger. An added day takes effect immediately. A removed
    day takes effect for a schedule when beat has planned the schedule again. In a file of dates,
    the text after # is a comment.
    """
    if [dates_file, ics, trigger].count(None) != 2:  # noqa: PLR2004 - one of three is given
        raise click.UsageError("give one of --dates-file, --ics and --trigger", invocation.context)
    info = invocation.dynbeat.calendars.put(
        name,
        dates=None if dates_file is None else _dates(dates_file),
        ics=None if ics is None else ics.read(_MAX_FILE),
        trigger=trigger,
        weekend=None if weekend is None else [day for day in weekend.split(",") if day],
        **given,
    )
    waiting = info.waiting_schedules
    end = ""
    if waiting is not None and waiting.count:
        wait = "schedule waits" if str(waiting) == "1" else "schedules wait"
        end = f"; {waiting} {wait} for a plan"
    done = f"calendar {name!r}: version {info.version}, {_days(info)}{end}"
    invocation.output.done(done, info.to_dict())


@command("delete", examples=("calendars delete holidays-de --reason 'not used'",))
@_name
@actor_options
def delete(invocation: Invocation, *, name: str) -> None:
    """Delete a calendar that no schedule uses."""
    invocation.dynbeat.calendars.delete(name)
    invocation.output.done(f"deleted calendar {name!r}", {"ok": True, "name": name})


for _each in (list_calendars, show, put, delete):
    calendars.add_command(_each)


def _dates(file: TextIO) -> Sequence[date]:
    dates = []
    for number, line in enumerate(file.read(_MAX_FILE).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            dates.append(date.fromisoformat(text))
        except ValueError:
            rule = "it must be a date such as 2026-12-25"
            raise click.UsageError(
                f"line {number} of {file.name}: {shorten(text)}: {rule}"
            ) from None
    return dates


def _lines(invocation: Invocation, info: CalendarInfo) -> Sequence[str]:
    by = f" by {info.updated_by}" if info.updated_by else ""
    in_force = "not yet" if info.in_force_at is None else invocation.time(info.in_force_at)
    return [
        f"calendar {info.name}: version {info.version}, {_days(info)}",
        *(f"  {day.isoformat()} {day:%a}" for day in info.dates),
        f"weekend: {', '.join(info.weekend) or 'none'}",
        f"updated: {invocation.time(info.updated_at)}{by}",
        f"in force for all schedules: {in_force}",
        f"schedules: {info.schedules}, waiting for a plan: {info.waiting_schedules}",
    ]
