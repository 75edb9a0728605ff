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
)
#: Neither is the default, because an operator who stops the wrong schedules during an incident
#: loses time.
scope_options = combined(
    click.option(
        "--owner",
        default=None,
        shell_complete=complete_owners,
        metavar="OWNER",
        help='The owner, or a group such as org:7/. "" is the application itself.',
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
        "hold --owner org:7/ --reason 'unpaid invoice'",
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

    If --owner is a group, such as org:7/, the hold stops the schedules of all owners whose names
    begin with it. The hold ends with `dynbeat release` or at --until. Runs that are already
    recorded still start, and `dynbeat run` still works. A paused schedule stays paused. After the
    hold, the catch_up policy decides which missed fire times are sent. Each actor can have only one
    hold of an owner, so a second hold changes the reason and the end of the first one. On a
    terminal, --all-owners asks for confirmation.
    """
    _check_scope(invocation)
    if invocation.owner is None and invocation.can_ask:
        invocation.confirm("This stops all schedules of all owners.")
    info = invocation.group_calls.hold(reason=invocation.reason, until=invocation.instant(until))
    end = f" until {invocation.time(info.until_at)}" if info.until_at else ""
    invocation.output.done(f"held {_scope(invocation)}{end}", info.to_dict())
    if invocation.owner is not None and not invocation.group_calls.list(limit=1).items:
        invocation.output.note(
            f"{_scope(invocation)}: there are no schedules yet. The hold also stops later ones."
        )


@command(
    "release",
    examples=("release --all-owners", "release --owner user:42 --all-actors"),
    exit_statuses="0: success. 1: there is no such hold, only other actors have one, or the "
    "database reported an error. 2: the command line is invalid.",
    is_list=True,
)
@scope_options
@actor_option
@reason_option
@click.option("--all-actors", is_flag=True, help="Also end the holds of other actors.")
def release(invocation: Invocation, *, all_actors: bool) -> None:
    """End the actor's hold.

    --all-owners ends the hold of all owners. Holds of single owners stay in force.
    """
    _check_scope(invocation)
    ended = invocation.group_calls.release(all_actors=all_actors)
    if not ended:
        invocation.refuse(f"there is no hold of {_scope(invocation)}; `dynbeat holds` lists all")
    if invocation.output.as_json:
        invocation.show(COLUMNS, ended)
        return
    by = ", ".join(each.actor or "(no actor)" for each in ended)
    invocation.output.line(f"released {_scope(invocation)}: held by {by}")
    for left in invocation.group_calls.holds() if invocation.owner is not None else ():
        invocation.output.note(f"still held: {described(left, invocation)}")


@command("holds", columns=COLUMNS, examples=("holds", "holds --owner user:42"))
@click.option(
    "--owner",
    default=None,
    metavar="OWNER",
    help="Only holds in force for OWNER. Default: all holds.",
)
def holds(invocation: Invocation) -> None:
    """List the holds in force with their actors and reasons.

    The oldest hold comes first. If a hold stops all owners, its owner is * in piped output and null
    in --json.
    """
    calls = invocation.group_calls
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
