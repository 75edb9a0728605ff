"""``dynbeat alert-targets``: what the messages about alerts have become."""

from celery_dynbeat.api import AlertTargetInfo
from celery_dynbeat.cli.base.columns import Column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation

COLUMNS = (
    Column("target", width=12),
    Column("urls", width=4),
    Column("unsent_alerts", width=13),
    Column("waiting"),
    Column("failing"),
    Column("sent"),
    Column("dropped"),
    time_column("last_sent_at", optional=True),
    time_column("next_try_at", optional=True),
    Column("error", width=24),
)


@command("alert-targets", columns=COLUMNS, examples=("alert-targets", "alert-targets --json"))
def alert_targets(invocation: Invocation) -> None:
    """List the alert targets, and what their messages have become.

    Messages that were sent or dropped are counted for 7 days. An error contains no part of a URL.
    """
    invocation.show(COLUMNS, invocation.schedules.alert_targets())


def note_undelivered(invocation: Invocation) -> None:
    """Print a note on stderr for each target with a message that was not delivered."""
    for each in invocation.schedules.alert_targets():
        if each.failing or each.dropped:
            invocation.output.note(_undelivered(each))


def _undelivered(target: AlertTargetInfo) -> str:
    return (
        f"target {target.target!r}: messages that fail: {target.failing}, dropped in 7 days:"
        f" {target.dropped}; last error: {target.error}"
    )
