"""The entries of Celery's ``beat_schedule`` as a source, with their progress.

Celery's own beat stores the progress in a file of the module shelve. It contains pickled objects,
so import only a file that you trust, as Celery does.
"""

import dbm
import pickle
import shelve
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.edit.source_progress import SourceProgress
from celery_dynbeat.beat import config_sync
from celery_dynbeat.common.text import shorten
from celery_dynbeat.importing.conversion import in_zone
from celery_dynbeat.importing.found import Converted, Found, SourceError
from celery_dynbeat.process.context import Context

#: Errors of a file that another process writes, or that is not a file of shelve.
_UNREADABLE: tuple[type[Exception], ...] = (
    *(*dbm.error, OSError, EOFError, KeyError, AttributeError, ImportError),
    *(pickle.UnpicklingError, TypeError, ValueError),
)


class BeatScheduleSource:
    """The entries of the application.

    ``path`` is the file of the old beat. If it is missing, there is no progress.
    """

    package = "beat-schedule"

    def __init__(self, context: Context, *, path: Path | None) -> None:
        self._context = context
        self._progress = {} if path is None else _progress_in(path)

    def count(self) -> int | None:
        """Return the number of entries."""
        return len(self._context.beat_schedule)

    def pages(self) -> Iterator[list[Found]]:
        """Yield all entries at once."""
        entries = self._context.beat_schedule.items()
        yield [self._found(str(name), entry) for name, entry in entries if entry]

    def _found(self, name: str, entry: Any) -> Found:
        row = dict(entry) if isinstance(entry, Mapping) else {}
        row["name"] = name
        found = Found(name=name, described=shorten(row.get("schedule")), row=row)
        fields = config_sync.convert(self._context, entry)
        if isinstance(fields, Exception):
            return replace(found, refused=str(fields))
        converted = Converted(
            task=fields["task"],
            trigger=fields["trigger"],
            fields={key: fields[key] for key in fields.keys() - {"task", "trigger"}},
            progress=self._progress_of(name),
        )
        return replace(found, converted=converted)

    def _progress_of(self, name: str) -> SourceProgress:
        last, count = self._progress.get(name, (None, 0))
        last = in_zone(last, ZoneInfo(str(self._context.app.timezone)))
        return SourceProgress(after=last, last_run_at=last, anchor_at=last, run_count=count)


def _progress_in(path: Path) -> Mapping[str, tuple[datetime | None, int]]:
    """Return the last run and the number of runs of each entry. Raises SourceError."""
    try:
        with closing(shelve.open(str(path), flag="r")) as stored:  # noqa: S301 - see the docstring
            entries = dict(stored["entries"])
        return {
            str(name): (entry.last_run_at, int(entry.total_run_count or 0))
            for name, entry in entries.items()
        }
    except _UNREADABLE as error:
        raise SourceError(
            f"{str(path)!r} is not a schedule file of celery beat, or a beat still uses it: {error}"
        ) from error
