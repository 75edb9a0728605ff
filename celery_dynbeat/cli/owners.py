"""``dynbeat hold|owner``: stop everything or one owner for a time; the settings of an owner."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from sqlalchemy.orm import Session

from celery_dynbeat.api import OwnerSchedules
from celery_dynbeat.api.results import HoldInfo
from celery_dynbeat.cli.base.cells import Column, owner_column, time_column
from celery_dynbeat.cli.base.invocation import Invocation, all_of, command
from celery_dynbeat.cli.base.parameters import (
    ACTOR,
    YES,
    argument,
    flag,
    option,
    time_option,
)
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.owner_limits import setting_of
from celery_dynbeat.common.text import counted, described_owner, escape

_HELD = (
    owner_column(),
    Column("actor", width=10),
    Column("reason", width=20),
    time_column("created_at"),
    time_column("until_at"),
    Column("schedules", width=9),
    Column("waiting_runs", width=12),
)


@command(
    "hold",
    # Neither is the default, because an operator who stops the wrong schedules during an incident
    # loses time.
    option(
        "--owner",
        default=None,
        metavar="OWNER",
        help='The owner. "" is the application itself.',
    ),
    flag("--all-owners", help="Select all schedules of all owners."),
    *ACTOR,
    time_option("--until", help="When the hold ends. Default: it lasts until `hold --release`."),
    flag("--release", help="End the hold."),
    YES,
)
def hold(cli: Invocation, *, until: datetime | None, release: bool) -> None:
    """Stop the schedules of one owner or of all, or end the hold.

    The hold ends with --release or at --until. Runs that are already recorded still start, and
    `dynbeat run` is refused. A paused schedule stays paused. After the hold, the catch_up policy
    decides which missed fire times are sent. There is only one hold of an owner, and one of all
    owners, so a second hold replaces the reason, the end and the actor of the first one. A hold
    needs --reason, which other operators see. On a terminal, --all-owners asks for confirmation.

    --all-owners --release ends the hold of all owners. Holds of single owners stay in force.

    For example:
        hold --all-owners --reason 'database migration'
        hold --owner user:42 --reason 'ticket 12' --until 2h
        hold --owner user:42 --release --reason 'ticket 12 is solved'
        hold --all-owners --release
    """
    if cli.owner is None and not cli.all_owners:
        raise click.UsageError("give --owner OWNER or --all-owners")
    whose = "everything" if cli.owner is None else cli.whose
    if cli.owner == "":
        whose = "the application's own schedules"
    if release:
        if until is not None:
            raise click.UsageError("--until and --release cannot be combined")
        _release(cli, whose)
        return
    if not cli.reason:
        raise click.UsageError("Missing option '--reason'.")
    if cli.owner is None and cli.can_ask:
        cli.confirm("This stops all schedules of all owners.")
    info = cli.calls.hold(reason=cli.reason, until=until)
    end = f" until {cli.time(info.until_at)}" if info.until_at else ""
    cli.done(f"held {whose}{end}", info.to_dict())
    if cli.owner is not None and not cli.calls.list(limit=1).items:
        cli.note(f"{whose}: there are no schedules yet. The hold also stops later ones.")


def _release(cli: Invocation, whose: str) -> None:
    ended = cli.calls.release()
    if ended is None:
        cli.refuse(f"there is no hold of {whose}; `dynbeat owner --held` lists the holds")
    cli.done(f"released {whose}: held by {ended.actor or '(no actor)'}", ended.to_dict())
    for left in cli.calls.holds() if cli.owner is not None else ():
        cli.note(f"still held: {_described(left, cli)}")


def described_holds(cli: Invocation) -> str:
    """Return the holds that stop the owner: scope, actor, reason, end."""
    return "; ".join(_described(each, cli) for each in cli.mine.holds())


def _described(info: HoldInfo, cli: Invocation) -> str:
    scope = "everything" if info.owner is None else described_owner(info.owner)
    end = f", until {cli.time(info.until_at)}" if info.until_at else ""
    return escape(f"{scope} by {info.actor or '(no actor)'}: {info.reason or '(no reason)'}{end}")


def described_quiet_hours(mine: OwnerSchedules) -> str:
    """Return the quiet hours that apply to the owner as one line."""
    try:
        return "; ".join(
            f"{each}" if each.owner == mine.owner else f"{each} (everybody)"
            for each in mine.quiet_hours()
        )
    except InvalidArgumentError as error:
        # SQL by hand. Everything else can be shown.
        return str(error)


@command(
    "owner",
    argument("owner", required=False, default="", metavar="[OWNER]"),
    option("--timezone", metavar="ZONE", help="Set the time zone. '' returns to dynbeat_timezone."),
    option(
        "--quiet-hours",
        "windows",
        multiple=True,
        metavar="WINDOW",
        help="Set the quiet hours, such as 22:00-07:00 or 'mon-fri 20:00-06:00'. Can be repeated.",
    ),
    option("--quiet-days", "calendar", metavar="NAME", help="Set a shared calendar of quiet days."),
    flag("--no-quiet-hours", "clear", help="Remove the quiet hours and days."),
    flag("--held", help="List all holds in force, and what they hold."),
    *ACTOR,
)
def owner(cli: Invocation, *, held: bool, **given: Any) -> None:
    """Show the limits of an owner, and show or set its quiet hours.

    The output includes the time zone and the holds. If you omit OWNER, the command is about the
    application itself. The new quiet hours and days replace the present ones. They are on the clock
    of the owner's time zone. If both times of a window are equal, the window is a whole day. All
    changes are made in one transaction.

    --held prints a row for each hold, and with --json an object on each line. The owner of a hold
    of all owners is * in piped output and null in --json. The counts of schedules and of waiting
    runs are up to 10,000+.

    For example:
        owner user:42
        owner user:42 --timezone Asia/Seoul
        owner user:42 --quiet-hours 22:00-07:00 --quiet-hours 'sat,sun 00:00-00:00'
        owner user:42 --quiet-hours 22:00-07:00 --quiet-days holidays-de
        owner user:42 --no-quiet-hours
        owner --held
    """
    is_edit = any(value not in {None, (), False} for value in given.values())
    if held:
        if is_edit or cli.owner_given or cli.reason:
            raise click.UsageError("--held takes no other option")
        cli.show(_HELD, all_of(cli.schedules.holds), hidden=())
    elif cli.reason and not is_edit:
        raise click.UsageError("--reason needs a change")
    elif is_edit:
        _edit(cli, **given)
    else:
        _show(cli)


def _edit(
    cli: Invocation,
    *,
    timezone: str | None,
    windows: Sequence[str],
    calendar: str | None,
    clear: bool,
) -> None:
    is_quiet = bool(windows) or calendar is not None
    if clear and is_quiet:
        raise click.UsageError("give quiet hours or --no-quiet-hours, not both")

    def work(session: Session) -> dict[str, int]:
        mine, changed = cli.mine.bound(session=session), dict[str, int]()
        if timezone is not None:
            changed["timezone"] = mine.set_timezone(timezone or None)
        if is_quiet:
            changed["quiet_hours"] = mine.set_quiet_hours(windows, calendar=calendar)
        if clear:
            changed["quiet_hours"] = mine.clear_quiet_hours()
        return changed

    changed = cli.dynbeat.context.write(None, work)
    done = {
        "timezone": "set the time zone",
        "quiet_hours": "removed the quiet hours" if clear else "set the quiet hours",
    }
    edits = [f"{done[of]} ({counted(count, 'schedule')} changed)" for of, count in changed.items()]
    whose = cli.whose if cli.owner else "the application"
    cli.done(f"{whose}: {', '.join(edits)}", {**_as_dict(cli.mine), "changed": changed})


def _as_dict(mine: OwnerSchedules) -> dict[str, Any]:
    shown = {
        **mine.usage().to_dict(),
        "timezone": mine.timezone(),
        "holds": [each.to_dict() for each in mine.holds()],
    }
    try:
        return {**shown, "quiet_hours": [each.to_dict() for each in mine.quiet_hours()]}
    except InvalidArgumentError as error:
        # As above.
        return {**shown, "quiet_hours": None, "error": str(error)}


def _show(cli: Invocation) -> None:
    mine = cli.mine
    if cli.as_json:
        cli.done("", _as_dict(mine))
        return
    usage = mine.usage()
    values = {
        "owner": mine.owner,
        "schedules": _of_limit(usage.schedules, usage.max_schedules, "max_schedules"),
        "unfinished_runs": _of_limit(usage.running, usage.max_running, "max_running"),
        "waiting_runs": usage.waiting or None,
        "time_zone": cli.zone.key,
        "quiet_hours": described_quiet_hours(mine),
        "held": described_holds(cli),
    }
    shown = {name: value for name, value in values.items() if value not in {None, ""}}
    cli.record(shown, as_dict={})


def _of_limit(used: int, limit: int | None, field: str) -> str:
    """Return a number with its limit: ``2 of 10 (dynbeat_owner_limits: max_schedules)``."""
    return f"{used:,}" if limit is None else f"{used:,} of {limit:,} ({setting_of(field)})"
