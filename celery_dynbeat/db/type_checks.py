"""Constraints against values that manual SQL could store in spite of the type of a column.

    instants     PostgreSQL has infinity and years before Christ, MySQL the month 0
    JSON         each database accepts any shape where an array or an object is needed
    booleans     MySQL and SQLite store any number
    all others   SQLite stores values of any type and length in each column

``dynbeat_run`` has only the constraints on its numbers. Each start and each end of a run is an
UPDATE of one row, and PostgreSQL took 13 percent longer for it with constraints on the instants.
Its instants are a RunInstant, which reads such a value as an end of the calendar.

The first migration also calls ``type_checks``. A change here needs a migration that changes the
constraints, and the first migration then needs a copy of this module.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Boolean, CheckConstraint, Column, Double, Integer, String
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from celery_dynbeat.db.types import Json, RunInstant, UtcDateTime

#: The first fire times, and the end of a hold without an end, with a margin to the ends of Python's
#: calendar.
_FIRST, _LAST = "1900-01-01 00:00:00", "9999-12-30 00:00:00"
_UNTYPED = "sqlite"
_WITHOUT_BOOLEANS = ("mysql", "mariadb", _UNTYPED)


def type_checks(column: Column[Any], *, table: str) -> Iterator[CheckConstraint]:
    """Yield the constraints of a column of ``table``."""
    kind = column.type
    if isinstance(kind, UtcDateTime):
        if not isinstance(kind, RunInstant):
            yield CheckConstraint(_is_instant(column), name=f"{column.name}_is_instant")
    elif isinstance(kind, Json):
        yield CheckConstraint(_has_shape(column, kind), name=f"{column.name}_is_{kind.shape}")
    elif isinstance(kind, Boolean):
        check = CheckConstraint(f"{column.name} IN (0, 1)", name=f"{column.name}_is_boolean")
        yield check.ddl_if(dialect=_WITHOUT_BOOLEANS)  # type: ignore[arg-type]
    elif not column.primary_key:
        is_typed = _sqlite_type(column, only_numbers=table == "dynbeat_run")
        if is_typed is not None:
            condition = f"{column.name} IS NULL OR {is_typed}" if column.nullable else is_typed
            check = CheckConstraint(condition, name=f"{column.name}_is_typed")
            yield check.ddl_if(dialect=_UNTYPED)


def _sqlite_type(column: Column[Any], *, only_numbers: bool) -> str | None:
    """Return the condition that SQLite has stored a value of the column's type."""
    name, impl = column.name, getattr(column.type, "impl_instance", column.type)
    if isinstance(impl, Integer):
        return f"typeof({name}) = 'integer'"
    if isinstance(impl, Double):
        return f"typeof({name}) = 'real'"
    if only_numbers or not isinstance(impl, String):
        return None
    is_text = f"typeof({name}) = 'text'"
    return is_text if impl.length is None else f"({is_text} AND length({name}) <= {impl.length})"


class _is_instant(FunctionElement[bool]):  # noqa: N801 - reads as an SQL function
    """Whether a column is NULL or an instant to which the code can add a minute or a day."""

    type = Boolean()
    inherit_cache = True


@compiles(_is_instant)
def _compile_is_instant(element: _is_instant, compiler: SQLCompiler, **options: Any) -> str:
    at = compiler.process(element.clauses, **options)
    return f"{at} BETWEEN '{_FIRST}+00' AND '{_LAST}+00'"


@compiles(_is_instant, "mysql")
@compiles(_is_instant, "mariadb")
def _compile_is_instant_mysql(element: _is_instant, compiler: SQLCompiler, **options: Any) -> str:
    at = compiler.process(element.clauses, **options)
    # The sum is NULL or another instant for a month 0 and for 30 February.
    between = f"least(greatest({at}, TIMESTAMP'{_FIRST}'), TIMESTAMP'{_LAST}')"
    return f"{at} <=> {between} + INTERVAL 0 SECOND"


@compiles(_is_instant, "sqlite")
def _compile_is_instant_sqlite(element: _is_instant, compiler: SQLCompiler, **options: Any) -> str:
    at = compiler.process(element.clauses, **options)
    # A sum with datetime() is another text for 30 February, and NULL for an unknown notation. IS,
    # because a constraint that is NULL holds. substr(), because SQLite compares a column of this
    # type as a number.
    second = f"substr({at}, 1, 19)"
    is_second = f"datetime({second}, '+0 days') IS {second}"
    microseconds = f"substr({at}, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'"
    return (
        f"{at} IS NULL OR ({second} BETWEEN '{_FIRST}' AND '{_LAST}' AND {is_second}"
        f" AND (length({at}) = 19 OR {microseconds}))"
    )


class _has_shape(FunctionElement[bool]):  # noqa: N801
    """Whether a column of JSON is NULL or has the shape of its type."""

    type = Boolean()
    inherit_cache = True

    def __init__(self, column: Column[Any], kind: Json) -> None:
        super().__init__(column)
        self.kind = kind


@compiles(_has_shape)
def _compile_has_shape(element: _has_shape, compiler: SQLCompiler, **options: Any) -> str:
    value, kind = compiler.process(element.clauses, **options), element.kind
    return f"json{'b' if kind.is_searched else ''}_typeof({value}) = '{kind.shape}'"


@compiles(_has_shape, "mysql")
@compiles(_has_shape, "mariadb")
def _compile_has_shape_mysql(element: _has_shape, compiler: SQLCompiler, **options: Any) -> str:
    value = compiler.process(element.clauses, **options)
    shape = f"json_type({value}) = '{element.kind.shape.upper()}'"
    if getattr(compiler.dialect, "is_mariadb", False):
        # MariaDB's type JSON is a text with a constraint that it is valid.
        return shape
    return f"{value} IS NULL OR (json_valid({value}) AND {shape})"


@compiles(_has_shape, "sqlite")
def _compile_has_shape_sqlite(element: _has_shape, compiler: SQLCompiler, **options: Any) -> str:
    value = compiler.process(element.clauses, **options)
    # In this order: json_type() raises an error for a text that is not JSON, and some versions
    # return 0 for json_valid(NULL).
    shape = f"json_type({value}) = '{element.kind.shape}'"
    return f"{value} IS NULL OR (json_valid({value}) AND {shape})"
