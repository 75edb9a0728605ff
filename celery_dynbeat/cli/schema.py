"""``dynbeat schema upgrade|check|application``. Exit status 1 after an error or if outdated."""

import json
from collections.abc import Callable
from typing import Any

import click
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.cli.errors import fail
from celery_dynbeat.client import Context, dynbeat_of
from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.common.settings import application_name
from celery_dynbeat.db import schema as tables
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import application as store


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
    """Check that the tables fit this version."""
    _run(context, lambda _: None, "ok, revision {}", as_json=as_json)


def _name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del context, parameter
    try:
        return None if value is None else application_name(value)
    except ValueError as error:
        msg = f"{value!r} {error}"
        raise click.BadParameter(msg) from None


@schema.command()
@click.argument("name", required=False, callback=_name)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def application(context: click.Context, name: str | None, *, as_json: bool) -> None:
    """Show the application that the tables belong to. With NAME, record that name.

    A beat of an application with another name refuses to start. Running beats do not stop.
    """
    try:
        dynbeat_context = dynbeat_of(context.obj.app).context
        recorded = _recorded(dynbeat_context, name)
    except (DynbeatError, SQLAlchemyError) as error:
        fail(context, error, as_json=as_json)
    shown = dynbeat_context.database.shown_url
    this = dynbeat_context.settings.application
    output = {"ok": True, "application": recorded, "this": this, "database": shown}
    text = "no application is recorded" if recorded is None else f"application {recorded}"
    differs = "" if recorded in {None, this} else f" (this one is {this or 'not named'})"
    click.echo(json.dumps(output) if as_json else f"{shown}: {text}{differs}")


def _recorded(context: Context, name: str | None) -> str | None:
    """Return the recorded name; record ``name`` first if it is given."""
    tables.check(context.database)
    if name is not None:
        now = context.clock.now()
        context.database.run(lambda session: store.rename(session.connection(), name=name, now=now))
    return context.database.read(lambda session: store.get_name(session.connection()))


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
        fail(context, error, as_json=as_json)
    shown = database.shown_url
    output = {"ok": True, "revision": revision, "database": shown}
    click.echo(json.dumps(output) if as_json else f"{shown}: {text.format(revision)}")
