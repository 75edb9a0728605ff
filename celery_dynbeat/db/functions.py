"""SQL functions that are written differently for each database."""

from datetime import datetime
from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import DateTime


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
