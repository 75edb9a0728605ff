"""``dynbeat export``: write schedules as a file that ``apply`` reads."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click

from celery_dynbeat.cli.base.invocation import Invocation, all_of, command, progress
from celery_dynbeat.cli.base.parameters import OWNERS, flag, option
from celery_dynbeat.cli.file_format import file_lines


@command(
    "export",
    *OWNERS,
    option("--tag", metavar="TAG", help="Only schedules with this tag."),
    option(
        "--output",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The file to write. An existing file is replaced once the new one is complete. "
        "Default: stdout.",
    ),
    flag(
        "--all-data",
        help="Write all data of the owner as JSON lines: schedules, runs, changes, requests,"
        " alerts, holds. `apply` cannot read them.",
    ),
)
def export(cli: Invocation, *, tag: str | None, all_data: bool, path: Path | None) -> None:
    """Write the schedules as YAML, or as JSON with --json.

    `apply` can read the file. Fields that have their default are left out. Schedules that `apply`
    would refuse are also left out, and are counted on stderr. These are finished schedules,
    schedules with a damaged trigger, and entries of beat_schedule.

    For example:
        export --owner user:42 --output schedules.yaml
        export --all-owners --json > schedules.json
        export --owner user:42 --all-data --output user-42.jsonl
    """
    with _writing_to(path) as write:
        if all_data:
            _export_all_data(cli, write, tag=tag)
            return
        omitted = Counter[str]()
        schedules = all_of(partial(cli.schedules.list, owner=cli.owner, tag=tag))
        for piece in file_lines(schedules, owner=cli.owner, as_json=cli.as_json, omitted=omitted):
            # `apply` reads UTF-8, whatever the encoding of this terminal.
            write(piece.encode())
        for reason, count in omitted.items():
            cli.note(f"left out, because they {reason}: {count}")


def _export_all_data(cli: Invocation, write: Callable[[bytes], object], *, tag: str | None) -> None:
    if cli.owner is None or tag is not None:
        raise click.UsageError("--all-data exports one owner: leave --all-owners and --tag out")
    with progress("rows written") as advance:
        for number, record in enumerate(cli.mine.export(), 1):
            write(f"{json.dumps(record)}\n".encode())
            advance(number)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of ``path`` at the end of the block.

    After an error, ``path`` is unchanged.
    """
    # In the same folder, because a rename across file systems is a copy.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _writing_to(path: Path | None) -> Iterator[Callable[[bytes], object]]:
    if path is None:
        yield partial(click.echo, nl=False)
    else:
        with replacing(path) as file:
            yield file.write
