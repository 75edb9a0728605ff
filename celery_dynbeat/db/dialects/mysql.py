"""MySQL and MariaDB. Source: MySQL's server error reference."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Table,
    and_,
    func,
    inspect,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert

from celery_dynbeat.db import table_names
from celery_dynbeat.db.dialects import SCHEMA_LOCK, Capabilities, S

_DELETE = """
    DELETE {table}
    FROM JSON_TABLE(:ids, '$[*]' COLUMNS (id {type} PATH '$')) AS doomed
    STRAIGHT_JOIN {table} ON {table}.id = {id}
"""
#: ER_LOCK_DEADLOCK, ER_DUP_ENTRY
_DEADLOCK, _DUPLICATE_KEY = 1213, 1062
_LOWER_CASE_NAMES = text("SELECT @@lower_case_table_names")
#: The types of ids: a number, and the 36 characters of a run id.
_NUMBER = {"type": "BIGINT", "id": "doomed.id"}
_RUN_ID = {
    "type": "CHAR(36)",
    "id": "CAST(doomed.id AS CHAR(36) CHARACTER SET ascii) COLLATE ascii_bin",
}


class _share_unlocked(ColumnElement[Any]):  # noqa: N801
    """Share locks on the rows that no other transaction has locked."""

    inherit_cache = True


@compiles(_share_unlocked)
def _compile_share_unlocked(element: _share_unlocked, compiler: SQLCompiler, **options: Any) -> str:
    del element, options
    # The two servers have no common form that has SKIP LOCKED.
    is_mariadb = getattr(compiler.dialect, "is_mariadb", False)
    return f"{'LOCK IN SHARE MODE' if is_mariadb else 'FOR SHARE'} SKIP LOCKED"


class MySql(Capabilities):
    """MySQL 8.0.22 and MariaDB 10.6, and later."""

    # REPEATABLE READ locks gaps, so that two beats would wait for each other.
    execution_options: ClassVar[dict[str, Any]] = {"isolation_level": "READ COMMITTED"}
    configures_isolation = True
    orders_by_fixed_columns = False
    locks_gaps = True
    # SQLAlchemy's drivers count a row that exists like an inserted one (CLIENT_FOUND_ROWS).
    counts_new_rows = False
    # ER_LOCK_WAIT_TIMEOUT, ER_CHECKREAD
    _transient = frozenset({_DEADLOCK, 1205, 1020})
    # ER_CANT_AGGREGATE_2COLLATIONS, ER_INVALID_CHARACTER_STRING,
    # ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, ER_CANNOT_CONVERT_STRING
    _unstorable = frozenset({1267, 1300, 1366, 3854})
    # ER_OPTION_PREVENTS_STATEMENT, ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ER_READ_ONLY_MODE
    _read_only = frozenset({1290, 1792, 1836})

    # ER_DISK_FULL, ER_OUT_OF_RESOURCES, ER_CON_COUNT_ERROR, ER_OUTOFMEMORY, ER_UNKNOWN_COM_ERROR
    # (Galera), ER_SERVER_SHUTDOWN, ER_RECORD_FILE_FULL, ER_NET_*, ER_TOO_MANY_USER_CONNECTIONS,
    # ER_CONNECTION_KILLED
    _unavailable = frozenset(
        {1021, 1037, 1040, 1041, 1047, 1053, 1114, 1158, 1159, 1160, 1161, 1203, 1927}
    )
    # ER_BAD_NULL_ERROR, ER_DUP_*, foreign keys, ER_DATA_TOO_LONG, values that do not fit,
    # ER_NO_DEFAULT_FOR_FIELD, ER_VIEW_CHECK_FAILED, ER_SIGNAL_EXCEPTION (a trigger),
    # ER_INVALID_JSON_TEXT, ER_CHECK_CONSTRAINT_VIOLATED, and MariaDB's ER_CONSTRAINT_FAILED
    _refusals = frozenset(
        {
            *(1022, 1048, 1062, 1169, 1216, 1217, 1264, 1265, 1292, 1364, 1366, 1369),
            *(1406, 1451, 1452, 1644, 1690, 3140, 3819, 4025),
        }
    )

    def configure(self, dbapi_connection: Any) -> None:
        # The cursor's own context is not used, because the asynchronous cursor of SQLAlchemy 2.0
        # has none.
        with closing(dbapi_connection.cursor()) as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def has_schema(self, connection: Connection, name: str) -> bool:
        if not connection.scalar(_LOWER_CASE_NAMES):
            return super().has_schema(connection, name)
        # The server compares names in lower case, and stores them so (1) or as they are given (2).
        known = inspect(connection).get_schema_names()
        return name.lower() in {each.lower() for each in known}

    def entering_schema(self, quoted: str) -> str:
        return f"USE {quoted}"

    @contextmanager
    def in_schema(self, connection: Connection, quoted: str) -> Iterator[None]:
        before = connection.scalar(select(func.database()))
        connection.exec_driver_sql(self.entering_schema(quoted))
        try:
            yield
        finally:
            # The application may use this connection later. A connection with a database cannot
            # return to having no database.
            if before is not None:
                quote = connection.dialect.identifier_preparer.quote_identifier
                connection.exec_driver_sql(self.entering_schema(quote(before)))

    def read_clock(self, connection: Connection) -> datetime:
        instant: datetime = connection.execute(select(func.utc_timestamp(text("6")))).scalar_one()
        return instant.replace(tzinfo=UTC)

    def insert_new(self, table: Table) -> Insert:
        # Not INSERT IGNORE: it also skips rows that a constraint refuses, and cuts long values.
        key = next(iter(table.primary_key))
        return mysql.insert(table).on_duplicate_key_update({key.name: key})

    def is_duplicate(self, error: DBAPIError) -> bool:
        return _number(error) == _DUPLICATE_KEY

    def insert_or_lock(self, table: Table) -> Insert:
        key = {column.name: column for column in table.primary_key}
        return mysql.insert(table).on_duplicate_key_update(key)

    def reading_latest(self, statement: S) -> S:
        # At REPEATABLE READ only a locking read sees rows newer than the snapshot.
        return statement.with_for_update(read=True)

    def share_unlocked(self, statement: Select[Any]) -> Select[Any]:
        return statement.suffix_with(_share_unlocked())

    def delete(
        self, connection: Connection, table: Table, ids: Sequence[str] | Sequence[int]
    ) -> None:
        # For a list of ids, InnoDB prefers to scan a small table, and waits for each locked row.
        is_number = isinstance(table.c.id.type, Integer)
        key = _NUMBER if is_number else _RUN_ID
        name = connection.dialect.identifier_preparer.format_table(table)
        statement = text(_DELETE.format(table=name, **key))
        connection.execute(statement, {"ids": json.dumps(list(ids))})

    def row_after(
        self, columns: tuple[Any, Any], key: tuple[object, object]
    ) -> ColumnElement[bool]:
        # The optimizer makes no index range of a row comparison.
        (first, second), (first_key, second_key) = columns, key
        return or_(first > first_key, and_(first == first_key, second > second_key))

    def row_until(
        self, columns: tuple[Any, Any], key: tuple[object, object]
    ) -> ColumnElement[bool]:
        (first, second), (first_key, second_key) = columns, key
        return or_(first < first_key, and_(first == first_key, second <= second_key))

    def ends_transaction(self, error: DBAPIError) -> bool:
        return _number(error) == _DEADLOCK

    def is_transient(self, error: DBAPIError) -> bool:
        return _number(error) in self._transient

    def is_read_only(self, error: DBAPIError) -> bool:
        return _number(error) in self._read_only

    def is_unavailable(self, error: DBAPIError) -> bool:
        number = _number(error)
        # A driver has its own numbers, from 2000 to 2999, for what happens to its connection.
        is_own = not isinstance(number, int) or not number or number // 1000 == 2  # noqa: PLR2004
        return is_own or number in self._unavailable or self.is_read_only(error)

    def is_refusal(self, error: DBAPIError) -> bool:
        return _number(error) in self._refusals

    def is_unstorable(self, error: DBAPIError) -> bool:
        return _number(error) in self._unstorable

    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        # MariaDB compares the stored text, in which a non-ASCII letter can be an escape.
        encodings = {json.dumps(tag), json.dumps(tag, ensure_ascii=False)}
        return or_(*(func.json_contains(column, text) == 1 for text in sorted(encodings)))

    def lock_schema(self, connection: Connection) -> bool:
        # Data definition commits implicitly here, so the lock belongs to the connection.
        return bool(connection.scalar(select(func.get_lock(_schema_lock(), 0))))

    def unlock_schema(self, connection: Connection) -> None:
        connection.execute(select(func.release_lock(_schema_lock())))


def _schema_lock() -> ColumnElement[str]:
    # The server has one name space for locks, so the name contains the database. It has at most 64
    # characters. Not MD5, which MySQL 9.6 has removed.
    database = func.coalesce(table_names().schema, func.database(), "")
    return func.concat(f"{SCHEMA_LOCK}.", func.substr(func.sha2(database, 256), 1, 32))


def _number(error: DBAPIError) -> int | None:
    arguments: tuple[Any, ...] = getattr(error.orig, "args", ())
    return arguments[0] if arguments else None
