"""Queries that follow an index, whatever the database's statistics say.

A planner compares costs that it computes from statistics. A table that was just loaded has none; a
dump that was restored, a server after ``pg_upgrade`` and one without autovacuum have none or old
ones. PostgreSQL then takes a few hundred due rows for a few, or for none, and sorts a scan of the
whole table in each pass. It has no hints in its SQL, and no form of an ordered query with a filter
and SKIP LOCKED leaves it only one plan. So a transaction that claims turns the other plans off
(decision 15). MySQL and MariaDB have hints, which name the index.
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
    """Execute the statements of ``query`` along indexes only.

    In a transaction of our own the setting lasts to its end. In a caller's it lasts as long as
    ``query``: the caller's own queries are planned as before.
    """

    @wraps(query)
    def along_indexes(session: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # A caller's session may choose its database by the class.
        dialect = session.get_bind(Schedule).dialect
        with capabilities_of(dialect).in_index_order(session, mapper=Schedule):
            return query(session, *args, **kwargs)

    return along_indexes


def force_index(statement: S, table: Any, name: str) -> S:
    """Return ``statement`` with the index that MySQL and MariaDB must use for ``table``."""
    for dialect in sorted(MYSQL):
        statement = statement.with_hint(
            selectable=table, text=f"FORCE INDEX ({name})", dialect_name=dialect
        )
    return statement
