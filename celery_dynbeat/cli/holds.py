"""``dynbeat hold|release|holds``: stop everything, or one owner, for a time."""

import click

from celery_dynbeat.api import HoldInfo
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.columns import Column, owner_column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import (
    actor_option,
    combined,
    complete_owners,
    reason_option,
    yes_option,
)
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.cli.base.parameter_types import Instant
from celery_dynbeat.common.text import MAX_PAGE_SIZE, described_owner, escape

COLUMNS = (
    owner_column(),
    Column("actor", width=10),
    Column("reason", width=20),
    time_column("created_at"),
    time_column("until_at"),
    Column("schedules", width=9),
    Column("waiting_runs", width=12),
)
#: Neither is the default, because an operator who stops the wrong schedules during an incident
#: loses time.
scope_options = combined(
    click.option(
        "--owner",
        default=None,
        shell_complete=complete_owners,
        metavar="OWNER",
        help='The owner. "" is the application itself.',
    ),
    click.option("--all-owners", is_flag=True, help="Select all schedules of all owners."),
)


def _check_scope(invocation: Invocation) -> None:
    if invocation.owner is None and not invocation.all_owners:
        raise click.UsageError("give --owner OWNER or --all-owners", invocation.context)


@command(
    "hold",
    examples=(
        "hold --all-owners --reason 'database migration'",
        "hold --owner user:42 --reason 'ticket 12' --until 2h",
    ),
)
@scope_options
@actor_option
@click.option(
    "--reason", required=True, metavar="TEXT", help="The reason, shown to other operators."
)
@click.option(
    "--until",
    type=Instant(1),
    help="When the hold ends. Default: it lasts until `release`.",
)
@yes_option
def hold(invocation: Invocation, *, until: TypedInstant | None) -> None:
    """Stop the schedules of one owner, or of all owners.

    The hold ends with `dynbeat release` or at --until. Runs that are already recorded still start,
    and `dynbeat run` is refused. A paused schedule stays paused. After the hold, the catch_up
    policy decides which missed fire times are sent. There is only one hold of an owner, and one of
    all owners, so a second hold replaces the reason, the end and the actor of the first one. On a
    terminal, --all-owners asks for confirmation.
    """
    _check_scope(invocation)
    if invocation.owner is None and invocation.can_ask:
        invocation.confirm("This stops all schedules of all owners.")
    info = invocation.calls.hold(reason=invocation.reason, until=invocation.instant(until))
    end = f" until {invocation.time(info.until_at)}" if info.until_at else ""
    invocation.output.done(f"held {_scope(invocation)}{end}", info.to_dict())
    if invocation.owner is not None and not invocation.calls.list(limit=1).items:
        invocation.output.note(
            f"{_scope(invocation)}: there are no schedules yet. The hold also stops later ones."
        )


@command(
    "release",
    examples=("release --all-owners", "release --owner user:42 --reason 'ticket 12 is solved'"),
    exit_statuses="0: success. 1: there is no such hold, or the database reported an error. "
    "2: the command line is invalid.",
)
@scope_options
@actor_option
@reason_option
def release(invocation: Invocation) -> None:
    """End the hold of an owner, or the hold of all owners.

    --all-owners ends the hold of all owners. Holds of single owners stay in force.
    """
    _check_scope(invocation)
    ended = invocation.calls.release()
    if ended is None:
        invocation.refuse(f"there is no hold of {_scope(invocation)}; `dynbeat holds` lists all")
    by = ended.actor or "(no actor)"
    invocation.output.done(f"released {_scope(invocation)}: held by {by}", ended.to_dict())
    for left in invocation.calls.holds() if invocation.owner is not None else ():
        invocation.output.note(f"still held: {described(left, invocation)}")


@command("holds", columns=COLUMNS, examples=("holds", "holds --owner user:42"))
@click.option(
    "--owner",
    default=None,
    metavar="OWNER",
    help="Only holds in force for OWNER. Default: all holds.",
)
def holds(invocation: Invocation) -> None:
    """List the holds in force with their reasons, and what they hold.

    The columns schedules and waiting_runs count the schedules that a hold stops and the runs that
    wait for its end, up to 10,000+. The oldest hold comes first. If a hold stops all owners, its
    owner is * in piped output and null in --json.
    """
    calls = invocation.calls
    fetched = pages(lambda after: calls.holds(limit=MAX_PAGE_SIZE, after=after))
    invocation.show(COLUMNS, [each for page in fetched for each in page], hidden=())


def _scope(invocation: Invocation) -> str:
    if invocation.owner is None:
        return "everything"
    return (
        described_owner(invocation.owner) if invocation.owner else "the application's own schedules"
    )


def described(info: HoldInfo, invocation: Invocation) -> str:
    """Return a hold in words: scope, actor, reason, end."""
    scope = "everything" if info.owner is None else described_owner(info.owner)
    end = f", until {invocation.time(info.until_at)}" if info.until_at else ""
    return escape(f"{scope} by {info.actor or '(no actor)'}: {info.reason or '(no reason)'}{end}")
