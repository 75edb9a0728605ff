"""``dynbeat import``: take over the schedules of another scheduler."""

from collections import Counter, defaultdict
from typing import Any, TypeAlias, cast

import click

from celery_dynbeat.cli.base.cells import Column, owner_column
from celery_dynbeat.cli.base.errors import FAILED
from celery_dynbeat.cli.base.invocation import Invocation, command, progress
from celery_dynbeat.cli.base.parameters import EDIT, argument, flag, option
from celery_dynbeat.importing.foreign import ImportOutcome, ImportResult, Source
from celery_dynbeat.importing.table_rows import (
    CELERY_SQLALCHEMY_SCHEDULER,
    DJANGO_CELERY_BEAT,
    SQLALCHEMY_CELERY_BEAT,
)
from celery_dynbeat.importing.tables import TableSource
from celery_dynbeat.importing.write_back import WriteBack
from celery_dynbeat.importing.writing import Importer, owner_function
from celery_dynbeat.store.holds import is_everything_held

_STYLES = {
    **dict.fromkeys(("update", "advance", "pause", "skip"), "yellow"),
    "create": "green",
    "refuse": "red",
}
_DONE = {
    ImportOutcome.CREATE: "created",
    ImportOutcome.UPDATE: "updated",
    ImportOutcome.ADVANCE: "advanced",
    ImportOutcome.PAUSE: "paused",
    ImportOutcome.KEEP: "unchanged",
    ImportOutcome.SKIP: "skipped",
    ImportOutcome.REFUSE: "refused",
}
#: The same for --back, in this order. It creates nothing.
_WRITTEN_BACK = {
    ImportOutcome.ADVANCE: "advanced",
    ImportOutcome.PAUSE: "disabled",
    ImportOutcome.UPDATE: "enabled",
    ImportOutcome.KEEP: "unchanged",
    ImportOutcome.SKIP: "skipped",
    ImportOutcome.REFUSE: "refused",
}
#: Schedules that a note names.
_EXAMPLES = 3
_COLUMNS = (
    Column("outcome", style=lambda outcome: _STYLES.get(str(outcome), "")),
    owner_column(),
    Column("name", lambda result: result.entry.name, width=12),
    Column("before", lambda result: result.entry.described, width=16),
    Column("after", lambda result: result.trigger, width=16),
    Column("reason", width=12),
    Column(
        "notes", lambda result: ", ".join(note.topic for note in result.entry.notes), optional=True
    ),
)
_LAYOUTS = {
    each.package: each
    for each in (DJANGO_CELERY_BEAT, SQLALCHEMY_CELERY_BEAT, CELERY_SQLALCHEMY_SCHEDULER)
}
_REDBEAT = "redbeat"
_BACK, _TABLES = {"back", "without_hold"}, {"schema", "naive_timezone"}
#: The options of each source, besides those of all sources.
_OPTIONS = {
    _REDBEAT: {"key_prefix", "cluster"},
    **dict.fromkeys(_LAYOUTS, _TABLES),
    DJANGO_CELERY_BEAT.package: _TABLES | _BACK,
}


@command(
    "import",
    argument("package", type=click.Choice([*_OPTIONS])),
    argument("url", envvar="DYNBEAT_IMPORT_URL", required=False),
    flag("--apply", "applies", help="Write the changes. Without this option, nothing is written."),
    *EDIT,
    option(
        "--owner-from",
        metavar="MODULE:FUNCTION",
        help="A function that takes a row of the source as a mapping and returns its owner.",
    ),
    option("--schema", metavar="SCHEMA", help="The schema of the tables in a database."),
    option(
        "--naive-timezone",
        metavar="ZONE",
        help="The time zone of instants on databases that store no zone. Default: UTC, or the time"
        " zone of the application for celery-sqlalchemy-scheduler.",
    ),
    flag(
        "--back",
        help="Write to django-celery-beat what has run, was paused or has ended here.",
    ),
    flag(
        "--without-hold",
        help="With --back --apply, write even if beat can send runs at the same time.",
    ),
    option(
        "--key-prefix",
        help="The prefix of RedBeat's keys. Default: the redbeat_key_prefix setting, or else"
        " redbeat:",
    ),
    flag("--cluster", help="The URL of RedBeat belongs to a Redis Cluster."),
    columns=_COLUMNS,
)
def import_schedules(
    cli: Invocation,
    *,
    package: str,
    url: str | None,
    applies: bool,
    owner_from: str | None,
    **given: Any,
) -> None:
    """Import the schedules of another scheduler.

    URL is the database, or the Redis server for redbeat. The DYNBEAT_IMPORT_URL environment
    variable can contain it, so that the process list does not show its password. Without a URL,
    redbeat uses the Redis server from the application's RedBeat settings, including sentinels and
    clusters. In this case, celery-redbeat must be installed. The source is only read.

    If you omit --apply, nothing is written. The output shows the result for each schedule, and why
    a schedule cannot be imported. A second import overwrites everything that differs from the
    source, including edits of the task, its arguments or its trigger that you have made here.

    For django-celery-beat, --back works in the other direction. It writes to the old tables what
    has run here, so that the old beat sends no run twice when it starts again. It does not write
    the definitions of schedules.

    For example:
        import django-celery-beat postgresql://user@host/app
        import django-celery-beat $DATABASE_URL --apply --owner-from proj.owners:of_row
        import redbeat redis://host:6379/1
        import sqlalchemy-celery-beat postgresql://user@host/app --schema celery_schema
        import celery-sqlalchemy-scheduler mysql://user@host/app --apply

    Exit status: 0: success. 1: a schedule was refused, or a database reported an error. The other
    schedules are imported. 2: the command line is invalid.
    """
    for name, value in given.items():
        if value and name not in _OPTIONS[package]:
            raise click.UsageError(f"{package} takes no --{name.replace('_', '-')}")
    if package == _REDBEAT:
        source = _redbeat(cli, url, prefix=given["key_prefix"], cluster=given["cluster"])
        advice = "check the number of the Redis database, and --key-prefix"
    else:
        source = _tables(cli, package, url, schema=given["schema"], zone=given["naive_timezone"])
        advice = "check which source is read"
    back = {name: given[name] for name in _BACK}
    _import(cli, source, applies=applies, owner_from=owner_from, if_empty=advice, **back)


def _redbeat(cli: Invocation, url: str | None, *, prefix: str | None, cluster: bool) -> Source:
    from celery_dynbeat.importing.redbeat import RedBeatSource  # noqa: PLC0415

    return RedBeatSource(url, context=cli.dynbeat.context, prefix=prefix, cluster=cluster)


def _tables(
    cli: Invocation, package: str, url: str | None, *, schema: str | None, zone: str | None
) -> Source:

    if url is None:
        raise click.UsageError("give the URL of the source, or set DYNBEAT_IMPORT_URL")
    cli.check_zone(zone)
    context = cli.dynbeat.context
    return TableSource(url, _LAYOUTS[package], context=context, schema=schema, zone=zone)


def _import(
    cli: Invocation,
    source: Source,
    *,
    applies: bool,
    owner_from: str | None,
    if_empty: str,
    back: bool,
    without_hold: bool,
) -> None:
    """Import the schedules of ``source``, and print the results.

    ``if_empty`` is the advice for a source without schedules.
    """
    context = cli.dynbeat.context
    owner_of = owner_function(owner_from, default=cli.owner or "")
    importer: Importer
    if back:
        if applies and not without_hold:
            _check_stopped(cli)
        target = cast("TableSource", source) if applies else None
        importer = WriteBack(context, source.package, owner_of, target=target)
    else:
        importer = Importer(context, source.package, owner_of, dry_run=not applies)
    outcomes, notes = Counter[ImportOutcome](), Notes(_Some)
    total, done = source.count(), 0
    with progress("writing" if applies and back else "importing" if applies else "reading") as bar:
        for page in source.pages():
            results = importer.write(page)
            for result in results:
                outcomes[result.outcome] += 1
                _note(result, notes)
            shown = [each for each in results if each.outcome is not ImportOutcome.KEEP]
            if shown:
                cli.show(_COLUMNS, shown, hidden=())
            done += len(page)
            bar(done, total)
    if not outcomes:
        cli.note(f"the source has no schedules: {if_empty}")
    _report(cli, importer, notes, back=back)
    words = _WRITTEN_BACK if back else _DONE
    counts = ", ".join(f"{outcomes[each]:,} {word}" for each, word in words.items())
    cli.note(counts if applies else f"{counts} (dry run: nothing was written)")
    if outcomes[ImportOutcome.REFUSE]:
        cli.context.exit(FAILED)


def _report(cli: Invocation, importer: Importer, notes: "Notes", *, back: bool) -> None:
    """Print the schedules that the source no longer has, and the notes with their schedules."""
    left_over = _Some()
    for _, name in importer.left_over():
        left_over.add(name)
    if left_over.count:
        rule = "they still run; delete the schedules that must not run"
        if back:
            rule = "the other scheduler does not run them"
        cli.note(f"no longer in the source: {left_over} ({left_over.count:,}); {rule}")
    for topic, text in sorted(notes):
        some = notes[topic, text]
        cli.note(f"{topic}: {text} ({some.count:,}: {some})")


class _Some:
    """A number of schedules, and the names of the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._names: list[str] = []

    def add(self, name: str) -> None:
        """Count a schedule."""
        self.count += 1
        if len(self._names) < _EXAMPLES:
            self._names.append(name)

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self._names) else ""
        return f"{', '.join(self._names)}{more}"


#: The schedules with each note, by topic and text.
Notes: TypeAlias = defaultdict[tuple[str, str], _Some]


def _note(result: ImportResult, notes: Notes) -> None:
    """Count a schedule under each of its notes, if it was not left out."""
    if result.outcome not in {ImportOutcome.SKIP, ImportOutcome.REFUSE}:
        for note in result.entry.notes:
            notes[note.topic, note.text].add(result.entry.name)


def _check_stopped(cli: Invocation) -> None:
    """Refuse to write back while beat sends, or has recorded runs that it must still send."""
    now = cli.now
    if not cli.dynbeat.context.read(None, lambda session: is_everything_held(session, now=now)):
        cli.refuse(
            "beat can send runs: `dynbeat hold --all-owners --reason switch` first;"
            " --without-hold if no beat runs"
        )
    pending = cli.schedules.count_runs(status="pending")
    if pending.count:
        cli.refuse(
            f"{pending} runs are recorded and not sent: wait until a beat has sent them, or"
            " `dynbeat cancel --all --all-owners --status pending`"
        )
