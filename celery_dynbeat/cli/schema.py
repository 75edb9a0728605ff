"""``dynbeat schema upgrade`` and ``dynbeat schema check``. Exit status 1 when refused or behind."""

import json
from collections.abc import Callable
from typing import Any

import click
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.client import dynbeat_of
from celery_dynbeat.db import schema as tables
from celery_dynbeat.db.engine import Database
from celery_dynbeat.errors import DynbeatError


@click.group()
def schema() -> None:
    """Create and check the tables."""


@schema.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def upgrade(context: click.Context, *, as_json: bool) -> None:
    """Create the tables, or migrate them to this version."""
    _run(context, tables.upgrade, "at revision {}", as_json=as_json)


@schema.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def check(context: click.Context, *, as_json: bool) -> None:
    """Say whether the tables are those that this version needs."""
    _run(context, lambda _: None, "ok, revision {}", as_json=as_json)


def _run(
    context: click.Context,
    work: Callable[[Database], Any],
    text: str,
    *,
    as_json: bool,
) -> None:
    try:
        database = dynbeat_of(context.obj.app).context.database
        work(database)
        revision = tables.check(database)
    except (DynbeatError, SQLAlchemyError) as error:
        problem = str(error).partition("\n")[0]
        click.echo(
            json.dumps({"ok": False, "error": problem}) if as_json else problem, err=not as_json
        )
        context.exit(1)
    shown = database.shown_url
    answer = {"ok": True, "revision": revision, "database": shown}
    click.echo(json.dumps(answer) if as_json else f"{shown}: {text.format(revision)}")
