"""The schedules in SQL tables as a source."""

from collections.abc import Callable, Iterator
from datetime import datetime

from celery_dynbeat.importing.found import Found
from celery_dynbeat.importing.sql.layouts import Layout
from celery_dynbeat.importing.sql.reading import TableReader
from celery_dynbeat.importing.sql.rows import RowConverter
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.triggers.zones import load_zone


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


def table_source(
    url: str, layout: Layout, *, context: Context, schema: str | None, zone: str | None
) -> TableSource:
    """Return the schedules in the database ``url``.

    ``zone`` is that of instants without one; None means the default of the package.
    """
    app_timezone = str(context.app.timezone)
    naive = zone or (app_timezone if layout.naive_is_local else "UTC")
    converter = RowConverter(layout, load_zone(naive), layout.crontab_zone or app_timezone)
    return TableSource(TableReader(url, layout, schema=schema), converter, now=context.clock.now)
