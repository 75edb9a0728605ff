"""``dynbeat skip|unskip``: take single fire times out of a schedule."""

import click

from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options, name_argument
from celery_dynbeat.cli.base.parameter_types import Instant

_FIRE_TIME = click.argument("fire_time", type=Instant(1), required=False)
_NEXT = click.option("--next", "is_next", is_flag=True, help="Skip the next fire time.")


@command(
    "skip",
    examples=(
        "skip digest 2026-12-24T09:00 --owner user:42 --reason 'public holiday'",
        "skip digest --next",
    ),
)
@name_argument
@_FIRE_TIME
@_NEXT
@edit_options
def skip(
    invocation: Invocation, *, name: str, fire_time: TypedInstant | None, is_next: bool
) -> None:
    """Skip one fire time of a schedule. All other fire times stay. `dynbeat next` lists them.

    If FIRE_TIME is not a fire time of the schedule, the error names the nearest fire times.
    """
    if (fire_time is None) != is_next:
        raise click.UsageError("give either FIRE_TIME or --next", invocation.context)
    mine = invocation.mine
    if (at := invocation.instant(fire_time)) is None:
        at = next((each.at for each in mine.upcoming(name, count=1)), None)
    if at is None:
        invocation.refuse(f"{invocation.label(name)} has no next fire time")
    info = mine.skip(name, at, reason=invocation.reason)
    text = f"{invocation.label(name)}: skipped {invocation.time(at)}{invocation.when(info)}"
    invocation.output.done(text, info.to_dict())


@command("unskip", examples=("unskip digest 2026-12-24T09:00 --owner user:42",))
@name_argument
@click.argument("fire_time", type=Instant(1))
@edit_options
def unskip(invocation: Invocation, *, name: str, fire_time: TypedInstant) -> None:
    """Restore a skipped fire time before it passes."""
    at = invocation.instant(fire_time)
    assert at is not None  # noqa: S101 - FIRE_TIME is required
    info = invocation.mine.unskip(name, at)
    text = f"{invocation.label(name)}: restored {invocation.time(at)}{invocation.when(info)}"
    invocation.output.done(text, info.to_dict())
