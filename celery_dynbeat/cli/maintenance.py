"""``dynbeat schema|prune|replan``: the tables; delete old history now; plan schedules again."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy.exc import DBAPIError

from celery_dynbeat import store
from celery_dynbeat.api.owner_clock import apply_quiet_setting
from celery_dynbeat.cli.base.invocation import Invocation, command, progress
from celery_dynbeat.cli.base.parameters import YES, FloatRange, argument, flag, option
from celery_dynbeat.common.rules import MAX_DURATION
from celery_dynbeat.common.settings import application_name, tz_release
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.db import schema as tables
from celery_dynbeat.db.engine import reason_of
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.changes import count_before
from celery_dynbeat.store.owners import with_schedules
from celery_dynbeat.store.schedules import due

if TYPE_CHECKING:
    from celery_dynbeat.beat.pruning import Pruned

#: The rounds for schedules that others have locked, and the seconds before each.
_ROUNDS, _PAUSE = 5, 1
#: The owners that are read together.
_PAGE = 500
#: The refused owners that an error names.
_NAMED = 5


@command(
    "prune",
    option(
        "--older-than",
        type=FloatRange(0, MAX_DURATION.days, min_open=True),
        metavar="DAYS",
        help="Delete runs that ended more than DAYS ago, such as 7 or 0.5. Default:"
        " dynbeat_history_retention.",
    ),
    flag("--dry-run", help="Only count the rows, and delete nothing."),
    YES,
)
def prune(cli: Invocation, *, older_than: float | None, dry_run: bool) -> None:
    """Delete old history and old changes now.

    The command deletes in small batches, as beat does. Runs that have not ended, and the last run
    of each schedule, are kept at any age. If DAYS is less than dynbeat_history_retention, the
    command asks for confirmation. Changes are deleted after dynbeat_audit_retention.

    For example:
        prune
        prune --dry-run
        prune --older-than 7 --yes

    Exit status: 0: success. 1: the database reported an error, refused to delete a row, or you did
    not confirm. All other rows are deleted. 2: the command line is invalid.
    """
    context = cli.dynbeat.context
    retention, audit = context.settings.history_retention, context.settings.audit_retention
    age = retention if older_than is None else timedelta(days=older_than)
    if age < retention and not dry_run:
        kept = f"dynbeat_history_retention keeps {format_duration(retention)}"
        cli.confirm(f"Delete all history older than {format_duration(age)}? {kept}.")
    of_runs, of_changes = _batches(context, dry_run=dry_run)
    done = "counted" if dry_run else "deleted"
    runs = _prune(context, of_runs, age, what=f"runs {done}")
    changes = _prune(context, of_changes, audit, what=f"changes {done}")
    verb = "would be deleted" if dry_run else "deleted"
    days, audit_days = age / timedelta(days=1), audit / timedelta(days=1)
    error = runs.refused or changes.refused
    refused = None if error is None else reason_of(error)
    note = "" if refused is None else f"; the database refuses rows: {refused}"
    cli.done(
        f"runs older than {days:g} days {verb}: {runs.deleted};"
        f" changes older than {audit_days:g} days {verb}: {changes.deleted}{note}",
        {
            "ok": refused is None,
            "dry_run": dry_run,
            "deleted": runs.deleted,
            "older_than_days": days,
            "changes_deleted": changes.deleted,
            "changes_older_than_days": audit_days,
            "refused": refused,
        },
    )
    cli.context.exit(0 if refused is None else 1)


def _batches(context: Context, *, dry_run: bool) -> "Sequence[Callable[..., Pruned[Any]]]":
    """Return the functions that delete a batch of runs and one of changes, or count them."""
    from celery_dynbeat.beat import pruning  # noqa: PLC0415

    def count_runs(*given: Any, **keywords: Any) -> "Pruned[str]":
        found = pruning.prunable_runs(*given, **keywords)
        return pruning.Pruned(len(found.ids), found.last, None)

    def count_changes(*_: Any, now: datetime, older_than: timedelta, **__: Any) -> "Pruned[Any]":
        count = context.database.read(partial(count_before, before=now - older_than))
        return pruning.Pruned(count, None, None)

    if dry_run:
        return count_runs, count_changes
    return pruning.prune_runs, pruning.prune_changes


def _prune(
    context: Context, batch: "Callable[..., Pruned[Any]]", older_than: timedelta, *, what: str
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


@command(
    "replan",
    option("--zone", metavar="ZONE", help="Plan only the schedules that depend on this time zone."),
    flag(
        "--quiet-hours",
        help="Write dynbeat_quiet_hours into the schedules instead, after a change of this"
        " setting.",
    ),
)
def replan(cli: Invocation, *, zone: str | None, quiet_hours: bool) -> None:
    """Plan schedules again: new tz database, or new dynbeat_quiet_hours.

    Run the command when all processes use the new release or setting. It moves each future fire
    time to the nearest one by the rules of this process, in small transactions, and quiet hours in
    one transaction for each owner. Beat continues meanwhile. If you repeat the command, it changes
    nothing.

    For example:
        replan
        replan --zone Europe/Berlin
        replan --quiet-hours

    Exit status: 0: success. 1: the database reported an error, or schedules stayed locked. Repeat
    the command. 2: the command line is invalid.
    """
    if quiet_hours and zone is not None:
        raise click.UsageError("give --zone or --quiet-hours, not both")
    cli.check_zone(zone)
    context, release = cli.dynbeat.context, tz_release()
    context.prepare()
    if quiet_hours:
        changed, refused = _write_quiet_hours(context)
        if refused:
            cli.refuse(
                f"{changed} schedules have other quiet hours; the database refused those of"
                f" {len(refused)} owners: {'; '.join(refused[:_NAMED])}"
            )
        result: dict[str, object] = {"ok": True, "changed": changed}
        cli.done(f"schedules with other quiet hours: {changed}", result)
        return
    changed, locked = _replan(context, zone)
    if locked:
        cli.refuse(
            f"{changed} schedules were planned again; other transactions have locked"
            f" {len(locked)} more: repeat the command"
        )
    if zone is None and release is not None:
        context.database.run(lambda session: store.record_tz_release(session, release))
    known = "" if release is None else f" with release {release} of the tz database"
    result = {"ok": True, "changed": changed, "zone": zone, "release": release}
    cli.done(f"schedules planned again{known}: {changed}", result)


def _write_quiet_hours(context: Context) -> tuple[int, Sequence[str]]:
    """Write the quiet hours of each owner into its schedules, in one transaction for each owner.

    Returns how many schedules changed, and the owners whose change the database refuses, with the
    reason.
    """
    changed, refused = 0, list[str]()
    found = _pages(context, with_schedules, after="", limit=_PAGE, what="owners")
    # Of the application, and then of the owners above "".
    for owner in chain([""], chain.from_iterable(found)):
        try:
            changed += context.write(None, partial(apply_quiet_setting, context, owner=owner))
        except DBAPIError as error:
            if not context.database.capabilities.is_refusal(error):
                raise
            refused.append(f"{owner!r}: {reason_of(error)}")
    return changed, refused


def _replan(context: Context, zone: str | None) -> tuple[int, Sequence[int]]:
    """Return the number of changed schedules, and the ids of those that stayed locked."""
    from celery_dynbeat.beat.tz_release import BATCH_SIZE, replan_batch  # noqa: PLC0415

    changed, locked = 0, list[int]()

    def plan(ids: Sequence[int]) -> None:
        nonlocal changed
        work = partial(replan_batch, context=context, ids=ids, zone=zone, now=context.clock.now())
        batch = context.database.run(work)
        changed += batch.changed
        locked.extend(batch.locked)

    for ids in _pages(context, due.ids_after, after=0, limit=BATCH_SIZE, what="schedules read"):
        plan(ids)
    for _ in range(_ROUNDS):
        if not locked:
            break
        time.sleep(_PAUSE)
        again, locked = locked, []
        for start in range(0, len(again), BATCH_SIZE):
            plan(again[start : start + BATCH_SIZE])
    return changed, locked


def _pages(
    context: Context, read: Callable[..., Sequence[Any]], *, after: Any, limit: int, what: str
) -> Iterator[Sequence[Any]]:
    """Yield pages of ids or owners in order, and report how many are done."""
    done = 0
    with progress(what) as advance:
        while page := context.database.read(partial(read, after=after, limit=limit)):
            yield page
            after, done = page[-1], done + len(page)
            advance(done)


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
