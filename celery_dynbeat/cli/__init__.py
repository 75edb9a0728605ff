"""``celery -A proj dynbeat ...``: the commands that people type. One file for each noun."""

import click

from celery_dynbeat.cli.prune import prune_now
from celery_dynbeat.cli.schema import schema
from celery_dynbeat.cli.status import status


@click.group()
def dynbeat() -> None:
    """Database-backed schedules: their health, their history, their tables."""


dynbeat.add_command(status)
dynbeat.add_command(prune_now)
dynbeat.add_command(schema)
