"""``dynbeat import``: take over the schedules of another scheduler."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from celery_dynbeat.cli.base.columns import Column, owner_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.garbage import collecting_rarely
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import combined, edit_options
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.importing.found import Source
from celery_dynbeat.importing.owners import owner_function
from celery_dynbeat.importing.results import Outcome, Result
from celery_dynbeat.importing.sql.layouts import (
    CELERY_SQLALCHEMY_SCHEDULER,
    DJANGO_CELERY_BEAT,
    SQLALCHEMY_CELERY_BEAT,
    Layout,
)

if TYPE_CHECKING:
    from celery_dynbeat.importing.sql.source import DjangoSource
    from celery_dynbeat.importing.writing import Importer

_STYLES = {"create": "green", "update": "yellow", "advance": "yellow", "pause": "yellow"}
_STYLES |= {"refuse": "red", "skip": "yellow"}
_DONE = {
    Outcome.CREATE: "created",
    Outcome.UPDATE: "updated",
    Outcome.ADVANCE: "advanced",
    Outcome.PAUSE: "paused",
    Outcome.KEEP: "unchanged",
    Outcome.SKIP: "skipped",
    Outcome.REFUSE: "refused",
}
#: The same for --back.
_WRITTEN_BACK = {
    Outcome.ADVANCE: "advanced",
    Outcome.PAUSE: "disabled",
    Outcome.UPDATE: "enabled",
    Outcome.KEEP: "unchanged",
    Outcome.SKIP: "skipped",
    Outcome.REFUSE: "refused",
}
#: Schedules that a note names.
_EXAMPLES = 3
_STATUSES = (
    "0: success. 1: a schedule was refused, or a database reported an error. The "
    "other schedules are imported. 2: the command line is invalid."
)


def _style(value: Any) -> str:
    return _STYLES.get(str(value), "")


_COLUMNS = (
    Column("outcome", lambda result: str(result.outcome), style=_style),
    owner_column(),
    Column("name", lambda result: result.found.name, width=12),
    Column("before", lambda result: result.found.described, width=16),
    Column("after", lambda result: result.trigger, width=16),
    Column("reason", width=12),
    Column(
        "notes", lambda result: ", ".join(note.topic for note in result.found.notes), optional=True
    ),
)

import_options = combined(
    click.option(
        "--apply",
        "applies",
        is_flag=True,
        help="Write the changes. Without this option, nothing is written.",
    ),
    edit_options,
    click.option(
        "--owner-from",
        metavar="MODULE:FUNCTION",
        help="A function that takes a row of the source as a mapping and returns its owner.",
    ),
)
back_options = combined(
    click.option(
        "--back",
        is_flag=True,
        help="Write to the other scheduler what has run, was paused or has ended here.",
    ),
    click.option(
        "--without-hold",
        is_flag=True,
        help="With --back --apply, write even if beat can send runs at the same time.",
    ),
)
url_argument = click.argument("url", envvar="DYNBEAT_IMPORT_URL", required=False)


table_options = combined(
    click.option("--schema", metavar="SCHEMA", help="The schema of the tables."),
    click.option(
        "--naive-timezone",
        metavar="ZONE",
        help="The time zone of instants on databases that store no zone. Default: UTC, or the time"
        " zone of the application for celery-sqlalchemy-scheduler.",
    ),
)


@click.group("import")
def import_schedules() -> None:
    """Import the schedules of another scheduler.

    If you omit --apply, nothing is written. The output shows the result for each schedule, and why
    a schedule cannot be imported. A second import overwrites everything that differs from the
    source, including edits of the task, its arguments or its trigger that you have made here.

    For django-celery-beat, --back works in the other direction. It writes to the old tables what
    has run here, so that the old beat sends no run twice when it starts again. It does not write
    the definitions of schedules.
    """


@command(
    "django-celery-beat",
    examples=(
        "import django-celery-beat postgresql://user@host/app",
        "import django-celery-beat sqlite:////srv/db.sqlite3 --apply",
        "import django-celery-beat $DATABASE_URL --apply --owner-from proj.owners:of_row",
    ),
    exit_statuses=_STATUSES,
    columns=_COLUMNS,
)
@url_argument
@import_options
@back_options
@table_options
def django_celery_beat(invocation: Invocation, **given: Any) -> None:
    """Import the tasks of django-celery-beat from a database URL.

    The DYNBEAT_IMPORT_URL environment variable can contain the URL, so that the process list does
    not show its password. Unless you pass --back, the tables are only read.
    """
    _import_tables(invocation, DJANGO_CELERY_BEAT, **given)


@command(
    "redbeat",
    examples=(
        "import redbeat redis://host:6379/1",
        "import redbeat --apply --owner-from proj.owners:of_row",
    ),
    exit_statuses=_STATUSES,
    columns=_COLUMNS,
)
@url_argument
@import_options
@click.option(
    "--key-prefix",
    help="The prefix of RedBeat's keys. Default: the redbeat_key_prefix setting, or else redbeat:",
)
@click.option("--cluster", is_flag=True, help="The URL belongs to a Redis Cluster.")
def redbeat(
    invocation: Invocation, *, url: str | None, key_prefix: str | None, cluster: bool, **given: Any
) -> None:
    """Import the entries of celery-redbeat from a Redis URL.

    If you omit the URL, the command uses the Redis server from the application's RedBeat settings,
    including sentinels and clusters. In this case, celery-redbeat must be installed. Redis is only
    read.
    """
    # Late imports, here and below: help opens no database.
    from celery_dynbeat.importing.redbeat.source import RedBeatSource  # noqa: PLC0415

    context = invocation.dynbeat.context
    source = RedBeatSource(url, context=context, prefix=key_prefix, cluster=cluster)
    advice = "check the number of the Redis database, and --key-prefix"
    run(invocation, source, if_empty=advice, **given)


@command(
    "sqlalchemy-celery-beat",
    examples=(
        "import sqlalchemy-celery-beat postgresql://user@host/app --schema celery_schema",
        "import sqlalchemy-celery-beat sqlite:///schedule.db --apply",
    ),
    exit_statuses=_STATUSES,
    columns=_COLUMNS,
)
@url_argument
@import_options
@table_options
def sqlalchemy_celery_beat(invocation: Invocation, **given: Any) -> None:
    """Import the tasks of sqlalchemy-celery-beat from a database URL.

    --schema is the value of the beat_schema setting. The tables are only read.
    """
    _import_tables(invocation, SQLALCHEMY_CELERY_BEAT, **given)


@command(
    "celery-sqlalchemy-scheduler",
    examples=("import celery-sqlalchemy-scheduler mysql://user@host/app --apply",),
    exit_statuses=_STATUSES,
    columns=_COLUMNS,
)
@url_argument
@import_options
@table_options
def celery_sqlalchemy_scheduler(invocation: Invocation, **given: Any) -> None:
    """Import tasks of celery-sqlalchemy-scheduler from a database URL.

    Instants without a time zone are read in the time zone of the application, unless
    --naive-timezone names another one. The tables are only read.
    """
    _import_tables(invocation, CELERY_SQLALCHEMY_SCHEDULER, **given)


_COMMANDS = (django_celery_beat, redbeat, sqlalchemy_celery_beat, celery_sqlalchemy_scheduler)
for _each in _COMMANDS:
    import_schedules.add_command(_each)


def _import_tables(
    invocation: Invocation,
    layout: Layout,
    *,
    url: str | None,
    schema: str | None,
    naive_timezone: str | None,
    **given: Any,
) -> None:
    url = given_url(url)
    if naive_timezone is not None:
        invocation.load_zone(naive_timezone)
    from celery_dynbeat.importing.sql import source as sql  # noqa: PLC0415

    source = sql.table_source(
        url, layout, context=invocation.dynbeat.context, schema=schema, zone=naive_timezone
    )
    run(invocation, source, **given)


def given_url(url: str | None) -> str:
    """Return the URL of the source. Raises UsageError."""
    if url is None:
        raise click.UsageError("give the URL of the source, or set DYNBEAT_IMPORT_URL")
    return url


def run(
    invocation: Invocation,
    source: Source,
    *,
    applies: bool,
    owner_from: str | None,
    if_empty: str = "check which source is read",
    back: bool = False,
    without_hold: bool = False,
) -> None:
    """Import the schedules of ``source``, and print the results.

    ``if_empty`` is the advice for a source without schedules.
    """
    from celery_dynbeat.importing.write_back import WriteBack  # noqa: PLC0415
    from celery_dynbeat.importing.writing import Importer  # noqa: PLC0415

    context = invocation.dynbeat.context
    owner_of = owner_function(owner_from, default=invocation.owner or "")
    importer: Importer
    if back:
        if applies and not without_hold:
            _check_stopped(invocation)
        target = cast("DjangoSource", source) if applies else None
        importer = WriteBack(context, source.package, owner_of, target=target)
    else:
        importer = Importer(context, source.package, owner_of, dry_run=not applies)
    totals = _Totals(_WRITTEN_BACK if back else _DONE)
    title = "writing" if applies and back else "importing" if applies else "reading"
    with progress(title) as advance, collecting_rarely():
        for results in _results(importer, source, advance):
            totals.add(results)
            shown = [each for each in results if each.outcome is not Outcome.KEEP]
            if shown:
                invocation.output.items(_COLUMNS, shown, zone=invocation.zone)
    if not totals.outcomes:
        invocation.output.note(f"the source has no schedules: {if_empty}")
    _show_left_over(invocation, importer, back=back)
    totals.show(invocation, applies=applies)
    if totals.outcomes[Outcome.REFUSE]:
        invocation.context.exit(1)


def _check_stopped(invocation: Invocation) -> None:
    """Refuse to write back while beat sends, or has recorded runs that it must still send."""
    from celery_dynbeat.store.holds import is_everything_held  # noqa: PLC0415

    now = invocation.now
    if not invocation.dynbeat.context.read(
        None, lambda session: is_everything_held(session, now=now)
    ):
        invocation.refuse(
            "beat can send runs: `dynbeat hold --all-owners --reason switch` first;"
            " --without-hold if no beat runs"
        )
    pending = invocation.schedules.count_runs(status="pending")
    if pending.count:
        invocation.refuse(
            f"{pending} runs are recorded and not sent: wait until a beat has sent them, or"
            " `dynbeat cancel --all --all-owners --status pending`"
        )


def _results(
    importer: "Importer", source: Source, advance: Callable[[int, int | None], None]
) -> Iterator[list[Result]]:
    total, done = source.count(), 0
    for page in source.pages():
        yield list(importer.write(page))
        done += len(page)
        advance(done, total)


def _show_left_over(invocation: Invocation, importer: "Importer", *, back: bool) -> None:
    """Name the schedules of an earlier import that the source no longer has."""
    names, count = list[str](), 0
    for _owner, name in importer.left_over():
        count += 1
        if len(names) < _EXAMPLES:
            names.append(name)
    if count:
        rest = ", ..." if count > len(names) else ""
        rule = "they still run; delete the schedules that must not run"
        if back:
            rule = "the other scheduler does not run them"
        invocation.output.note(
            f"no longer in the source: {', '.join(names)}{rest} ({count:,}); {rule}"
        )


class _Totals:
    """Counts the outcomes, and the notes by topic."""

    def __init__(self, words: Mapping[Outcome, str]) -> None:
        self._words = words
        self.outcomes: Counter[Outcome] = Counter()
        self._notes: dict[tuple[str, str], list[str]] = {}
        self._noted: Counter[tuple[str, str]] = Counter()

    def add(self, results: list[Result]) -> None:
        """Count the results of a batch."""
        for result in results:
            self.outcomes[result.outcome] += 1
            if result.outcome in {Outcome.SKIP, Outcome.REFUSE}:
                continue
            for note in result.found.notes:
                key = note.topic, note.text
                self._noted[key] += 1
                names = self._notes.setdefault(key, [])
                if len(names) < _EXAMPLES:
                    names.append(result.found.name)

    def show(self, invocation: Invocation, *, applies: bool) -> None:
        """Print the notes and the counts to stderr; the counts to stdout for a person."""
        output = invocation.output
        for (topic, text), names in sorted(self._notes.items()):
            count = self._noted[topic, text]
            rest = ", ..." if count > len(names) else ""
            output.note(f"{topic}: {text} ({count:,}: {', '.join(names)}{rest})")
        counts = ", ".join(f"{self.outcomes[each]:,} {word}" for each, word in self._words.items())
        output.note(counts if applies else f"{counts} (dry run: nothing was written)")
