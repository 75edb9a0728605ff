"""``dynbeat prune``: delete old history now. Exit status 1 after an error of the database."""

import json
from datetime import timedelta
from functools import partial

import click
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.beat.pruner import LOWEST_ID, prune
from celery_dynbeat.cli.errors import fail
from celery_dynbeat.client import Context, dynbeat_of
from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.common.settings import MAX_DURATION


@click.command("prune")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0, min_open=True, max=MAX_DURATION.days),
    metavar="DAYS",
    help="Delete runs that ended more than DAYS ago. Default: dynbeat_history_retention.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def prune_now(context: click.Context, *, older_than: float | None, as_json: bool) -> None:
    """Delete old history now, in small batches as beat does."""
    try:
        dynbeat_context = dynbeat_of(context.obj.app).context
        retention = dynbeat_context.settings.history_retention
        age = retention if older_than is None else timedelta(days=older_than)
        deleted = _prune(dynbeat_context, age)
    except (DynbeatError, SQLAlchemyError) as error:
        fail(context, error, as_json=as_json)
    days = age / timedelta(days=1)
    output = {"ok": True, "deleted": deleted, "older_than_days": days}
    text = f"runs older than {days:g} days deleted: {deleted}"
    click.echo(json.dumps(output) if as_json else text)


def _prune(context: Context, older_than: timedelta) -> int:
    context.prepare()
    # One instant for all batches: otherwise runs that end during the prune could prolong it.
    now, deleted, after = context.clock.now(), 0, LOWEST_ID
    while True:
        batch = partial(prune, now=now, older_than=older_than, after=after)
        pruned = context.database.run(batch)
        deleted += pruned.deleted
        if pruned.last_id is None:
            return deleted
        after = pruned.last_id
