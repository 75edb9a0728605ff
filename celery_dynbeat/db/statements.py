"""Write many rows, read rows, and format the errors that rows store.

PostgreSQL receives one JSON document with the columns whose values differ (json_to_recordset, "JSON
Functions and Operators"). A batch costs one round trip and one plan, and each number of rows uses
the same statement text. Arrays, one per column, would do the same, but a driver written in Python
takes several times as long to encode them. With SQLAlchemy's ``insertmanyvalues``, a run of a burst
takes 1.7 times the processor time of beat, and twice that of PostgreSQL. The drivers of the other
databases combine the rows of an INSERT themselves; there an UPDATE is sent once per row.

A planner chooses by costs, and computes them from statistics. A table that was just loaded has no
statistics. After the restore of a dump, after ``pg_upgrade`` and without autovacuum, they are
missing or old. PostgreSQL then expects few or no due rows, and sorts a scan of the whole table in
each pass. Its SQL has no hints, and no form of an ordered query with a filter and SKIP LOCKED
leaves only one plan. A transaction that claims therefore turns off the other plans.
MySQL and MariaDB have hints that name the index.
"""

import json
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from itertools import repeat
from operator import is_
from typing import Any, TypeVar

from sqlalchemy import (
    ARRAY,
    JSON,
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Insert,
    Select,
    Table,
    TableValuedAlias,
    Text,
    Update,
    any_,
    bindparam,
    cast,
    column,
    func,
    literal,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from celery_dynbeat.db.dialects import OWN_TRANSACTION, Capabilities, capabilities_of
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.types import MYSQL, as_utc, escape_unstorable

#: A NUL in JSON. An escaped backslash before these characters also matches, which is harmless.
_NUL = r"\u0000"

#: Rows in one statement. Driver and server hold several copies of each row and its payload.
ROWS_PER_STATEMENT = 500
#: Rows that are encoded into JSON together.
ROWS_PER_JSON_CHUNK = 100
#: Rows of a result that are converted together.
ROWS_PER_PARTITION = 100
#: Characters of an error's text that are stored.
MAX_ERROR_LENGTH = 500

T = TypeVar("T")

Rows = Sequence[Mapping[str, Any]]
_Names = tuple[str, ...]
#: A named tuple of the selected columns. Its attribute access is ten times as fast as with
#: SQLAlchemy's rows, and beat reads each attribute several times.
Row = Any
Make = Callable[[Iterable[Any]], Row]


class RowLockedError(Exception):
    """Another transaction has locked a row that this one needs. Nothing waits: try again later."""


#: The bind arguments of a statement on tables: the session may choose its database by the mapped
#: class, and all tables are in one database.
BIND = {"mapper": Schedule}


def connection_of(session: Session) -> Connection:
    """Return the connection of a session, perhaps the caller's, to the tables."""
    return session.connection(bind_arguments=BIND)


def capabilities_in(session: Session) -> Capabilities:
    """Return the capabilities of the database of a session, perhaps the caller's."""
    return capabilities_of(session.get_bind(Schedule).dialect)


def insert(session: Session, table: Table, rows: Rows) -> None:
    """Insert rows that all have the same columns."""
    connection = connection_of(session)
    for part in in_parts(rows, ROWS_PER_STATEMENT):
        _insert(connection, table, part, new=False)


def insert_new(session: Session, table: Table, rows: Rows) -> int:
    """Insert rows that all have the same columns, and return the number of inserted rows.

    A row that violates a unique key is skipped. The number is negative if the driver does not
    report it.
    """
    connection = connection_of(session)
    parts = in_parts(rows, ROWS_PER_STATEMENT)
    return sum(_insert_new(connection, table, part) for part in parts)


def delete_ids(session: Session, table: Table, ids: Sequence[Any]) -> int:
    """Delete rows by their ids, and return the number of ids."""
    if ids:
        capabilities_in(session).delete(connection_of(session), table, ids)
    return len(ids)


def _insert_new(connection: Connection, table: Table, rows: Rows) -> int:
    capabilities = capabilities_of(connection.dialect)
    if capabilities.counts_new_rows:
        return _insert(connection, table, rows, new=True)
    # Usually all rows are new.
    try:
        return _insert(connection, table, rows, new=False)
    except IntegrityError as error:
        if not capabilities.is_duplicate(error):
            raise
    # Not ON DUPLICATE KEY UPDATE, which waits for a lock on the existing row.
    count = 0
    for row in rows:
        try:
            count += _insert(connection, table, [row], new=False)
        except IntegrityError as error:
            if not capabilities.is_duplicate(error):
                raise
    return count


def in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in order, in parts of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _insert(connection: Connection, table: Table, rows: Rows, *, new: bool) -> int:
    capabilities = capabilities_of(connection.dialect)
    options = {"preserve_rowcount": True}
    names, shared, values = _packed(rows) if capabilities.has_json_recordset else ((), (), {})
    # A JSON column accepts a NUL in a text; json_to_recordset does not.
    if values and _NUL not in values["document"]:
        statement = _insert_from(capabilities, table, names, shared, new)
        return connection.execute(statement, values, execution_options=options).rowcount
    statement = capabilities.insert_new(table) if new else table.insert()
    return connection.execute(statement, list(rows), execution_options=options).rowcount


def update_each(session: Session, table: Table, rows: Rows) -> None:
    """Update each row by its ``id``. All rows have the same columns."""
    connection = connection_of(session)
    for part in in_parts(rows, ROWS_PER_STATEMENT):
        _update_each(connection, table, part)


def _update_each(connection: Connection, table: Table, rows: Rows) -> None:
    if capabilities_of(connection.dialect).has_json_recordset:
        if "error" in rows[0]:
            # Values in the document skip the column's type, which escapes error texts.
            rows = [{**row, "error": _escaped(row["error"], connection)} for row in rows]
        names, shared, values = _packed(rows)
        connection.execute(_update_from(table, names, shared), values)
        return
    names = tuple(name for name in rows[0] if name != "id")
    parameters = [
        {"row_id": row["id"], **{f"new_{name}": row[name] for name in names}} for row in rows
    ]
    connection.execute(_update_by_id(table, names), parameters)


# Statements are cached: building one takes as long as executing it.
@lru_cache(maxsize=256)
def _insert_from(
    capabilities: Capabilities,
    table: Table,
    names: _Names,
    shared: _Names,
    new: bool,  # noqa: FBT001 - a key of the cache
) -> Insert:
    columns = _source_columns(table, names, shared)
    statement = capabilities.insert_new(table) if new else table.insert()
    # Columns that are not named get the server's defaults, as in the INSERT of a single row.
    return statement.from_select(list(columns), select(*columns.values()), include_defaults=False)


@lru_cache(maxsize=256)
def _update_from(table: Table, names: _Names, shared: _Names) -> Update:
    columns = _source_columns(table, names, shared)
    same = table.c.id == columns.pop("id")
    return update(table).where(same).values(columns)


@lru_cache(maxsize=256)
def _update_by_id(table: Table, names: _Names) -> Update:
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    return update(table).where(table.c.id == bindparam("row_id")).values(values)


def _escaped(text: str | None, connection: Connection) -> str | None:
    return None if text is None else escape_unstorable(text, connection.dialect)


def _packed(rows: Rows) -> tuple[_Names, _Names, dict[str, Any]]:
    """Return the columns whose values differ, the columns with one value, and the parameters."""
    key = "id" if "id" in rows[0] else next(iter(rows[0]))
    shared = [name for name in rows[0] if name != key and _is_shared([row[name] for row in rows])]
    names = [name for name in rows[0] if name not in shared]
    values = {f"all_{name}": rows[0][name] for name in shared}
    return tuple(names), tuple(shared), {"document": _document(names, rows), **values}


def _document(names: Sequence[str], rows: Rows) -> str:
    """Return the columns ``names`` of the rows as a JSON array of objects."""
    # In chunks, so that memory never holds a second copy of all rows.
    parts = in_parts(rows, ROWS_PER_JSON_CHUNK)
    chosen = ([{name: row[name] for name in names} for row in part] for part in parts)
    # Without escapes, because the server would have to convert them, which is impossible in some
    # encodings.
    written = (json.dumps(part, default=_text, ensure_ascii=False)[1:-1] for part in chosen)
    return f"[{','.join(written)}]"


def _is_shared(cells: Sequence[Any]) -> bool:
    first = cells[0]
    # Equality is not enough for other types: 1 == True, and in JSON they differ.
    if isinstance(first, (str, datetime)):
        return cells.count(first) == len(cells)
    return all(map(is_, cells, repeat(first)))


def _text(value: object) -> str:
    if not isinstance(value, datetime):
        raise TypeError(
            f"no column stores a {type(value).__name__}: give a datetime or a JSON value"
        )
    return as_utc(value).isoformat()


def _source_columns(table: Table, names: _Names, shared: _Names) -> dict[str, ColumnElement[Any]]:
    """Return the columns of the document, and one parameter for each shared column."""
    source = _recordset({name: table.c[name].type for name in names})
    values = {name: bindparam(f"all_{name}", type_=table.c[name].type) for name in shared}
    return {**values, **{name: source.c[name] for name in names}}


def _recordset(columns: Mapping[str, TypeEngine[Any]]) -> TableValuedAlias:
    document = cast(bindparam("document", type_=Text), JSON)
    named = [column(name, type_) for name, type_ in columns.items()]
    rows = func.json_to_recordset(document).table_valued(*named)
    return rows.render_derived("given", with_types=True)


def given_rows(
    columns: Mapping[str, Column[Any]], rows: Rows
) -> tuple[TableValuedAlias, Mapping[str, Any]]:
    """Return ``rows`` as a table to join on PostgreSQL, and the parameters of the statement."""
    source = _recordset({name: each.type for name, each in columns.items()})
    return source, {"document": _document(tuple(columns), rows)}


def is_among(capabilities: Capabilities, key: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that ``key`` equals one of the values in ``among_parameter``."""
    given: BindParameter[Any] = bindparam("given", expanding=not capabilities.has_lateral)
    if not capabilities.has_lateral:
        return key.in_(given)
    # An array is an index condition. With a set of rows the planner makes a join, and its plan may
    # read everything between the first and the last row.
    return key == any_(cast(cast(given, Text), ARRAY(key.type)))


def among_parameter(capabilities: Capabilities, values: Sequence[Any]) -> dict[str, Any]:
    """Return the parameter of ``is_among`` for ``values``."""
    return {"given": _array(values) if capabilities.has_lateral else list(values)}


def any_element_of(key: Any, values: Sequence[Any]) -> ColumnElement[Any]:
    """Return ``ANY(values)`` for a comparison with ``key``, on PostgreSQL."""
    return any_(_array_of(key, values))


def lateral_for_each(
    key: Any, values: Sequence[Any], query: Callable[[Any], Select[Any]]
) -> Select[Any]:
    """Return a SELECT that runs ``query`` once for each of ``values``, with LATERAL.

    ``values`` have the type of ``key``. Each query uses its own index. PostgreSQL may turn a list
    in a condition into a filter on another index.
    """
    array = select(func.unnest(_array_of(key, values), type_=key.type).label("value"))
    one = array.subquery("given")
    rows = query(one.c.value).lateral("found")
    return select(rows).select_from(one.join(rows, true()))


def lateral_for_rows(
    keys: Sequence[Any], rows: Sequence[Sequence[Any]], query: Callable[..., Select[Any]]
) -> Select[Any]:
    """Return a SELECT that runs ``query`` once for each of ``rows``, with LATERAL.

    A row has one value for each of ``keys``, with its type.
    """
    arrays = [
        _array_of(key, values) for key, values in zip(keys, zip(*rows, strict=True), strict=True)
    ]
    columns = [column(f"value{index}", key.type) for index, key in enumerate(keys)]
    one = func.unnest(*arrays).table_valued(*columns).render_derived("given")
    found = query(*one.c).lateral("found")
    return select(found).select_from(one.join(found, true()))


def _array_of(key: Any, values: Sequence[Any]) -> ColumnElement[Any]:
    return cast(cast(literal(_array(values)), Text), ARRAY(key.type))


def _array(values: Sequence[Any]) -> str:
    # PostgreSQL's text form of an array, for numbers, ids and instants. It is faster than a list
    # that the driver encodes.
    return "{" + ",".join(map(str, values)) + "}"


S = TypeVar("S", bound=Any)


def force_index(statement: S, table: Any, name: str) -> S:
    """Return ``statement`` with a hint that makes MySQL and MariaDB use index ``name``."""
    for dialect in sorted(MYSQL):
        statement = statement.with_hint(
            selectable=table, text=f"FORCE INDEX ({name})", dialect_name=dialect
        )
    return statement


def reading_latest(session: Session, statement: S) -> S:
    """Return ``statement`` in a form that also reads rows newer than the caller's snapshot."""
    if session.info.get(OWN_TRANSACTION):
        # It has no snapshot, and must not wait for a lock.
        return statement
    return capabilities_in(session).reading_latest(statement)


def is_one_of(column: ColumnElement[Any], names: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that ``column`` has one of ``names``, which are constants of the code.

    They are a part of the statement, without quoting. SQLAlchemy writes a list of bound parameters
    into the statement again at each execution.
    """
    constants = tuple(names)
    if not all(name.isidentifier() for name in constants):
        msg = f"a constant that needs quotes: {constants}"
        raise ValueError(msg)
    return column.in_([literal_column(f"'{name}'") for name in constants])


def format_error(error: Exception) -> str:
    """Return the text of ``error`` for its row: the type and the message."""
    # The text of SQLAlchemy's error is not used, because it contains the statement.
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = f"{type(original).__name__}: {original}"
    return text if len(text) <= MAX_ERROR_LENGTH else f"{text[:MAX_ERROR_LENGTH]}..."


def read(
    session: Session,
    statement: Select[Any],
    values: Mapping[str, Any] | None = None,
    *,
    make: Make | None = None,
) -> Sequence[Row]:
    """Return the rows of ``statement``, which has the parameters ``values``.

    ``make`` creates a row from its values. If it is None, the row is a named tuple of the columns.
    """
    result = session.execute(statement, values, bind_arguments=BIND)
    make = make or _row_maker(tuple(result.keys()))
    # In partitions, so that memory holds no second and third copy of all rows.
    return [make(row) for part in result.partitions(ROWS_PER_PARTITION) for row in part]


@cache
def _row_maker(columns: tuple[str, ...]) -> Make:
    # A NamedTuple is not possible, because the columns are known only at run time.
    row_type: Any = namedtuple("Row", list(columns))  # type: ignore[misc]  # noqa: PYI024
    make: Make = row_type._make
    return make
