"""How many rows the database itself looks at for each statement, while the code under test runs.

PostgreSQL tells the plan of each statement as it was executed (its extension auto_explain, "F.3");
MariaDB counts the rows that it asks its storage engine for (Handler_read_*, "Server Status
Variables"). Nothing is executed a second time, so a plan that is kept is seen as it is.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

_TELL_PLANS = """
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
    """One that was executed: how many rows of tables it met; and the plan, if told."""

    sql: str
    rows: int
    plan: Any = field(default=None, repr=False)


@contextmanager
def record_statements(engine: Engine) -> Iterator[list[Statement]]:
    """Yield a list that grows with the statements of the engine's new connections."""
    found: list[Statement] = []
    engine.dispose()
    watch = _watch_postgresql if engine.dialect.name == "postgresql" else _watch_mysql
    listeners = watch(found)
    for name, listener in listeners.items():
        event.listen(engine, name, listener)
    yield found
    for name, listener in listeners.items():
        event.remove(engine, name, listener)
    engine.dispose()


def _watch_postgresql(found: list[Statement]) -> dict[str, Any]:
    def note(diagnostic: Any) -> None:
        _, is_plan, text = diagnostic.message_primary.partition("plan:\n")
        if is_plan:
            plan = json.loads(text)
            rows = sum(_looked_at(node) for node in _nodes(plan["Plan"]))
            found.append(Statement(plan["Query Text"], rows, plan["Plan"]))

    def connected(connection: Any, _record: Any) -> None:
        connection.add_notice_handler(note)
        with connection.cursor() as cursor:
            cursor.execute(_TELL_PLANS)
        connection.commit()

    return {"connect": connected}


def _looked_at(node: dict[str, Any]) -> int:
    # A function and a subquery are scanned, too.
    if "Scan" not in node["Node Type"] or not {"Relation Name", "Index Name"} & node.keys():
        return 0
    removed = sum(node.get(f"Rows Removed by {by}", 0) for by in ("Filter", "Index Recheck"))
    return int(node["Actual Loops"] * (node["Actual Rows"] + removed))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _nodes(part)


def _watch_mysql(found: list[Statement]) -> dict[str, Any]:
    def before(
        connection: Any, _cursor: Any, _sql: str, _values: Any, context: Any, _many: Any
    ) -> None:
        context.rows_before = _handlers(connection)

    def after(
        connection: Any, _cursor: Any, sql: str, _values: Any, context: Any, _many: Any
    ) -> None:
        # The count itself is counted, too.
        alone = _handlers(connection)
        rows = alone - context.rows_before - (_handlers(connection) - alone)
        found.append(Statement(sql, rows))

    return {"before_cursor_execute": before, "after_cursor_execute": after}


def _handlers(connection: Any) -> int:
    with connection.connection.cursor() as cursor:
        cursor.execute(_HANDLERS)
        return sum(int(number) for _, number in cursor.fetchall())
