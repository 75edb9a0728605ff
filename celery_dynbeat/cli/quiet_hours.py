"""``dynbeat quiet-hours``: weekly windows in which the runs of an owner are not sent."""

from collections.abc import Sequence
from typing import Any

import click

from celery_dynbeat.api import QuietHoursInfo
from celery_dynbeat.cli.base.columns import Column, owner_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options
from celery_dynbeat.common.text import counted, described_owner


def _windows(item: QuietHoursInfo) -> str:
    return ", ".join(map(str, item.windows))


def described(item: QuietHoursInfo, *, owner: str) -> str:
    """Return the quiet hours that apply to ``owner`` as one line."""
    group = "" if item.owner == owner else f" ({described_owner(item.owner)})"
    return f"{_windows(item)}, {'then sent' if item.policy == 'after' else 'skipped'}{group}"


COLUMNS = (
    owner_column(),
    Column("policy", width=6),
    Column("windows", _windows, width=40),
)


@command(
    "quiet-hours",
    columns=COLUMNS,
    examples=(
        "quiet-hours --owner user:42 22:00-07:00 'sat,sun 00:00-00:00'",
        "quiet-hours --owner org:7/ --policy skip 'mon-fri 20:00-06:00'",
        "quiet-hours --owner user:42",
        "quiet-hours --owner user:42 --clear",
    ),
)
@click.argument("windows", nargs=-1, metavar="[WINDOW]...")
@edit_options
@click.option(
    "--policy",
    type=click.Choice(["after", "skip"]),
    default="after",
    show_default=True,
    help="after: send at the end of the window. skip: record the fire time as skipped.",
)
@click.option("--clear", is_flag=True, help="Remove the windows of the owner or the group.")
def quiet_hours(
    invocation: Invocation, *, windows: Sequence[str], policy: str, clear: bool
) -> None:
    """Set, show or clear the weekly quiet hours of an owner or a group.

    Each WINDOW is a text such as 22:00-07:00 or 'mon-fri 20:00-06:00', on the clock of the owner's
    time zone. If both times are equal, the window is a whole day. The new windows replace the
    present windows. Without a WINDOW, the command shows the windows of the owner and of the owner's
    groups, which all apply.
    """
    if clear and windows:
        raise click.UsageError("give windows or --clear, not both", invocation.context)
    calls: Any = invocation.group_calls
    if not windows and not clear:
        found: Sequence[QuietHoursInfo] = calls.quiet_hours()
        invocation.show(COLUMNS, found, hidden=())
        return
    changed = calls.clear_quiet_hours() if clear else calls.set_quiet_hours(windows, policy=policy)
    own = [each.to_dict() for each in calls.quiet_hours() if each.owner == invocation.owner]
    verb = "removed the" if clear else "set the"
    whose = described_owner(invocation.owner or "") if invocation.owner else "the application"
    invocation.output.done(
        f"{verb} quiet hours of {whose}; {counted(changed, 'schedule')} changed",
        {"changed": changed, "quiet_hours": own[0] if own else None},
    )
