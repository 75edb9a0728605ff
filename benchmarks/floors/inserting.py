"""Schedules inserted by the bare driver: planned before, and without checks."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import Engine

from benchmarks.loads import Row

AGAINST_MANY, AGAINST_ONE = "the driver's executemany", "bare INSERT, commit"
TABLE = "dynbeat_schedule"
COLUMNS = (
    *("owner", "name", "task", "trigger_kind", "trigger_spec", "timezone"),
    *("next_fire_at", "next_run_at"),
)


def many(engine: Engine, rows: Sequence[Row]) -> float:
    """Return rows per second, inserted by one call of the driver in one transaction."""
    values = _values(engine, rows)
    connection: Any = engine.raw_connection()
    try:
        started = time.perf_counter()
        connection.cursor().executemany(_insert(engine), values)
        connection.commit()
        return len(rows) / (time.perf_counter() - started)
    finally:
        connection.close()


def copied(engine: Engine, rows: Sequence[Row]) -> float:
    """Return rows per second, inserted by COPY in one transaction. PostgreSQL only."""
    address = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address) as connection:
        started = time.perf_counter()
        with connection.cursor().copy(f"COPY {TABLE} ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for row in _values(engine, rows):
                copy.write_row(row)
        connection.commit()
        return len(rows) / (time.perf_counter() - started)


def singly(engine: Engine, rows: Sequence[Row]) -> float:
    """Return rows per second, each inserted in a transaction of its own."""
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
    """Return the rows in the form that the driver needs."""
    name = engine.dialect.name
    return [tuple(_value(name, row[column]) for column in COLUMNS) for row in rows]


def _value(database: str, value: object) -> object:
    if database == "postgresql" or not isinstance(value, datetime):
        return value
    naive = value.replace(tzinfo=None)
    return naive if database != "sqlite" else naive.isoformat(sep=" ", timespec="microseconds")
