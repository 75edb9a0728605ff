"""``dynbeat prune``: delete old history now."""

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import yes_option
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.common.settings import MAX_DURATION
from celery_dynbeat.common.text import format_duration

if TYPE_CHECKING:
    from celery_dynbeat.process.context import Context


@command(
    "prune",
    examples=("prune", "prune --dry-run", "prune --older-than 7 --yes"),
    exit_statuses="0: success. 1: the database reported an error, or you did not confirm. Runs "
    "that were already deleted stay deleted. 2: the command line is invalid.",
)
@click.option(
    "--older-than",
    type=Number(least=0, most=MAX_DURATION.days, whole=False, above=True),
    metavar="DAYS",
    help="Delete runs that ended more than DAYS ago, such as 7 or 0.5. Default:"
    " dynbeat_history_retention.",
)
@click.option("--dry-run", is_flag=True, help="Only count the rows, and delete nothing.")
@yes_option
def prune_now(invocation: Invocation, *, older_than: float | None, dry_run: bool) -> None:
    """Delete old history and old changes now.

    The command deletes in small batches, as beat does. Runs that have not ended, and the last run
    of each schedule, are kept at any age. If DAYS is less than dynbeat_history_retention, the
    command asks for confirmation. Changes are deleted after dynbeat_audit_retention.
    """
    context = invocation.dynbeat.context
    retention = context.settings.history_retention
    age = retention if older_than is None else timedelta(days=older_than)
    if age < retention and not dry_run:
        kept = f"dynbeat_history_retention keeps {format_duration(retention)}"
        invocation.confirm(f"Delete all history older than {format_duration(age)}? {kept}.")
    deleted = _prune(context, age, dry_run=dry_run)
    changes_deleted = _count_changes(context) if dry_run else _prune_changes(context)
    verb = "would be deleted" if dry_run else "deleted"
    days = age / timedelta(days=1)
    audit_days = context.settings.audit_retention / timedelta(days=1)
    invocation.output.done(
        f"runs older than {days:g} days {verb}: {deleted};"
        f" changes older than {audit_days:g} days {verb}: {changes_deleted}",
        {
            "ok": True,
            "dry_run": dry_run,
            "deleted": deleted,
            "older_than_days": days,
            "changes_deleted": changes_deleted,
            "changes_older_than_days": audit_days,
        },
    )


def _prune(context: "Context", older_than: timedelta, *, dry_run: bool = False) -> int:
    # Late imports, here and in the other commands: help opens no database.
    from celery_dynbeat.beat.maintenance import LOWEST_ID, prune  # noqa: PLC0415

    context.prepare()
    # The same instant for all batches. Otherwise, runs that end during the prune could prolong it.
    now, deleted, after = context.clock.now(), 0, LOWEST_ID
    with progress("runs counted" if dry_run else "runs deleted") as advance:
        while True:
            batch = partial(prune, now=now, older_than=older_than, after=after, dry_run=dry_run)
            pruned = context.database.run(batch)
            deleted += pruned.deleted
            advance(deleted)
            if pruned.last_id is None:
                return deleted
            after = pruned.last_id


def _count_changes(context: "Context") -> int:
    from celery_dynbeat.store.schedules.changes import count_before  # noqa: PLC0415

    before = context.clock.now() - context.settings.audit_retention
    return context.database.read(partial(count_before, before=before))


def _prune_changes(context: "Context") -> int:
    from celery_dynbeat.beat.maintenance import BATCH_SIZE, prune_changes  # noqa: PLC0415

    now, older_than, deleted = context.clock.now(), context.settings.audit_retention, 0
    with progress("changes deleted") as advance:
        while True:
            count = context.database.run(partial(prune_changes, now=now, older_than=older_than))
            deleted += count
            advance(deleted)
            if count < BATCH_SIZE:
                return deleted
