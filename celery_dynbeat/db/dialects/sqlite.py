"""SQLite. Source: its "Result and Error Codes" and "Transactions"."""

import time
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Table,
    exists,
    func,
    literal,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.dml import Insert

from celery_dynbeat.db import table_names
from celery_dynbeat.db.dialects import Capabilities

#: Ten seconds in total.
_WAL_TRIES, _WAL_PAUSE = 500, 0.02
_UNAVAILABLE = (
    *("SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM"),
    *("SQLITE_NOTADB", "SQLITE_PROTOCOL", "SQLITE_READONLY"),
)


class Sqlite(Capabilities):
    """SQLite 3.35 and later, in WAL mode: readers and the writer do not wait for each other."""

    embedded = True

    def why_no_schema(self, name: str) -> str | None:
        del name
        return (
            "SQLite has no schemas; set dynbeat_table_prefix, or another file in"
            " dynbeat_database_url"
        )

    def begin_write(self, connection: Connection) -> None:
        # A write as the first statement acquires the write lock, and waits for it up to the busy
        # timeout. A transaction that starts with a read fails when it writes later.
        name = table_names().of("schedule")
        connection.execute(text(f"UPDATE {name} SET id = id WHERE 0 = 1"))  # noqa: S608 - a setting

    def configure(self, dbapi_connection: Any) -> None:
        cursor = dbapi_connection.cursor()
        cursor.execute("PRAGMA busy_timeout = 30000")
        cursor.execute("PRAGMA foreign_keys = ON")
        _use_wal(cursor)
        cursor.close()

    def insert_new(self, table: Table) -> Insert:
        return sqlite.insert(table).on_conflict_do_nothing()

    def insert_or_lock(self, table: Table) -> Insert:
        new = sqlite.insert(table)
        key = {column.name: new.excluded[column.name] for column in table.primary_key}
        return new.on_conflict_do_update(index_elements=list(key), set_=key)

    def is_transient(self, error: DBAPIError) -> bool:
        return _name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))

    def is_unavailable(self, error: DBAPIError) -> bool:
        name = _name(error)
        return not name or name.startswith(_UNAVAILABLE) or self.is_transient(error)

    def is_refusal(self, error: DBAPIError) -> bool:
        return _name(error).startswith(("SQLITE_CONSTRAINT", "SQLITE_TOOBIG", "SQLITE_MISMATCH"))

    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        items: FromClause = func.json_each(column).table_valued("value")
        return exists(select(literal(1)).select_from(items).where(items.c.value == tag))

    def lock_schema(self, connection: Connection) -> bool:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return True


def _use_wal(cursor: Any) -> None:
    """Switch the file to WAL mode, which is permanent.

    While another process switches it or writes, SQLite fails without waiting for the busy timeout.
    """
    for attempt in range(_WAL_TRIES):
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except Exception as error:
            name = getattr(error, "sqlite_errorname", "")
            if not name.startswith("SQLITE_BUSY") or attempt == _WAL_TRIES - 1:
                raise
            time.sleep(_WAL_PAUSE)
        else:
            return


def _name(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlite_errorname", "")
