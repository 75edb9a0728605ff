"""``dynbeat export``: write schedules as a file that ``apply`` reads."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import click

from celery_dynbeat.api import Page, ScheduleInfo
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.files import replacing
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import owners_option
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.cli.declarations.exporting import Exported, file_lines
from celery_dynbeat.common.text import MAX_PAGE_SIZE


@command(
    "export",
    examples=(
        "export --owner user:42 --output schedules.yaml",
        "export --all-owners --json > schedules.json",
        "export --owner user:42 --all-data --output user-42.jsonl",
    ),
)
@owners_option
@click.option("--tag", metavar="TAG", help="Only schedules with this tag.")
@click.option(
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. An existing file is replaced once the new one is complete. "
    "Default: stdout.",
)
@click.option(
    "--all-data",
    is_flag=True,
    help="Write all data of the owner as JSON lines: schedules, runs, changes, requests,"
    " alerts, holds. `apply` cannot read them.",
)
def export(invocation: Invocation, *, tag: str | None, all_data: bool, path: Path | None) -> None:
    """Write the schedules as YAML, or as JSON with --json.

    `apply` can read the file. Fields that have their default are left out. Schedules that `apply`
    would refuse are also left out, and are counted on stderr. These are finished schedules,
    schedules with a damaged trigger, and entries of beat_schedule.
    """
    with _writing_to(path) as write:
        if all_data:
            _export_all_data(invocation, write, tag=tag)
        else:
            _export_schedules(invocation, write, tag=tag)


@contextmanager
def _writing_to(path: Path | None) -> Iterator[Callable[[bytes], object]]:
    if path is None:
        yield partial(click.echo, nl=False)
    else:
        with replacing(path) as file:
            yield file.write


def _export_schedules(
    invocation: Invocation, write: Callable[[bytes], object], *, tag: str | None
) -> None:
    result = Exported()
    pieces = file_lines(
        _schedules(invocation, tag),
        owner=invocation.owner,
        as_json=invocation.output.as_json,
        result=result,
    )
    for piece in pieces:
        # `apply` reads UTF-8, whatever the encoding of this terminal.
        write(piece.encode())
    for reason, count in result.omitted.items():
        invocation.output.note(f"left out, because they {reason}: {count}")


def _export_all_data(
    invocation: Invocation, write: Callable[[bytes], object], *, tag: str | None
) -> None:
    if invocation.owner is None or tag is not None:
        message = "--all-data exports one owner: leave --all-owners and --tag out"
        raise click.UsageError(message, invocation.context)
    with progress("rows written") as advance:
        for number, record in enumerate(invocation.mine.export(), 1):
            write(f"{json.dumps(record)}\n".encode())
            advance(number)


def _schedules(invocation: Invocation, tag: str | None) -> Iterator[ScheduleInfo]:
    def fetch(after: str | None) -> Page[ScheduleInfo]:
        return invocation.schedules.list(
            owner=invocation.owner, tag=tag, limit=MAX_PAGE_SIZE, after=after
        )

    return chain.from_iterable(pages(fetch))
