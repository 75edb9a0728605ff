"""A progress bar on stderr for work that takes long, on a terminal only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Reports the progress."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show that ``done`` of ``total`` are done. ``total`` is None if it is unknown."""


def _ignore(done: int, total: int | None = None) -> None:
    del done, total


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Yield a function that reports progress. The bar disappears at the end of the block."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    # A late import: rich takes 0.1 s.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    from celery_dynbeat.cli.base.tables import console  # noqa: PLC0415

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console(no_color=False, stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)
