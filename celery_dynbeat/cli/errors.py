"""How a command exits after an error of the configuration or the database."""

import json
from typing import NoReturn

import click
from sqlalchemy.exc import DBAPIError

from celery_dynbeat.client import dynbeat_of


def fail(context: click.Context, error: Exception, *, as_json: bool) -> NoReturn:
    """Print the error and exit with status 1."""
    text = _error_text(context, error)
    click.echo(json.dumps({"ok": False, "error": text}) if as_json else text, err=not as_json)
    context.exit(1)


def _error_text(context: click.Context, error: Exception) -> str:
    text = str(error).partition("\n")[0]
    if not isinstance(error, DBAPIError):
        return text
    # A driver's message names neither the database nor the setting.
    url = dynbeat_of(context.obj.app).context.database.shown_url
    return f"{url}: {text}; check dynbeat_database_url, its server and the account's rights"
