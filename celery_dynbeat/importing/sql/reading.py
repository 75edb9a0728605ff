"""Read the tables in pages by primary key, and update the progress of django-celery-beat.

Each page is one read-only transaction. The old scheduler is therefore never blocked, and a SQLite
file that also has the tables of this package can be written between two pages.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Boolean,
    Column,
    Connection,
    DateTime,
    Engine,
    Float,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    create_engine,
    event,
    func,
    insert,
    inspect,
    make_url,
    null,
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
from celery_dynbeat.importing.found import SourceError
from celery_dynbeat.importing.sql.layouts import DJANGO_CHANGES, Layout

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
_INSTANT = DateTime(timezone=True)
_TASKS: Mapping[str, Any] = {
    **dict.fromkeys(
        ("name", "task", "args", "kwargs", "queue", "exchange", "routing_key", "headers"), Text
    ),
    "priority": Integer,
    "expires": _INSTANT,
    "expire_seconds": Integer,
    "one_off": Boolean,
    "start_time": _INSTANT,
    "enabled": Boolean,
    "last_run_at": _INSTANT,
    "total_run_count": Integer,
    "date_changed": _INSTANT,
    "description": Text,
    **dict.fromkeys(("interval_id", "crontab_id", "solar_id", "clocked_id"), Integer),
    "discriminator": Text,
    "schedule_id": Integer,
}
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "interval": {"every": Integer, "period": Text},
    "crontab": dict.fromkeys(
        ("minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone"), Text
    ),
    "solar": {"event": Text, "latitude": Float, "longitude": Float},
    "clocked": {"clocked_time": _INSTANT},
}


class TableReader:
    """Reads the rows of the tables of ``layout``, each joined with its schedule.

    Raises SourceError, without the password of the URL.
    """

    def __init__(self, url: str, layout: Layout, *, schema: str | None = None) -> None:
        self._address = _checked_address(url)
        self._url = self._address.url
        self._layout, self._schema = layout, schema

    def count(self) -> int:
        """Return the number of rows."""
        statement = select(func.count()).select_from(self._tasks)
        return self._read(lambda connection: connection.scalar(statement) or 0)

    def pages(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield the rows by primary key. Columns that a version does not have are None."""
        key, last = self._tasks.c.id, -1
        while True:
            page = self._statement.where(key > last).order_by(key).limit(PAGE_SIZE)
            rows = self._read(lambda connection: connection.execute(page).mappings().all())  # noqa: B023
            if not rows:
                return
            last = rows[-1]["id"]
            yield [dict(row) for row in rows]

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    def update(
        self,
        rows: Sequence[Mapping[str, Any]],
        expected: Mapping[int, Mapping[str, Any]],
        *,
        now: datetime,
    ) -> Collection[int]:
        """Update the rows by ``id``, and note the change as django-celery-beat's models do.

        Return the ids of rows that do not have the values that ``expected`` names for them.
        """
        tasks = self._tasks
        names = sorted({name for values in expected.values() for name in values})
        current = select(tasks.c.id, *(tasks.c[name] for name in names))
        current = current.where(tasks.c.id.in_(expected)).with_for_update()

        def work(connection: Connection) -> Collection[int]:
            found = {row["id"]: dict(row) for row in connection.execute(current).mappings()}
            changed = {key for key in expected if found.get(key) != {"id": key, **expected[key]}}
            for row in rows:
                if row["id"] not in changed:
                    connection.execute(update(tasks).where(tasks.c.id == row["id"]).values(row))
            self._note_change(connection, now)
            return changed

        return self._call(self._writing_engine.begin, work)

    def _note_change(self, connection: Connection, now: datetime) -> None:
        columns = Column("ident", Integer), Column("last_update", _INSTANT)
        table = Table(DJANGO_CHANGES, MetaData(), *columns, schema=self._schema)
        noted = update(table).where(table.c.ident == 1).values(last_update=now)
        if not connection.execute(noted).rowcount:
            connection.execute(insert(table).values(ident=1, last_update=now))

    @cached_property
    def is_aware(self) -> bool:
        """Whether the database stores instants with their zone."""
        return self._url.get_backend_name() == "postgresql"

    @cached_property
    def _writing_engine(self) -> Engine:
        return self._new_engine()

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
                f"{self.shown_url}: the driver {error.name!r} is not installed; install"
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
            raise SourceError(f"{self.shown_url}: {text}") from error

    @cached_property
    def _tasks(self) -> Table:
        names = {**_TASKS, "id": Integer}
        tasks = self._table(self._layout.tasks, names)
        if tasks is None:
            where = f" in the schema {self._schema!r}" if self._schema else ""
            raise SourceError(
                f"{self.shown_url} has no table {self._layout.tasks!r}{where}: is it the database"
                f" of {self._layout.package}? --schema names another schema"
            )
        return tasks

    @cached_property
    def _statement(self) -> Select[Any]:
        tasks = self._tasks
        columns = [tasks.c.id, *(_or_null(tasks, name) for name in _TASKS)]
        joined: Any = tasks
        for kind, fields in _KINDS.items():
            table = self._kind_table(kind, fields)
            if table is None:
                columns += [null().label(f"{kind}_{name}") for name in (*fields, "found")]
                continue
            joined = joined.outerjoin(table, self._condition(tasks, table, kind))
            columns += [_or_null(table, name, f"{kind}_{name}") for name in fields]
            columns.append(table.c.id.label(f"{kind}_found"))
        return select(*columns).select_from(joined)

    def _condition(self, tasks: Table, table: Table, kind: str) -> Any:
        if not self._layout.generic:
            return tasks.c[f"{kind}_id"] == table.c.id
        return and_(tasks.c.schedule_id == table.c.id, tasks.c.discriminator == f"{kind}schedule")

    def _kind_table(self, kind: str, fields: Mapping[str, Any]) -> Table | None:
        name = getattr(self._layout, f"{kind}s")
        table = None if name is None else self._table(name, {"id": Integer, **fields})
        has_key = self._layout.generic or f"{kind}_id" in self._tasks.c
        return table if has_key else None

    def _table(self, name: str, types: Mapping[str, Any]) -> Table | None:
        """Return the table with the columns that exist, or None if there is no table."""

        def columns(connection: Connection) -> list[str]:
            found = inspect(connection)
            if not found.has_table(name, schema=self._schema):
                return []
            return [each["name"] for each in found.get_columns(name, schema=self._schema)]

        known = [each for each in self._read(columns) if each in types]
        if not known:
            return None
        # A separate MetaData, because these tables do not belong to this package.
        each = (Column(column, types[column]) for column in known)
        return Table(name, MetaData(), *each, schema=self._schema)


def _or_null(table: Table, name: str, label: str | None = None) -> Any:
    column = table.c[name] if name in table.c else null()
    return column.label(label or name)


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
