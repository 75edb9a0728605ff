"""``dynbeat run``: run a schedule now."""

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options, name_argument
from celery_dynbeat.cli.waiting import wait_for_run


@command(
    "run",
    examples=("run digest --owner user:42", "run digest --wait"),
    exit_statuses="0: success. 1: something was not found or was refused, the database reported "
    "an error, or, with --wait, the run did not succeed. 2: the command line is "
    "invalid.",
)
@name_argument
@edit_options
@click.option("--wait", is_flag=True, help="Wait until the run has ended.")
def run(invocation: Invocation, *, name: str, wait: bool) -> None:
    """Run a schedule once now, even if it is paused. Its fire times do not change.

    The command records the run, and a beat sends it immediately.
    """
    made = invocation.mine.run_now(name)
    if wait:
        wait_for_run(invocation, made.id)
    text = f"recorded run {made.id} of {invocation.label(name)}; beat sends it"
    invocation.output.done(text, made.to_dict())
