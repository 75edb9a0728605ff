"""SQL functions that are written differently for each database."""

from datetime import datetime
from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import DateTime, Double


class utc_now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function that it is
    """The current instant of the database in UTC, for server defaults."""

    type = DateTime()
    inherit_cache = True


@compiles(utc_now)
def _utc_now(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    del element, compiler
    return "CURRENT_TIMESTAMP"


@compiles(utc_now, "mysql")
@compiles(utc_now, "mariadb")
def _utc_now_mysql(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    del element, compiler
    # MySQL requires parentheses around a default that is an expression.
    return "(utc_timestamp(6))"


class seconds_between(FunctionElement[float]):  # noqa: N801 - reads as an SQL function
    """The seconds from the first instant to the second, or None if one of them is NULL."""

    type = Double()
    inherit_cache = True


@compiles(seconds_between)
def _seconds_between(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    begin, end = (compiler.process(each, **options) for each in element.clauses)
    return f"extract(epoch FROM {end} - {begin})"


@compiles(seconds_between, "sqlite")
def _seconds_between_sqlite(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    begin, end = (compiler.process(each, **options) for each in element.clauses)
    return f"(julianday({end}) - julianday({begin})) * 86400.0"


@compiles(seconds_between, "mysql")
@compiles(seconds_between, "mariadb")
def _seconds_between_mysql(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    begin, end = (compiler.process(each, **options) for each in element.clauses)
    return f"timestampdiff(MICROSECOND, {begin}, {end}) / 1e6"
