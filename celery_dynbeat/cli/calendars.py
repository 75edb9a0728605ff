"""``dynbeat calendars list|upsert|delete``: the shared calendars of the application."""

from collections.abc import Mapping
from datetime import date
from typing import Any, TextIO

import click

from celery_dynbeat.api.results import CalendarInfo
from celery_dynbeat.cli.base.cells import Column, time_column
from celery_dynbeat.cli.base.invocation import Invocation, all_of, command
from celery_dynbeat.cli.base.parameters import ACTOR, argument, flag, option
from celery_dynbeat.common.text import shorten

#: This is larger than any file of 2,000 dates and notes.
_MAX_FILE = 2_000_000
_NAME = argument("name")


def _days(info: CalendarInfo) -> str:
    return "1 date" if len(info.dates) == 1 else f"{len(info.dates):,} dates"


_COLUMNS = (
    Column("name", width=16),
    Column("days", _days, width=16),
    Column("weekend", lambda info: ",".join(info.weekend), optional=True),
    Column("version"),
    time_column("updated_at"),
    Column("updated_by", optional=True),
    time_column("in_force_at", optional=True),
)


@command("list", argument("name", required=False), columns=_COLUMNS)
def list_calendars(cli: Invocation, *, name: str | None) -> None:
    """List the calendars by name, or show one of them with its days.

    Beat plans the schedules again after an edit of a calendar. If you pass NAME, the command shows
    how many schedules use the calendar, and how many of them still wait for that.

    For example:
        calendars list
        calendars list --json
        calendars list holidays-de
    """
    if name is None:
        cli.show(_COLUMNS, all_of(cli.dynbeat.calendars.list))
        return
    info = cli.dynbeat.calendars.get(name)
    by = f" by {info.updated_by}" if info.updated_by else ""
    in_force = "not yet" if info.in_force_at is None else cli.time(info.in_force_at)
    first, *others = (
        f"calendar {info.name}: version {info.version}, {_days(info)}",
        *(f"  {day.isoformat()} {day:%a} {note}".rstrip() for day, note in info.dates.items()),
        f"weekend: {', '.join(info.weekend) or 'none'}",
        f"updated: {cli.time(info.updated_at)}{by}",
        f"in force for all schedules: {in_force}",
        f"schedules: {info.schedules}, waiting for a plan: {info.waiting_schedules}",
    )
    cli.done(first, info.to_dict())
    for line in () if cli.as_json else others:
        cli.line(line)


@command(
    "upsert",
    _NAME,
    option(
        "--dates-file",
        required=True,
        type=click.File("r", encoding="utf-8-sig"),
        metavar="FILE",
        help="A file with one date in each line, such as `2026-12-25 # Christmas Day`. - reads"
        " standard input.",
    ),
    option(
        "--weekend",
        metavar="DAYS",
        help="The days of the week that are not business days. '' means none. [default: sat,sun]",
    ),
    flag("--allow-empty", help="Accept a calendar without a day."),
    *ACTOR,
)
def upsert(
    cli: Invocation, *, name: str, dates_file: TextIO, weekend: str | None, **given: Any
) -> None:
    """Create a calendar, or replace its days.

    An added day takes effect immediately. A removed day takes effect for a schedule when beat has
    planned the schedule again. In the file, the text after # is the note of the date.

    For example:
        calendars upsert holidays-de --dates-file holidays.txt
        calendars upsert holidays-ae --dates-file holidays.txt --weekend fri,sat
    """
    days = None if weekend is None else [day for day in weekend.split(",") if day]
    info = cli.dynbeat.calendars.upsert(name, dates=_dates(dates_file), weekend=days, **given)
    waiting = info.waiting_schedules
    end = ""
    if waiting is not None and waiting.count:
        wait = "schedule waits" if str(waiting) == "1" else "schedules wait"
        end = f"; {waiting} {wait} for a plan"
    done = f"calendar {name!r}: version {info.version}, {_days(info)}{end}"
    cli.done(done, info.to_dict())


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
            where = f"line {number} of {file.name}: {shorten(text)}"
            raise click.UsageError(f"{where}: it must be a date such as 2026-12-25") from None
    return dates


@command("delete", _NAME, *ACTOR)
def delete(cli: Invocation, *, name: str) -> None:
    """Delete a calendar that no schedule uses.

    For example:
        calendars delete holidays-de --reason 'not used'
    """
    cli.dynbeat.calendars.delete(name)
    cli.done(f"deleted calendar {name!r}", {"ok": True, "name": name})


@click.group(commands=[list_calendars, upsert, delete])
def calendars() -> None:
    """List, write and delete shared calendars."""
