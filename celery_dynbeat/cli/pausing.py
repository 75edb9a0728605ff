"""``dynbeat pause|resume``."""

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import edit_options, name_argument


@command("pause", examples=("pause digest --owner user:42 --reason 'ticket 12'",))
@name_argument
@edit_options
def pause(invocation: Invocation, *, name: str) -> None:
    """Stop a schedule until it is resumed.

    Its runs that have not started are revoked. Manual runs are not revoked. --reason is shown with
    the paused schedule.
    """
    info = invocation.mine.pause(name, reason=invocation.reason)
    invocation.output.done(f"paused {invocation.label(name)}", info.to_dict())


@command("resume", examples=("resume digest --owner user:42",))
@name_argument
@edit_options
def resume(invocation: Invocation, *, name: str) -> None:
    """Start a paused or quarantined schedule again, from now.

    Fire times that passed during the pause are recorded as skipped.
    """
    info = invocation.mine.resume(name)
    invocation.output.done(
        f"resumed {invocation.label(name)}{invocation.when(info)}", info.to_dict()
    )
