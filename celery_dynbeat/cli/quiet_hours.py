"""``dynbeat quiet-hours``: windows and days in which the runs of an owner are not sent."""

from collections.abc import Sequence
from typing import Any

import click

from celery_dynbeat.api import QuietHoursInfo
from celery_dynbeat.cli.base.columns import Column, owner_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options
from celery_dynbeat.common.text import counted, described_owner


def described(item: QuietHoursInfo, *, owner: str) -> str:
    """Return the quiet hours that apply to ``owner`` as one line."""
    if item.owner == owner:
        return str(item)
    return f"{item} (everybody)"


COLUMNS = (
    owner_column(),
    Column("windows", lambda item: ", ".join(map(str, item.windows)), width=40),
    Column("calendar", width=20, optional=True),
)


@command(
    "quiet-hours",
    columns=COLUMNS,
    examples=(
        "quiet-hours --owner user:42 22:00-07:00 'sat,sun 00:00-00:00'",
        "quiet-hours --owner user:42 22:00-07:00 --calendar holidays-de",
        "quiet-hours --owner user:42",
        "quiet-hours --owner user:42 --clear",
    ),
)
@click.argument("windows", nargs=-1, metavar="[WINDOW]...")
@edit_options
@click.option(
    "--calendar", metavar="NAME", help="A shared calendar. Its dates are quiet as a whole."
)
@click.option("--clear", is_flag=True, help="Remove the windows and the calendar of the owner.")
def quiet_hours(
    invocation: Invocation, *, windows: Sequence[str], calendar: str | None, clear: bool
) -> None:
    """Set, show or clear the quiet hours of an owner.

    Each WINDOW is a text such as 22:00-07:00 or 'mon-fri 20:00-06:00', on the clock of the owner's
    time zone. If both times are equal, the window is a whole day. The new windows and calendar
    replace the present ones. Without any, the command shows the quiet hours of the owner and of
    dynbeat_quiet_hours.
    """
    is_set = bool(windows) or calendar is not None
    if clear and is_set:
        raise click.UsageError("give quiet hours or --clear, not both", invocation.context)
    calls: Any = invocation.calls
    if not is_set and not clear:
        found: Sequence[QuietHoursInfo] = calls.quiet_hours()
        invocation.show(COLUMNS, found, hidden=())
        return
    changed = (
        calls.clear_quiet_hours() if clear else calls.set_quiet_hours(windows, calendar=calendar)
    )
    own = [each.to_dict() for each in calls.quiet_hours() if each.owner == invocation.owner]
    verb = "removed the" if clear else "set the"
    whose = described_owner(invocation.owner or "") if invocation.owner else "the application"
    invocation.output.done(
        f"{verb} quiet hours of {whose}; {counted(changed, 'schedule')} changed",
        {"changed": changed, "quiet_hours": own[0] if own else None},
    )
