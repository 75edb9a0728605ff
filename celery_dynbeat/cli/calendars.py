"""``dynbeat calendars list|show|upsert|delete``: the shared calendars of the application."""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, TextIO

import click

from celery_dynbeat.api import CalendarInfo
from celery_dynbeat.cli.base.columns import Column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.common.text import MAX_PAGE_SIZE, shorten

#: This is larger than any file of 2,000 dates and notes.
_MAX_FILE = 2_000_000


def _days(info: CalendarInfo) -> str:
    return "1 date" if len(info.dates) == 1 else f"{len(info.dates):,} dates"


COLUMNS = (
    Column("name", width=16),
    Column("days", _days, width=16),
    Column("weekend", lambda info: ",".join(info.weekend), optional=True),
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
    "upsert",
    examples=(
        "calendars upsert holidays-de --dates-file holidays.txt",
        "calendars upsert holidays-ae --dates-file holidays.txt --weekend fri,sat",
    ),
)
@_name
@click.option(
    "--dates-file",
    required=True,
    type=click.File("r", encoding="utf-8-sig"),
    metavar="FILE",
    help="A file with one date in each line, such as `2026-12-25 # Christmas Day`. - reads standard"
    " input.",
)
@click.option(
    "--weekend",
    metavar="DAYS",
    help="The days of the week that are not business days. '' means none. [default: sat,sun]",
)
@click.option("--allow-empty", is_flag=True, help="Accept a calendar without a day.")
@actor_options
def upsert(
    invocation: Invocation,
    *,
    name: str,
    dates_file: TextIO,
    weekend: str | None,
    **given: Any,
) -> None:
    """Create a calendar, or replace its days.

    An added day takes effect immediately. A removed day takes effect for a schedule when beat has
    planned the schedule again. In the file, the text after # is the note of the date.
    """
    info = invocation.dynbeat.calendars.upsert(
        name,
        dates=_dates(dates_file),
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


for _each in (list_calendars, show, upsert, delete):
    calendars.add_command(_each)


def _dates(file: TextIO) -> Mapping[date, str]:
    dates = dict[date, str]()
    try:
        content = file.read(_MAX_FILE)
    except UnicodeDecodeError:
        raise click.UsageError(f"{file.name} is not UTF-8") from None
    for number, line in enumerate(content.splitlines(), start=1):
        text, _, note = (part.strip() for part in line.partition("#"))
        if not text:
            continue
        try:
            dates[date.fromisoformat(text)] = note
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
        *(f"  {day.isoformat()} {day:%a} {note}".rstrip() for day, note in info.dates.items()),
        f"weekend: {', '.join(info.weekend) or 'none'}",
        f"updated: {invocation.time(info.updated_at)}{by}",
        f"in force for all schedules: {in_force}",
        f"schedules: {info.schedules}, waiting for a plan: {info.waiting_schedules}",
    ]
