"""``dynbeat schema upgrade|check|application``: the tables."""

import json
from typing import TYPE_CHECKING

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.common.settings import application_name

if TYPE_CHECKING:
    from celery_dynbeat.process.context import Context

_OUTDATED = (
    "0: the tables match this version. 1: they do not match it, or the database refused the"
    " command."
    " 2: the command line is invalid."
)


@click.group()
def schema() -> None:
    """Create and check the tables."""


@command(
    "upgrade",
    examples=("schema upgrade", "schema upgrade --sql", "schema upgrade --sql --from base"),
    exit_statuses=_OUTDATED,
)
@click.option("--sql", is_flag=True, help="Print the statements without executing them.")
@click.option(
    "--from",
    "start",
    metavar="REVISION",
    help="With --sql: the revision of the tables, or base. [default: read from the database]",
)
def upgrade(invocation: Invocation, *, sql: bool, start: str | None) -> None:
    """Create the tables, or migrate them to this version.

    If several processes run this command at the same time, one of them migrates the tables while
    the others wait for up to 10 minutes. No process migrates without holding the lock.

    psql, mysql and mariadb can execute the output of --sql. --from base prints all statements
    without a connection to the database. In this case, the URL of a MariaDB database must begin
    with mariadb+pymysql://. --sql does not support SQLite.
    """
    from celery_dynbeat.db import schema as tables  # noqa: PLC0415

    if sql:
        _print_sql(invocation, start)
        return
    if start is not None:
        raise click.UsageError("--from needs --sql")
    tables.upgrade(invocation.dynbeat.context.database)
    _show_revision(invocation, "at revision {}")


@command("check", examples=("schema check",), exit_statuses=_OUTDATED)
def check(invocation: Invocation) -> None:
    """Check that the tables match this version."""
    _show_revision(invocation, "ok, revision {}")


def _print_sql(invocation: Invocation, start: str | None) -> None:
    from celery_dynbeat.db import schema as tables  # noqa: PLC0415

    database, output = invocation.dynbeat.context.database, invocation.output
    printed = tables.upgrade_sql(database, start=start)
    if output.as_json:
        result = {"ok": True, "revision": tables.head(), "database": database.shown_url}
        output.line(json.dumps({**result, "sql": printed}))
    elif printed:
        click.echo(printed, nl=False)
    else:
        output.note(f"nothing to do: the tables are at revision {tables.head()}")


def _show_revision(invocation: Invocation, text: str) -> None:
    from celery_dynbeat.db import schema as tables  # noqa: PLC0415

    database = invocation.dynbeat.context.database
    revision = tables.check(database)
    shown = database.shown_url
    invocation.output.done(
        f"{shown}: {text.format(revision)}", {"ok": True, "revision": revision, "database": shown}
    )


def _name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del context, parameter
    try:
        return None if value is None else application_name(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from None


@command("application", examples=("schema application", "schema application shop"))
@click.argument("name", required=False, callback=_name)
def application(invocation: Invocation, name: str | None) -> None:
    """Show the application that the tables belong to, or record NAME.

    A beat of an application with a different name refuses to start, but beats that are already
    running do not stop. In --json, "this" is the name of the application that -A selects, or null
    if it has none.
    """
    context = invocation.dynbeat.context
    recorded = _recorded(context, name)
    shown, this = context.database.shown_url, context.settings.application
    text = "no application is recorded" if recorded is None else f"application {recorded}"
    differs = "" if recorded in {None, this} else f" (this one is {this or 'not named'})"
    invocation.output.done(
        f"{shown}: {text}{differs}",
        {"ok": True, "application": recorded, "this": this, "database": shown},
    )


def _recorded(context: "Context", name: str | None) -> str | None:
    """Return the recorded name; record ``name`` first if it is given."""
    from celery_dynbeat import store  # noqa: PLC0415
    from celery_dynbeat.db import schema as tables  # noqa: PLC0415

    tables.check(context.database)
    if name is not None:
        now = context.clock.now()
        context.database.run(
            lambda session: store.rename_application(session.connection(), name=name, now=now)
        )
    return context.database.read(lambda session: store.application_name(session.connection()))


for _command in (upgrade, check, application):
    schema.add_command(_command)
