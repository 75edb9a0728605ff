"""``dynbeat update``: change fields of a schedule."""

from collections.abc import Sequence
from typing import Any

import click

from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options, name_argument
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.cli.fields import field_options, fields_from, trigger_from, trigger_option

#: Field -> its value after ``--clear``.
_CLEARED = {name: field.default for name, field in FIELDS.items() if not field.is_required}


@command(
    "update",
    examples=(
        "update digest --trigger '30 9 * * mon-fri' --reason 'ticket 12'",
        "update poll --owner user:42 --overlap skip --clear window",
        "update poll --owner user:42 --finish-within 10m",
    ),
)
@name_argument
@click.option("--task", metavar="TASK", help="The name of the task.")
@trigger_option
@edit_options
@field_options
@click.option(
    "--clear",
    multiple=True,
    type=click.Choice(sorted(_CLEARED)),
    metavar="FIELD",
    help="A field, such as window, to reset to its default. Can be repeated.",
)
@click.option(
    "--expected-version",
    type=Number(least=1, most=2**31 - 1),
    metavar="NUMBER",
    help="Refuse the change if the schedule has a different version.",
)
def update(
    invocation: Invocation,
    *,
    name: str,
    clear: Sequence[str],
    expected_version: int | None,
    **given: Any,
) -> None:
    """Change some fields of a schedule. All other fields keep their values.

    A new trigger, --start-at, --end-at or --max-runs sets the next fire time, counted from now. A
    trigger without a zone follows the owner's, whatever the old one had. --tag replaces all tags.
    """
    trigger = trigger_from(invocation, given)
    changes = fields_from(invocation, given)
    if both := sorted(changes.keys() & set(clear)):
        raise click.UsageError(f"--clear {both[0]} and its option cannot be combined")
    changes |= {field: _CLEARED[field] for field in clear}
    if trigger is not None:
        changes["trigger"] = trigger
    if not changes:
        raise click.UsageError("give at least one option that changes a field")
    info = invocation.mine.update(name, expected_version=expected_version, **changes)
    text = f"updated {invocation.label(name)}: {', '.join(changes)}{invocation.when(info)}"
    invocation.output.done(text, info.to_dict())
