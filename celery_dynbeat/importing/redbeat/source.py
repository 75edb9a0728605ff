"""The entries of RedBeat as a source."""

from collections.abc import Iterator

from celery_dynbeat.importing.found import Found
from celery_dynbeat.importing.redbeat.connecting import require_redis
from celery_dynbeat.importing.redbeat.entries import EntryConverter
from celery_dynbeat.importing.redbeat.reading import EntryReader
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
