"""``dynbeat export``: write schedules as a file that ``apply`` reads."""

import json
from collections import Counter
from functools import partial

import click

from celery_dynbeat.cli.base.invocation import Invocation, all_of, command, progress
from celery_dynbeat.cli.base.parameters import OWNERS, flag, option
from celery_dynbeat.cli.file_format import file_lines


@command(
    "export",
    *OWNERS,
    option("--tag", metavar="TAG", help="Only schedules with this tag."),
    flag(
        "--all-data",
        help="Write all data of the owner as JSON lines: schedules, runs, changes, requests,"
        " alerts, holds. `apply` cannot read them.",
    ),
)
def export(cli: Invocation, *, tag: str | None, all_data: bool) -> None:
    """Write the schedules to stdout as YAML, or as JSON with --json.

    `apply` can read the file. Fields that have their default are left out. Schedules that `apply`
    would refuse are also left out, and are counted on stderr. These are finished schedules,
    schedules with a damaged trigger, and entries of beat_schedule.

    For example:
        export --owner user:42 > schedules.yaml
        export --all-owners --json > schedules.json
        export --owner user:42 --all-data > user-42.jsonl
    """
    if all_data:
        _export_all_data(cli, tag=tag)
        return
    omitted = Counter[str]()
    schedules = all_of(partial(cli.schedules.list, owner=cli.owner, tag=tag))
    for piece in file_lines(schedules, owner=cli.owner, as_json=cli.as_json, omitted=omitted):
        # `apply` reads UTF-8, whatever the encoding of this terminal.
        click.echo(piece.encode(), nl=False)
    for reason, count in omitted.items():
        cli.note(f"left out, because they {reason}: {count}")


def _export_all_data(cli: Invocation, *, tag: str | None) -> None:
    if cli.owner is None or tag is not None:
        raise click.UsageError("--all-data exports one owner: leave --all-owners and --tag out")
    with progress("rows written") as advance:
        for number, record in enumerate(cli.mine.export(), 1):
            click.echo(json.dumps(record))
            advance(number)
