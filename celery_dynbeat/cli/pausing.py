"""``dynbeat pause|resume``: one schedule, or all that match a filter."""

from functools import partial

import click

from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import (
    actor_options,
    combined,
    complete_names,
    owners_option,
    yes_option,
)
from celery_dynbeat.cli.base.parameter_types import Instant
from celery_dynbeat.cli.bulk import all_option, edit_many, filter_options, select

_options = combined(
    click.argument("name", required=False, shell_complete=complete_names),
    all_option,
    filter_options,
    owners_option,
    actor_options,
    yes_option,
)


@command(
    "pause",
    examples=(
        "pause digest --owner user:42 --reason 'ticket 12'",
        "pause --tag newsletter --all-owners --reason 'the mail server moves'",
        "pause --owner-prefix org:7/ --reason 'unpaid'",
        "pause digest --owner user:42 --until 2d",
    ),
)
@_options
@click.option(
    "--until",
    type=Instant(1),
    help="When beat resumes the schedule. Default: it stays paused until `resume`.",
)
def pause(
    invocation: Invocation,
    *,
    name: str | None,
    everything: bool,
    until: TypedInstant | None,
    **filters: str | None,
) -> None:
    """Stop a schedule until it is resumed, or until an instant.

    Runs that have not started are revoked, except manual runs. --reason is shown with the paused
    schedule. If you pass --all, --state, --tag, --task, --name-prefix or --owner-prefix, the
    command pauses all matching schedules. It first prints their number and asks for confirmation.
    Schedules that are already paused keep their reason.
    """
    matching = select(invocation, name, filters, everything=everything)
    if matching is not None or name is None:
        call = partial(invocation.calls.pause_many, until=invocation.instant(until))
        edit_many(invocation, "pause", call, matching or {})
        return
    info = invocation.mine.pause(name, until=invocation.instant(until), reason=invocation.reason)
    end = f" until {invocation.time(info.paused_until)}" if info.paused_until else ""
    invocation.output.done(f"paused {invocation.label(name)}{end}", info.to_dict())


@command(
    "resume",
    examples=(
        "resume digest --owner user:42",
        "resume --state paused --tag newsletter --all-owners",
    ),
)
@_options
def resume(
    invocation: Invocation, *, name: str | None, everything: bool, **filters: str | None
) -> None:
    """Resume a paused or quarantined schedule at its next fire time.

    Fire times that passed during the pause are recorded as skipped. If you pass --all, --state,
    --tag, --task, --name-prefix or --owner-prefix, the command resumes all matching schedules. It
    first prints their number and asks for confirmation.
    """
    matching = select(invocation, name, filters, everything=everything)
    if matching is not None or name is None:
        edit_many(invocation, "resume", invocation.calls.resume_many, matching or {})
        return
    info = invocation.mine.resume(name)
    invocation.output.done(
        f"resumed {invocation.label(name)}{invocation.when(info)}", info.to_dict()
    )
