"""Make queries read in index order, independent of the database's statistics.

A planner chooses by costs, and computes them from statistics. A table that was just loaded has no
statistics. After the restore of a dump, after ``pg_upgrade`` and without autovacuum, they are
missing or old. PostgreSQL then expects few or no due rows, and sorts a scan of the whole table in
each pass. Its SQL has no hints, and no form of an ordered query with a filter and SKIP LOCKED
leaves only one plan. So a transaction that claims turns off the other plans (decision 15).
MySQL and MariaDB have hints that name the index.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.types import MYSQL

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Any)


def in_index_order(
    query: Callable[Concatenate[Session, P], T],
) -> Callable[Concatenate[Session, P], T]:
    """Execute the statements of ``query`` with index scans only.

    In a transaction of the package the setting lasts to the end of the transaction. In the caller's
    transaction it lasts as long as ``query``: the caller's own queries keep their plans.
    """

    @wraps(query)
    def query_in_index_order(session: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # The caller's session may choose its database by the mapped class.
        dialect = session.get_bind(Schedule).dialect
        with capabilities_of(dialect).in_index_order(session, mapper=Schedule):
            return query(session, *args, **kwargs)

    return query_in_index_order


def force_index(statement: S, table: Any, name: str) -> S:
    """Return ``statement`` with a hint that makes MySQL and MariaDB use index ``name``."""
    for dialect in sorted(MYSQL):
        statement = statement.with_hint(
            selectable=table, text=f"FORCE INDEX ({name})", dialect_name=dialect
        )
    return statement
