"""Record how many rows the database reads for each statement of the code under test.

PostgreSQL reports the plan of each executed statement (its extension auto_explain, "F.3"). MariaDB
counts the rows that it reads from its storage engine (Handler_read_*, "Server Status Variables").
No statement is executed twice, so a cached plan is measured as it is.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, Select, event, inspect

_LOG_PLANS = """
    LOAD 'auto_explain';
    SET auto_explain.log_min_duration = 0;
    SET auto_explain.log_analyze = on;
    SET auto_explain.log_timing = off;
    SET auto_explain.log_format = json;
    SET auto_explain.log_level = notice;
"""
_HANDLERS = "SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%'"


@dataclass(frozen=True, slots=True)
class Statement:
    """An executed statement, the rows of tables that it read, and its plan on PostgreSQL."""

    sql: str
    rows: int
    plan: Any = field(default=None, repr=False)


@contextmanager
def record_statements(engine: Engine) -> Iterator[list[Statement]]:
    """Yield a list to which each statement on a new connection of the engine is appended."""
    statements: list[Statement] = []
    engine.dispose()
    if engine.dialect.name == "postgresql":
        watch = _watch_postgresql
    else:
        watch = _watch_mysql
        _open_tables(engine)
    listeners = watch(statements)
    for name, listener in listeners.items():
        event.listen(engine, name, listener)
    yield statements
    for name, listener in listeners.items():
        event.remove(engine, name, listener)
    engine.dispose()


@contextmanager
def record_selects(engine: Engine) -> Iterator[list[Select[Any]]]:
    """Yield a list to which each SELECT on the engine is appended, with its parameters."""
    selects: list[Select[Any]] = []

    def record(
        _connection: Any, statement: Any, _many: Any, values: dict[str, Any], _options: Any
    ) -> None:
        if isinstance(statement, Select):
            selects.append(statement.params(values))

    event.listen(engine, "before_execute", record)
    yield selects
    event.remove(engine, "before_execute", record)


def _watch_postgresql(statements: list[Statement]) -> dict[str, Any]:
    def record(diagnostic: Any) -> None:
        _, is_plan, text = diagnostic.message_primary.partition("plan:\n")
        if is_plan:
            plan = json.loads(text)
            rows = sum(_rows_read(node) for node in _nodes(plan["Plan"]))
            statements.append(Statement(plan["Query Text"], rows, plan["Plan"]))

    def connected(connection: Any, _record: Any) -> None:
        connection.add_notice_handler(record)
        with connection.cursor() as cursor:
            cursor.execute(_LOG_PLANS)
        connection.commit()

    return {"connect": connected}


def _rows_read(node: dict[str, Any]) -> int:
    # Scans of functions and subqueries read no table.
    if "Scan" not in node["Node Type"] or not {"Relation Name", "Index Name"} & node.keys():
        return 0
    removed = sum(node.get(f"Rows Removed by {by}", 0) for by in ("Filter", "Index Recheck"))
    return int(node["Actual Loops"] * (node["Actual Rows"] + removed))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _nodes(part)


def _watch_mysql(statements: list[Statement]) -> dict[str, Any]:
    def before(
        connection: Any, _cursor: Any, _sql: str, _values: Any, context: Any, _many: Any
    ) -> None:
        context.rows_before = _handlers(connection)

    def after(
        connection: Any, _cursor: Any, sql: str, _values: Any, context: Any, _many: Any
    ) -> None:
        # SHOW STATUS reads rows itself: subtract them.
        total = _handlers(connection)
        rows = total - context.rows_before - (_handlers(connection) - total)
        statements.append(Statement(sql, rows))

    return {"before_cursor_execute": before, "after_cursor_execute": after}


def _open_tables(engine: Engine) -> None:
    # MySQL counts the rows of its data dictionary, too, which it reads when it first opens a table.
    with engine.connect() as connection:
        for table in inspect(connection).get_table_names():
            connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 0")


def _handlers(connection: Any) -> int:
    with connection.connection.cursor() as cursor:
        cursor.execute(_HANDLERS)
        return sum(int(number) for _, number in cursor.fetchall())
