"""Many rows in one statement, where the database takes JSON apart into rows; else row by row.

PostgreSQL is sent one document of those columns whose values differ, so that a batch costs one
round trip, one plan, and no statement is parsed anew for another number of rows (json_to_recordset,
"JSON Functions and Operators"). An array for each column says the same, and costs a driver written
in Python several times as much to write down. The drivers of the others send the rows of an INSERT
together by themselves.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

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
    select,
    true,
    update,
)
from sqlalchemy.types import TypeEngine

from celery_dynbeat.db.dialects import Capabilities, capabilities_of
from celery_dynbeat.db.encoding import escape_unstorable
from celery_dynbeat.db.types import as_utc

#: As JSON writes it; or a backslash that is followed by digits, for which no harm is done.
_NUL = r"\u0000"

#: Rows of one statement: driver and server hold them several times, each with its payload.
ROWS_PER_STATEMENT = 500
#: So many of them are made into text at once.
ROWS_PER_JSON_CHUNK = 100

Rows = Sequence[Mapping[str, Any]]
_Names = tuple[str, ...]


def insert(connection: Connection, table: Table, rows: Rows) -> None:
    """Insert rows that hold the same columns."""
    for part in _parts(rows):
        _insert(connection, table, part, new=False)


def insert_new(connection: Connection, table: Table, rows: Rows) -> int:
    """Insert rows that hold the same columns; return how many there were not before.

    A row that breaks a unique key is passed over. Negative where the driver does not tell.
    """
    return sum(_insert(connection, table, part, new=True) for part in _parts(rows))


def _parts(rows: Rows) -> Iterator[Rows]:
    return (
        rows[start : start + ROWS_PER_STATEMENT]
        for start in range(0, len(rows), ROWS_PER_STATEMENT)
    )


def _insert(connection: Connection, table: Table, rows: Rows, *, new: bool) -> int:
    capabilities = capabilities_of(connection.dialect)
    told = {"preserve_rowcount": True}
    names, alike, values = _packed(rows) if capabilities.has_json_recordset else ((), (), {})
    # A JSON column takes a NUL in a text; what takes JSON apart does not.
    if values and _NUL not in values["document"]:
        statement = _insert_from(capabilities, table, names, alike, new)
        return connection.execute(statement, values, execution_options=told).rowcount
    statement = capabilities.insert_new(table) if new else table.insert()
    return connection.execute(statement, list(rows), execution_options=told).rowcount


def update_each(connection: Connection, table: Table, rows: Rows) -> None:
    """Write the columns of each row to the one with its ``id``; all rows hold the same columns."""
    for part in _parts(rows):
        _update_each(connection, table, part)


def _update_each(connection: Connection, table: Table, rows: Rows) -> None:
    if capabilities_of(connection.dialect).has_json_recordset:
        if "error" in rows[0]:
            # Within the document a column has no type.
            rows = [{**row, "error": _error(row["error"], connection)} for row in rows]
        names, alike, values = _packed(rows)
        connection.execute(_update_from(table, names, alike), values)
        return
    names = tuple(name for name in rows[0] if name != "id")
    given = [{"row_id": row["id"], **{f"new_{name}": row[name] for name in names}} for row in rows]
    connection.execute(_update_by_id(table, names), given)


# Statements are made once: to make one takes as long as to have it answered.
@lru_cache(maxsize=256)
def _insert_from(
    capabilities: Capabilities,
    table: Table,
    names: _Names,
    alike: _Names,
    new: bool,  # noqa: FBT001 - the key of a cache
) -> Insert:
    columns = _given(table, names, alike)
    statement = capabilities.insert_new(table) if new else table.insert()
    # What is not named has the server's defaults, as in the INSERT of a single row.
    return statement.from_select(list(columns), select(*columns.values()), include_defaults=False)


@lru_cache(maxsize=256)
def _update_from(table: Table, names: _Names, alike: _Names) -> Update:
    columns = _given(table, names, alike)
    same = table.c.id == columns.pop("id")
    return update(table).where(same).values(columns)


@lru_cache(maxsize=256)
def _update_by_id(table: Table, names: _Names) -> Update:
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    return update(table).where(table.c.id == bindparam("row_id")).values(values)


def _error(text: str | None, connection: Connection) -> str | None:
    return None if text is None else escape_unstorable(text, connection.dialect)


def _packed(rows: Rows) -> tuple[_Names, _Names, dict[str, Any]]:
    """Return the columns that differ, those that do not, and the values of both."""
    key = "id" if "id" in rows[0] else next(iter(rows[0]))
    alike = [name for name in rows[0] if name != key and _is_one(row[name] for row in rows)]
    names = [name for name in rows[0] if name not in alike]
    values = {f"all_{name}": rows[0][name] for name in alike}
    return tuple(names), tuple(alike), {"document": _document(names, rows), **values}


def _document(names: Sequence[str], rows: Rows) -> str:
    """Return the columns ``names`` of the rows as a list of objects."""
    # Part by part: the rows are not all in memory a second time.
    parts = (
        rows[start : start + ROWS_PER_JSON_CHUNK]
        for start in range(0, len(rows), ROWS_PER_JSON_CHUNK)
    )
    chosen = ([{name: row[name] for name in names} for row in part] for part in parts)
    # As it is: what is escaped the server has to translate, which not every encoding allows.
    written = (json.dumps(part, default=_text, ensure_ascii=False)[1:-1] for part in chosen)
    return f"[{','.join(written)}]"


def _is_one(cells: Iterator[Any]) -> bool:
    first = next(cells)
    # Equal is not enough for what goes into JSON: there 1 and True differ.
    if isinstance(first, (str, datetime)):
        return all(cell == first for cell in cells)
    return all(cell is first for cell in cells)


def _text(value: object) -> str:
    if not isinstance(value, datetime):
        raise TypeError(f"no column takes a {type(value).__name__}")
    return as_utc(value).isoformat()


def _given(table: Table, names: _Names, alike: _Names) -> dict[str, ColumnElement[Any]]:
    """Return the columns of the document, and one value for all rows of each of the others."""
    source = _recordset({name: table.c[name].type for name in names})
    values = {name: bindparam(f"all_{name}", type_=table.c[name].type) for name in alike}
    return {**values, **{name: source.c[name] for name in names}}


def _recordset(columns: Mapping[str, TypeEngine[Any]]) -> TableValuedAlias:
    document = cast(bindparam("document", type_=Text), JSON)
    named = [column(name, type_) for name, type_ in columns.items()]
    rows = func.json_to_recordset(document).table_valued(*named)
    return rows.render_derived("given", with_types=True)


def is_among(capabilities: Capabilities, key: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that ``key`` equals one of the values in ``among_parameter``."""
    given: BindParameter[Any] = bindparam("given", expanding=not capabilities.has_lateral)
    if not capabilities.has_lateral:
        return key.in_(given)
    # An array is a bound of an index. A set of rows is something to join with, by a plan that may
    # read all between the first and the last of them.
    return key == any_(cast(cast(given, Text), ARRAY(key.type)))


def among_parameter(capabilities: Capabilities, values: Sequence[Any]) -> dict[str, Any]:
    """Return the parameter of ``is_among``."""
    return {"given": _array(values) if capabilities.has_lateral else list(values)}


def any_element_of(key: Any, values: Sequence[Any]) -> ColumnElement[Any]:
    """Return what ``key`` is equal to when it is one of ``values``, on PostgreSQL."""
    return any_(_array_of(key, values))


def lateral_for_each(
    key: Any, values: Sequence[Any], query: Callable[[Any], Select[Any]]
) -> Select[Any]:
    """Return ``query`` of each of ``values``, which are of the type of ``key``, with LATERAL.

    One after the other, each by the index that serves it. What is a list in a condition may be a
    filter of another index to PostgreSQL.
    """
    given = select(func.unnest(_array_of(key, values), type_=key.type).label("value"))
    one = given.subquery("given")
    found = query(one.c.value).lateral("found")
    return select(found).select_from(one.join(found, true()))


def _array_of(key: Any, values: Sequence[Any]) -> ColumnElement[Any]:
    return cast(cast(literal(_array(values)), Text), ARRAY(key.type))


def _array(values: Sequence[Any]) -> str:
    # As PostgreSQL writes one of numbers, ids or instants. The driver takes longer for a list.
    return "{" + ",".join(map(str, values)) + "}"
