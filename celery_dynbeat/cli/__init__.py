"""``celery -A proj dynbeat ...``: the commands that people type. One file for each noun."""

import click

from celery_dynbeat.cli.schema import schema


@click.group()
def dynbeat() -> None:
    """Database-backed schedules: the tables."""


dynbeat.add_command(schema)
