"""PostgreSQL. Source: its appendix A, "Error Codes"."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    Table,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.dml import Insert

from celery_dynbeat.db import table_names
from celery_dynbeat.db.dialects import (
    SCHEMA_LOCK,
    Capabilities,
)

# All plans except nested loops over index scans. JIT compilation depends on the plan's cost, and a
# plan that uses a disabled node has an enormous cost.
_OTHER_PLANS = (
    "enable_seqscan",
    "enable_bitmapscan",
    "enable_sort",
    "enable_hashjoin",
    "enable_mergejoin",
    "jit",
)
# true: until the end of the transaction, as PgBouncer's transaction mode requires. These are
# constants, because each bound parameter would be processed in each transaction of a pass.
_OFF: list[ColumnElement[Any]] = [
    literal_column(f"set_config('{name}', 'off', true)") for name in _OTHER_PLANS
]
_ASYNCHRONOUS: ColumnElement[Any] = literal_column("set_config('synchronous_commit', 'off', true)")
_TURN_OFF: Select[Any] = select(*_OFF)
_TURN_OFF_AND_COMMIT_ASYNCHRONOUSLY: Select[Any] = select(*_OFF, _ASYNCHRONOUS)
# Without a pooler: a pooler would give the setting to other clients. A stricter value stays.
_COMMIT_SYNCHRONOUSLY = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE pg_backend_pid() = %s AND current_setting('synchronous_commit') = 'off'"
)
_SYNCHRONOUS_COMMIT = select(func.current_setting("synchronous_commit"))
_DEFAULT_ISOLATION = select(func.current_setting("default_transaction_isolation"))
_ENCODINGS = select(
    func.current_setting("server_encoding"), func.current_setting("client_encoding")
)
_INSUFFICIENT_PRIVILEGE = "42501"
#: Classes of states: connection, resources, intervention of an operator, system error.
_UNAVAILABLE = frozenset({"08", "53", "57", "58"})
#: These, and: unsupported feature, state of the transaction, rollback, syntax or missing object,
#: state of an object, configuration, internal error.
_NO_REFUSALS = _UNAVAILABLE | {"0A", "25", "40", "42", "55", "F0", "XX"}


class PostgreSql(Capabilities):
    """PostgreSQL 13 and later."""

    # Independent of the default of the server, the database or the role. At SERIALIZABLE two beats
    # read each other's rows, and their transactions fail. BEGIN sets the level, so it passes
    # through PgBouncer.
    execution_options: ClassVar[dict[str, Any]] = {"isolation_level": "READ COMMITTED"}
    notifies = True
    has_json_recordset = True
    has_lateral = True
    has_partial_indexes = True
    autocommit_saves_round_trips = True
    # serialization_failure, deadlock_detected, lock_not_available
    _transient = frozenset({"40001", "40P01", "55P03"})
    # invalid_sql_statement_name, duplicate_prepared_statement
    _statement_lost = frozenset({"26000", "42P05"})

    def configure(self, dbapi_connection: Any) -> None:
        """Wait for the disk at each commit, also if the server or the role is set to ``off``.

        Otherwise a crash of the server could undo the start of a run whose task was executed.
        """
        pid = getattr(getattr(dbapi_connection, "info", None), "backend_pid", None)
        if pid is None:
            # Another driver than psycopg.
            return
        dbapi_connection.autocommit = True
        with closing(dbapi_connection.cursor()) as cursor:
            cursor.execute(_COMMIT_SYNCHRONOUSLY, (pid,))
        dbapi_connection.autocommit = False

    def loses_commits(self, connection: Connection) -> bool:
        return bool(connection.scalar(_SYNCHRONOUS_COMMIT) == "off")

    def refresh_statistics(self, session: Session, table: Table) -> None:
        name = session.get_bind().dialect.identifier_preparer.format_table(table)
        # If the right to do so is missing, PostgreSQL only warns.
        session.execute(text(f"ANALYZE {name}"))

    def why_no_schema(self, name: str) -> str | None:
        return "PostgreSQL reserves the names that begin with pg_" if name[:3] == "pg_" else None

    def search_path(self, connection: Connection) -> str:
        return str(connection.scalar(text("SHOW search_path")))

    def schemas_of(self, connection: Connection, table: str) -> Sequence[str]:
        named = text(
            "SELECT schemaname FROM pg_catalog.pg_tables WHERE tablename = :name ORDER BY 1"
        )
        return connection.scalars(named, {"name": table}).all()

    def entering_schema(self, quoted: str) -> str:
        return f"SET search_path TO {quoted}"

    @contextmanager
    def in_schema(self, connection: Connection, quoted: str) -> Iterator[None]:
        # LOCAL: until the end of the transaction.
        connection.exec_driver_sql(f"SET LOCAL search_path TO {quoted}")
        yield

    def follow_indexes(self, session: Session, *, asynchronous_commit: bool = False) -> None:
        session.connection().execute(
            _TURN_OFF_AND_COMMIT_ASYNCHRONOUSLY if asynchronous_commit else _TURN_OFF
        )

    def defaults_to_read_committed(self, connection: Connection) -> bool:
        level: str = connection.execute(_DEFAULT_ISOLATION).scalar_one()
        return level == "read committed"

    def limited_encoding(self, connection: Connection) -> str | None:
        server, client = connection.execute(_ENCODINGS).one()
        # SQL_ASCII stores the bytes of its clients, and this client sends UTF-8.
        return None if server == "UTF8" or (server, client) == ("SQL_ASCII", "UTF8") else server

    def is_unstorable(self, error: DBAPIError) -> bool:
        # untranslatable_character, character_not_in_repertoire
        return _sqlstate(error) in {"22P05", "22021"}

    def read_clock(self, connection: Connection) -> datetime:
        instant: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return instant.astimezone(UTC)

    def insert_new(self, table: Table) -> Insert:
        return postgresql.insert(table).on_conflict_do_nothing()

    def check_deferred(self, session: Session) -> None:
        session.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))

    def insert_or_lock(self, table: Table) -> Insert:
        new = postgresql.insert(table)
        key = {column.name: new.excluded[column.name] for column in table.primary_key}
        return new.on_conflict_do_update(index_elements=list(key), set_=key)

    def is_transient(self, error: DBAPIError) -> bool:
        return _sqlstate(error) in self._transient or self.is_prepared_statement_lost(error)

    def is_prepared_statement_lost(self, error: DBAPIError) -> bool:
        # protocol_violation: a statement of that name has other parameters
        other = _sqlstate(error) == "08P01" and "prepared statement" in str(error.orig)
        return other or _sqlstate(error) in self._statement_lost

    def is_unavailable(self, error: DBAPIError) -> bool:
        state = _sqlstate(error)
        if not state:
            # The driver has no connection.
            return isinstance(error, OperationalError)
        # query_canceled is a time limit.
        is_of_server = state[:2] in _UNAVAILABLE and state != "57014"
        return is_of_server or self.is_read_only(error)

    def is_refusal(self, error: DBAPIError) -> bool:
        state = _sqlstate(error)
        if state == _INSUFFICIENT_PRIVILEGE:
            # The messages are translated. This function reports a missing right on an object.
            diagnosis = getattr(error.orig, "diag", None)
            return getattr(diagnosis, "source_function", None) != "aclcheck_error"
        # A trigger may raise any state that it likes.
        return bool(state) and state[:2] not in _NO_REFUSALS and not self.is_transient(error)

    def is_read_only(self, error: DBAPIError) -> bool:
        # read_only_sql_transaction
        return _sqlstate(error) == "25006"

    def minute_of(self, column: Any) -> ColumnElement[str]:
        in_utc = func.timezone("UTC", column)
        return func.to_char(in_utc, "YYYY-MM-DD HH24:MI", type_=String())

    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        return column.op("@>")(literal([tag], type_=postgresql.JSONB()))

    def lock_schema(self, connection: Connection) -> bool:
        lock = func.pg_try_advisory_xact_lock(func.hashtext(SCHEMA_LOCK))
        return bool(connection.scalar(select(lock)))


def notify(payload: str = "") -> ColumnElement[str]:
    """Return the expression that notifies the listening beats when its transaction commits."""
    return func.pg_notify(table_names().channel, payload)


def _sqlstate(error: DBAPIError) -> str:
    # psycopg calls it sqlstate, psycopg2 pgcode.
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    return state or ""
