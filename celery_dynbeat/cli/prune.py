"""``dynbeat prune``: delete old history now."""

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import yes_option
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.common.settings import MAX_DURATION
from celery_dynbeat.common.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dynbeat.beat.maintenance import ChangeKey, Pruned
    from celery_dynbeat.process.context import Context


@command(
    "prune",
    examples=("prune", "prune --dry-run", "prune --older-than 7 --yes"),
    exit_statuses="0: success. 1: the database reported an error, refused to delete a row, or you "
    "did not confirm. All other rows are deleted. 2: the command line is invalid.",
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
    from celery_dynbeat.db.engine import reason_of  # noqa: PLC0415 - see _prune_runs

    context = invocation.dynbeat.context
    retention = context.settings.history_retention
    age = retention if older_than is None else timedelta(days=older_than)
    if age < retention and not dry_run:
        kept = f"dynbeat_history_retention keeps {format_duration(retention)}"
        invocation.confirm(f"Delete all history older than {format_duration(age)}? {kept}.")
    runs = _prune_runs(context, age, dry_run=dry_run)
    changes = _prune_changes(context, dry_run=dry_run)
    verb = "would be deleted" if dry_run else "deleted"
    days = age / timedelta(days=1)
    audit_days = context.settings.audit_retention / timedelta(days=1)
    refused = runs.refused or changes.refused
    note = "" if refused is None else f"; the database refuses rows: {reason_of(refused)}"
    invocation.output.done(
        f"runs older than {days:g} days {verb}: {runs.deleted};"
        f" changes older than {audit_days:g} days {verb}: {changes.deleted}{note}",
        {
            "ok": refused is None,
            "dry_run": dry_run,
            "deleted": runs.deleted,
            "older_than_days": days,
            "changes_deleted": changes.deleted,
            "changes_older_than_days": audit_days,
            "refused": refused and reason_of(refused),
        },
    )
    if refused is not None:
        invocation.context.exit(1)


def _prune_runs(context: "Context", older_than: timedelta, *, dry_run: bool) -> "Pruned[str]":
    # Late imports, here and in the other commands: help opens no database.
    from celery_dynbeat.beat import maintenance  # noqa: PLC0415

    if not dry_run:
        return _prune(context, maintenance.prune_runs, older_than, what="runs deleted")

    def count(*given: Any, **keywords: Any) -> "Pruned[str]":
        found = maintenance.prunable_runs(*given, **keywords)
        return maintenance.Pruned(len(found.ids), found.last, None)

    return _prune(context, count, older_than, what="runs counted")


def _prune_changes(context: "Context", *, dry_run: bool) -> "Pruned[ChangeKey]":
    from celery_dynbeat.beat import maintenance  # noqa: PLC0415
    from celery_dynbeat.store.schedules.changes import count_before  # noqa: PLC0415

    older_than = context.settings.audit_retention
    if not dry_run:
        return _prune(context, maintenance.prune_changes, older_than, what="changes deleted")
    before = context.clock.now() - older_than
    count = context.database.read(partial(count_before, before=before))
    return maintenance.Pruned(count, None, None)


def _prune(
    context: "Context", batch: "Callable[..., Pruned[Any]]", older_than: timedelta, *, what: str
) -> "Pruned[Any]":
    """Run all batches; return the number of rows and the last error."""
    context.prepare()
    # The same instant for all batches. Otherwise, runs that end during the prune could prolong it.
    now, deleted, after, refused = context.clock.now(), 0, None, None
    with progress(what) as advance:
        while True:
            pruned = batch(context.database, now=now, older_than=older_than, after=after)
            deleted, after = deleted + pruned.deleted, pruned.last
            refused = pruned.refused or refused
            advance(deleted)
            if after is None:
                return pruned._replace(deleted=deleted, refused=refused)
