"""The entries of RedBeat as a source."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from celery_dynbeat.importing.found import Found
from celery_dynbeat.importing.redbeat.connecting import require_redis
from celery_dynbeat.importing.redbeat.entries import EntryConverter
from celery_dynbeat.importing.redbeat.reading import EntryReader
from celery_dynbeat.importing.write_back import Progress
from celery_dynbeat.process.context import Context


class RedBeatSource:
    """The entries below ``prefix`` in the Redis of ``url``. None means RedBeat's own settings."""

    package = "redbeat"

    def __init__(
        self, url: str | None, *, context: Context, prefix: str | None = None, cluster: bool = False
    ) -> None:
        require_redis()
        app = context.app
        self._reader = EntryReader(url, app=app, prefix=prefix, cluster=cluster)
        self._converter = EntryConverter(self._reader.prefix, str(app.timezone))
        self._clock = context.clock

    def count(self) -> int | None:
        """Return the number of entries."""
        return self._reader.count()

    def pages(self) -> Iterator[list[Found]]:
        """Yield the schedules, a page at a time."""
        for entries in self._reader.pages():
            now = self._clock.now()
            yield [self._converter.found(entry, now=now) for entry in entries]

    def write_back(
        self, batch: Sequence[tuple[Found, Progress]], *, now: datetime
    ) -> Collection[str]:
        """Store the progress; see WritableSource."""
        given = {found.name: (found, progress) for found, progress in batch}
        read = [
            (self._converter.found(each, now=now), each) for each in self._reader.read([*given])
        ]
        same = {found.name: entry for found, entry in read if found.row == given[found.name][0].row}
        scores = {
            same[name].key: progress.next_fire_at.timestamp()
            for name, (_, progress) in given.items()
            if name in same and progress.next_fire_at is not None
        }
        entries = [self._converter.with_progress(same[name], given[name][1]) for name in same]
        self._reader.write(entries, scores)
        return given.keys() - same.keys()
