"""Stores in SQL tables, read in pages by primary key. django-celery-beat takes progress back.

Each page is one read-only transaction. The old scheduler is therefore never blocked, and a SQLite
file that also has the tables of this package can be written between two pages.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Select,
    Table,
    and_,
    create_engine,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.text import hide_secrets
from celery_dynbeat.db import alias_of
from celery_dynbeat.db.django_databases import DatabaseAddress, address_of
from celery_dynbeat.db.engine import embedded_file
from celery_dynbeat.importing.foreign import ForeignEntry, SourceError
from celery_dynbeat.importing.table_rows import KINDS, Layout, entry_of
from celery_dynbeat.process.context import Context
from celery_dynbeat.triggers.zones import load_zone

T = TypeVar("T")

PAGE_SIZE = 500
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}
_DRIVERS |= {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql", "sqlite": "sqlite"}
#: The statements that make a connection read-only.
_READ_ONLY = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = ON",
}
#: The table of django-celery-beat whose single row says when something changed.
_CHANGES = "django_celery_beat_periodictasks"
#: The largest value of the column total_run_count.
_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProgress:
    """The values of a schedule that django-celery-beat stores.

    ``last_run_at`` is the instant from which it counts to the next fire time.
    """

    enabled: bool
    last_run_at: datetime | None
    run_count: int


class TableSource:
    """The schedules in the tables of ``layout`` in the database ``url``.

    Instants that name no zone are in ``zone``. None means the default zone of the package. Raises
    SourceError, without the password of the URL.
    """

    def __init__(
        self,
        url: str,
        layout: Layout,
        *,
        context: Context,
        schema: str | None = None,
        zone: str | None = None,
    ) -> None:
        self._address = _checked_address(url)
        self._url = self._address.url
        self._layout, self._schema, self._now = layout, schema, context.clock.now
        app_timezone = str(context.app.timezone)
        self._zone = load_zone(zone or (app_timezone if layout.naive_is_local else "UTC"))
        self._crontab_zone = layout.crontab_zone or app_timezone

    @property
    def package(self) -> str:
        """The name of the package."""
        return self._layout.package

    def count(self) -> int:
        """Return the number of schedules."""
        statement = select(func.count()).select_from(self._tasks)
        return self._read(lambda connection: connection.scalar(statement) or 0)

    def pages(self) -> Iterator[list[ForeignEntry]]:
        """Yield the schedules by primary key."""
        key, last = self._tasks.c.id, -1
        while True:
            page = self._statement.where(key > last).order_by(key).limit(PAGE_SIZE)
            rows = self._read(lambda connection: connection.execute(page).mappings().all())  # noqa: B023
            if not rows:
                return
            last, now = rows[-1]["id"], self._now()
            yield [
                entry_of(
                    row,
                    self._layout,
                    zone=self._zone,
                    crontab_zone=self._crontab_zone,
                    now=now,
                )
                for row in rows
            ]

    def write_back(
        self, batch: Sequence[tuple[ForeignEntry, ForeignProgress]], *, now: datetime
    ) -> Collection[str]:
        """Store the progress in django-celery-beat, and notify its running beat.

        Return the names that were not written, because they have changed since they were read.
        """
        tasks, names = self._tasks, ("id", "enabled", "last_run_at")
        ids = [entry.row["id"] for entry, _ in batch]
        current = select(*(tasks.c[name] for name in names))
        current = current.where(tasks.c.id.in_(ids)).with_for_update()

        def work(connection: Connection) -> Collection[str]:
            found = {row.id: row for row in connection.execute(current)}
            changed = []
            for entry, progress in batch:
                key, enabled = entry.row["id"], entry.row["enabled"]
                read = (key, enabled, self._stored(entry.row["last_run_at"]))
                if tuple(found.get(key, ())) != read:
                    changed.append(entry.name)
                    continue
                # django-celery-beat deletes the last run of a disabled task.
                last = self._stored(progress.last_run_at) if progress.enabled else None
                values = {
                    "enabled": progress.enabled,
                    "last_run_at": last,
                    "total_run_count": min(progress.run_count, _MAX_COUNT),
                }
                connection.execute(update(tasks).where(tasks.c.id == key).values(values))
            self._note_change(connection, now)
            return changed

        return self._call(self._new_engine().begin, work)

    def _note_change(self, connection: Connection, now: datetime) -> None:
        columns = Column("ident", Integer), Column("last_update", DateTime(timezone=True))
        table = Table(_CHANGES, MetaData(), *columns, schema=self._schema)
        value = {"last_update": self._stored(now)}
        noted = update(table).where(table.c.ident == 1).values(value)
        if not connection.execute(noted).rowcount:
            connection.execute(insert(table).values(ident=1, **value))

    def _stored(self, instant: Any) -> Any:
        """Return an instant as the column has it: aware, or naive in the zone of the layout."""
        if instant is None or self._url.get_backend_name() == "postgresql":
            return None if instant is None else instant.astimezone(UTC)
        return instant.astimezone(self._zone).replace(tzinfo=None)

    @property
    def _shown_url(self) -> str:
        """The URL without its password."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    def _new_engine(self) -> Engine:
        try:
            return create_engine(
                self._url,
                connect_args=dict(self._address.connect_args),
                poolclass=NullPool,
                hide_parameters=True,
            )
        except ModuleNotFoundError as error:
            raise SourceError(
                f"{self._shown_url}: the driver {error.name!r} is not installed; install"
                " celery-dynbeat[postgres] or celery-dynbeat[mysql]"
            ) from error

    @cached_property
    def _engine(self) -> Engine:
        engine = self._new_engine()

        @event.listens_for(engine, "connect")
        def read_only(connection: Any, _record: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(_READ_ONLY[engine.dialect.name])
            cursor.close()
            # psycopg began a transaction, which ends the setting with a rollback.
            connection.commit()

        return engine

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._call(self._engine.connect, work)

    def _call(
        self,
        connect: Callable[[], AbstractContextManager[Connection]],
        work: Callable[[Connection], T],
    ) -> T:
        try:
            with connect() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            first = str(error).partition("\n")[0]
            text = hide_secrets(first, [str(self._url.password or "")])
            raise SourceError(f"{self._shown_url}: {text}") from error

    @cached_property
    def _tasks(self) -> Table:
        tasks = self._table(self._layout.tasks)
        if tasks is None:
            where = f" in the schema {self._schema!r}" if self._schema else ""
            raise SourceError(
                f"{self._shown_url} has no table {self._layout.tasks!r}{where}: is it the database"
                f" of {self._layout.package}? --schema names another schema"
            )
        return tasks

    @cached_property
    def _statement(self) -> Select[Any]:
        """The tasks, each with the columns of its schedule, whose names begin with the kind."""
        tasks = self._tasks
        columns: list[Any] = [*tasks.c]
        joined: Any = tasks
        for kind in KINDS:
            name = self._layout.kinds.get(kind)
            table = None if name is None else self._table(name)
            key = tasks.c.get("schedule_id" if self._layout.generic else f"{kind}_id")
            if table is None or key is None:
                continue
            is_kind = key == table.c.id
            if self._layout.generic:
                is_kind = and_(is_kind, tasks.c.discriminator == f"{kind}schedule")
            joined = joined.outerjoin(table, is_kind)
            columns += [each.label(f"{kind}_{each.name}") for each in table.c if each.name != "id"]
            columns.append(table.c.id.label(f"{kind}_found"))
        return select(*columns).select_from(joined)

    def _table(self, name: str) -> Table | None:
        """Return the table with its columns, or None if there is no table."""

        def columns(connection: Connection) -> Mapping[str, Any]:
            found = inspect(connection)
            if not found.has_table(name, schema=self._schema):
                return {}
            return {each["name"]: each["type"] for each in found.get_columns(name, self._schema)}

        types = self._read(columns)
        # A separate MetaData, because these tables do not belong to this package.
        made = [Column(column, kind) for column, kind in types.items()]
        return Table(name, MetaData(), *made, schema=self._schema) if made else None


def _checked_address(text: str) -> DatabaseAddress:
    alias = alias_of(text)
    if alias is None:
        return DatabaseAddress(_checked_url(text))
    try:
        return address_of(alias)
    except ConfigurationError as error:
        raise SourceError(str(error)) from None


def _checked_url(text: str) -> URL:
    try:
        url = make_url(text)
        drivername = _DRIVERS[url.drivername.partition("+")[0]]
    except (ArgumentError, KeyError, ValueError):
        # The URL is not shown, because it can contain a password.
        raise SourceError(
            "the URL of the source is not one that SQLAlchemy understands: write it like"
            " postgresql://user@host/database, mysql://... or sqlite:////srv/db.sqlite3"
        ) from None
    url = url.set(drivername=drivername)
    file = embedded_file(url)
    if file is not None and not file.is_file():
        raise SourceError(f"there is no file {str(file)!r}; an absolute path has four slashes")
    return url
