"""PostgreSQL. Source: its appendix A, "Error Codes"."""

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, Table, func, literal, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.dml import Insert

from celery_dynbeat.db.dialects.base import SCHEMA_LOCK, Capabilities

CHANNEL = "dynbeat_change"


class PostgreSql(Capabilities):
    """PostgreSQL 13 and later."""

    notifies = True
    takes_rows_from_json = True
    commits_statements = True
    # serialization_failure, deadlock_detected, lock_not_available
    _transient = frozenset({"40001", "40P01", "55P03"})
    # invalid_sql_statement_name, duplicate_prepared_statement
    _statement_lost = frozenset({"26000", "42P05"})

    def read_clock(self, connection: Connection) -> datetime:
        instant: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return instant.astimezone(UTC)

    def insert_new(self, table: Table) -> Insert:
        return postgresql.insert(table).on_conflict_do_nothing()

    def insert_or_lock(self, table: Table) -> Insert:
        new = postgresql.insert(table)
        key = {column.name: new.excluded[column.name] for column in table.primary_key}
        return new.on_conflict_do_update(index_elements=list(key), set_=key)

    def is_transient(self, error: DBAPIError) -> bool:
        return _sqlstate(error) in self._transient or self.has_lost_statement(error)

    def has_lost_statement(self, error: DBAPIError) -> bool:
        # protocol_violation: a statement of that name with other parameters
        other = _sqlstate(error) == "08P01" and "prepared statement" in str(error.orig)
        return other or _sqlstate(error) in self._statement_lost

    def is_read_only(self, error: DBAPIError) -> bool:
        # read_only_sql_transaction
        return _sqlstate(error) == "25006"

    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        return column.op("@>")(literal([tag], type_=postgresql.JSONB()))

    def lock_schema(self, connection: Connection) -> None:
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(SCHEMA_LOCK))))


def notify(payload: str = "") -> ColumnElement[str]:
    """Return the expression that notifies the listening beats when its transaction commits."""
    return func.pg_notify(CHANNEL, payload)


def _sqlstate(error: DBAPIError) -> str:
    # psycopg says sqlstate, psycopg2 pgcode.
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    return state or ""
