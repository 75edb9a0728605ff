"""``dynbeat schema upgrade|check|application``: the tables."""

import json

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.parameters import argument, flag, option
from celery_dynbeat.common.settings import application_name


@command(
    "upgrade",
    flag("--sql", help="Print the statements without executing them."),
    option(
        "--from",
        "start",
        metavar="REVISION",
        help="With --sql: the revision of the tables, or base. [default: read from the database]",
    ),
)
def upgrade(cli: Invocation, *, sql: bool, start: str | None) -> None:
    """Create the tables, or migrate them to this version.

    If several processes run this command at the same time, one of them migrates the tables while
    the others wait for up to 10 minutes. No process migrates without holding the lock.

    psql, mysql and mariadb can execute the output of --sql. --from base prints all statements
    without a connection to the database. In this case, the URL of a MariaDB database must begin
    with mariadb+pymysql://. --sql does not support SQLite.

    For example:
        schema upgrade
        schema upgrade --sql
        schema upgrade --sql --from base

    Exit status: 0: the tables match this version. 1: they do not match it, or the database refused
    the command. 2: the command line is invalid.
    """
    # A late import, here and below: help opens no database.
    from celery_dynbeat.db import schema as tables  # noqa: PLC0415

    database = cli.dynbeat.context.database
    if not sql:
        if start is not None:
            raise click.UsageError("--from needs --sql")
        tables.upgrade(database)
        _show_revision(cli, "at revision {}")
        return
    printed, head = tables.upgrade_sql(database, start=start), tables.head()
    if cli.as_json:
        result = {"ok": True, "revision": head, "database": database.shown_url, "sql": printed}
        cli.line(json.dumps(result))
    elif printed:
        click.echo(printed, nl=False)
    else:
        cli.note(f"nothing to do: the tables are at revision {head}")


@command("check")
def check(cli: Invocation) -> None:
    """Check that the tables match this version.

    For example:
        schema check

    Exit status: 0: the tables match this version. 1: they do not match it, or the database refused
    the command. 2: the command line is invalid.
    """
    _show_revision(cli, "ok, revision {}")


def _show_revision(cli: Invocation, text: str) -> None:
    from celery_dynbeat.db import schema as tables  # noqa: PLC0415

    database = cli.dynbeat.context.database
    revision, shown = tables.check(database), database.shown_url
    result = {"ok": True, "revision": revision, "database": shown}
    cli.done(f"{shown}: {text.format(revision)}", result)


def _name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del context, parameter
    try:
        return None if value is None else application_name(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from None


@command("application", argument("name", required=False, callback=_name))
def application(cli: Invocation, name: str | None) -> None:
    """Show the application that the tables belong to, or record NAME.

    A beat of an application with a different name refuses to start, but beats that are already
    running do not stop. In --json, "this" is the name of the application that -A selects, or null
    if it has none.

    For example:
        schema application
        schema application shop
    """
    from celery_dynbeat import store  # noqa: PLC0415
    from celery_dynbeat.db import schema as tables  # noqa: PLC0415

    context = cli.dynbeat.context
    database, this = context.database, context.settings.application
    tables.check(database)
    if name is not None:
        now = context.clock.now()
        database.run(lambda session: store.rename_application(session, name=name, now=now))
    recorded = database.read(store.application_name)
    text = "no application is recorded" if recorded is None else f"application {recorded}"
    differs = "" if recorded in {None, this} else f" (this one is {this or 'not named'})"
    shown = database.shown_url
    cli.done(
        f"{shown}: {text}{differs}",
        {"ok": True, "application": recorded, "this": this, "database": shown},
    )


@click.group(commands=[upgrade, check, application])
def schema() -> None:
    """Create and check the tables."""
