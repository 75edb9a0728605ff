"""How a command ends when the configuration or the database refuses it."""

import json
from typing import NoReturn

import click
from sqlalchemy.exc import DBAPIError

from celery_dynbeat.client import dynbeat_of


def fail(context: click.Context, error: Exception, *, as_json: bool) -> NoReturn:
    """Print what is wrong and end with exit status 1."""
    problem = _problem(context, error)
    click.echo(json.dumps({"ok": False, "error": problem}) if as_json else problem, err=not as_json)
    context.exit(1)


def _problem(context: click.Context, error: Exception) -> str:
    said = str(error).partition("\n")[0]
    if not isinstance(error, DBAPIError):
        return said
    # The words of the driver name neither the setting nor the database.
    url = dynbeat_of(context.obj.app).context.database.shown_url
    return f"{url}: {said}; check dynbeat_database_url, its server, and the rights of the account"
