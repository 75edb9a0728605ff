"""Insert schedules with the bare driver: rows that are already planned and not validated."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import Engine

from benchmarks.workloads import Row

NAME_MANY, NAME_ONE = "the driver's executemany", "bare INSERT, commit"
TABLE = "dynbeat_schedule"
COLUMNS = (
    *("owner", "name", "task", "trigger_kind", "trigger_spec", "timezone"),
    *("next_fire_at", "next_run_at"),
)


def insert_many(engine: Engine, rows: Sequence[Row]) -> float:
    """Return the rows a second of one ``executemany`` in one transaction."""
    values = _values(engine, rows)
    connection: Any = engine.raw_connection()
    try:
        started = time.perf_counter()
        connection.cursor().executemany(_insert(engine), values)
        connection.commit()
        return len(rows) / (time.perf_counter() - started)
    finally:
        connection.close()


def copy_rows(engine: Engine, rows: Sequence[Row]) -> float:
    """Return the rows a second of one COPY in one transaction. PostgreSQL only."""
    conninfo = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo) as connection:
        started = time.perf_counter()
        with connection.cursor().copy(f"COPY {TABLE} ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for row in _values(engine, rows):
                copy.write_row(row)
        connection.commit()
        return len(rows) / (time.perf_counter() - started)


def insert_singly(engine: Engine, rows: Sequence[Row]) -> float:
    """Return the rows a second of single INSERTs, each in its own transaction."""
    values = _values(engine, rows)
    statement = _insert(engine)
    connection: Any = engine.raw_connection()
    try:
        started = time.perf_counter()
        for row in values:
            connection.cursor().execute(statement, row)
            connection.commit()
        return len(rows) / (time.perf_counter() - started)
    finally:
        connection.close()


def _insert(engine: Engine) -> str:
    mark = "?" if engine.dialect.paramstyle == "qmark" else "%s"
    marks = ", ".join(mark for _ in COLUMNS)
    return f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({marks})"


def _values(engine: Engine, rows: Sequence[Row]) -> Sequence[tuple[object, ...]]:
    """Return the rows as parameters of the driver."""
    name = engine.dialect.name
    return [tuple(_value(name, row[column]) for column in COLUMNS) for row in rows]


def _value(database: str, value: object) -> object:
    if database == "postgresql" or not isinstance(value, datetime):
        return value
    naive = value.replace(tzinfo=None)
    return naive if database != "sqlite" else naive.isoformat(sep=" ", timespec="microseconds")
