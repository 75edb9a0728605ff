"""The schedules in SQL tables as a source."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_dynbeat.importing.found import Found
from celery_dynbeat.importing.sql.layouts import DJANGO_CELERY_BEAT, Layout
from celery_dynbeat.importing.sql.reading import TableReader
from celery_dynbeat.importing.sql.rows import RowConverter
from celery_dynbeat.process.context import Context
from celery_dynbeat.triggers.zones import load_zone

#: The largest value of the column total_run_count.
_MAX_COUNT = 2**31 - 1


class TableSource:
    """The schedules of one installation. ``now`` is the clock of the target."""

    def __init__(
        self, reader: TableReader, converter: RowConverter, *, now: Callable[[], datetime]
    ) -> None:
        self._reader, self._converter, self._now = reader, converter, now

    @property
    def package(self) -> str:
        """The name of the package."""
        return self._converter.layout.package

    def count(self) -> int | None:
        """Return the number of schedules."""
        return self._reader.count()

    def pages(self) -> Iterator[list[Found]]:
        """Yield the schedules, a page at a time."""
        for rows in self._reader.pages():
            now = self._now()
            yield [self._converter.found(row, now=now) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The values of a schedule that django-celery-beat stores.

    ``last_run_at`` is the instant from which it counts to the next fire time.
    """

    enabled: bool
    last_run_at: datetime | None
    run_count: int


class DjangoSource(TableSource):
    """The schedules of django-celery-beat, which takes their progress back."""

    def write_back(
        self, batch: Sequence[tuple[Found, Progress]], *, now: datetime
    ) -> Collection[str]:
        """Store the progress in one transaction, and notify a running beat.

        Return the names that were not written, because they have changed since they were read.
        Raises SourceError.
        """
        names = {int(found.row["id"]): found.name for found, _ in batch}
        rows = [self._columns(found, progress) for found, progress in batch]
        expected = {
            int(found.row["id"]): {
                "enabled": found.row["enabled"],
                "last_run_at": self._stored(found.row["last_run_at"]),
            }
            for found, _ in batch
        }
        changed = self._reader.update(rows, expected, now=self._stored(now))
        return {names[key] for key in changed}

    def _columns(self, found: Found, progress: Progress) -> dict[str, Any]:
        # django-celery-beat deletes the last run of a disabled task.
        last = self._stored(progress.last_run_at) if progress.enabled else None
        return {
            "id": found.row["id"],
            "enabled": progress.enabled,
            "last_run_at": last,
            "total_run_count": min(progress.run_count, _MAX_COUNT),
        }

    def _stored(self, instant: Any) -> Any:
        """Return an instant as the column has it: aware, or naive in the zone of the layout."""
        if instant is None or self._reader.is_aware:
            return None if instant is None else instant.astimezone(UTC)
        return instant.astimezone(self._converter.zone).replace(tzinfo=None)


def table_source(
    url: str, layout: Layout, *, context: Context, schema: str | None, zone: str | None
) -> TableSource:
    """Return the schedules in the database ``url``.

    Instants that name no zone are in ``zone``. None means the default zone of the package.
    """
    app_timezone = str(context.app.timezone)
    naive = zone or (app_timezone if layout.naive_is_local else "UTC")
    converter = RowConverter(layout, load_zone(naive), layout.crontab_zone or app_timezone)
    source = DjangoSource if layout is DJANGO_CELERY_BEAT else TableSource
    return source(TableReader(url, layout, schema=schema), converter, now=context.clock.now)
